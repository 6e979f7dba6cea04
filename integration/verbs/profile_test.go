package verbs

import (
	"fmt"
	"strings"
	"syscall"
	"testing"
)

// A device that shows itself as another card says what ibv_devinfo says of that one, and holds
// programs to its limits, with the errno of its driver.
func TestProfiles(t *testing.T) {
	cards := []struct {
		name, more string
		inline     int // of a reliable connection
		deep       syscall.Errno
		noSRQ      int
		send, recv int // the depths of a queue pair that asks for 16 and 20
		cq         int // and that of a completion queue that asks for 16
		resize     syscall.Errno
		srq, asked int // of a shared receive queue of 16, and when it is asked later; 0: it cannot be
		large      syscall.Errno
		empty      syscall.Errno
		says       []string
	}{
		{"siw", "", 80, syscall.EINVAL, 0, 16, 32, 16, syscall.EOPNOTSUPP, 16, 0, syscall.EINVAL,
			syscall.EINVAL, []string{`transport:\s+iWARP`,
				`vendor_id:\s+0x626d74`,
				`fw_ver:\s+0\.0\.0`, `max_sge:\s+6\n`, `max_sge_rd:\s+1\n`, `ATOMIC_NONE`,
				`page_size_cap:\s+0x1000\n`, `port_cap_flags:\s+0x00090000`, `max_srq_wr:\s+327680\n`,
				`core clock not supported`, `max_res_rd_atom:\s+13107200\n`}},
		{"cxgb4", "", 280, syscall.E2BIG, 0, 16, 20, 30, syscall.EOPNOTSUPP, 31, 0, syscall.E2BIG, 0,
			[]string{`vendor_id:\s+0x1425`, `max_sge:\s+4\n`,
				`max_qp_wr:\s+8190\n`, `max_cqe:\s+65518\n`, `max_srq_wr:\s+8190\n`,
				`vendor_part_id:\s+21520\n`}},
		{"irdma", "", 101, syscall.EINVAL, 1, 127, 31, 16, 0, 0, 0, 0, 0, []string{`transport:\s+iWARP`,
			`vendor_id:\s+0x8086`,
			`device_cap_flags:\s+0x01220000`, `gid_tbl_len:\s+1\n`}},
		{"irdma", ",transport=roce", 101, syscall.EINVAL, 1, 127, 31, 16, 0, 0, 0, 0, 0,
			[]string{`transport:\s+InfiniBand`,
				`device_cap_flags:\s+0x01221000`, `gid_tbl_len:\s+32\n`, `hw_ver:\s+0x2`,
				`max_qp_wr:\s+8127\n`, `max_srq:\s+0\n`, `fw_ver:\s+1\.74`}},
		{"rxe", ",transport=roce", 512, syscall.EINVAL, 0, 16, 32, 31, 0, 31, 31, syscall.EINVAL,
			syscall.EINVAL, []string{`vendor_id:\s+0xffffff`,
				`max_sge:\s+32\n`, `max_cqe:\s+32767\n`, `gid_tbl_len:\s+1024\n`, `max_pkeys:\s+64\n`,
				`local_ca_ack_delay:\s+15\n`, `max_msg_sz:\s+0x800000\n`}},
		{"mlx5", ",transport=roce", 828, syscall.EINVAL, 0, 16, 32, 31, 0, 31, 63, syscall.EINVAL, 0,
			[]string{`vendor_part_id:\s+4119`,
				`fw_ver:\s+16\.27\.1016`, `max_sge:\s+30\n`, `max_srq_wr:\s+32767\n`, `max_srq_sge:\s+31\n`,
				`max_mr:\s+16777216\n`, `max_qp_rd_atom:\s+16\n`, `ODP_SUPPORT`,
				`max_total_mcast_qp_attach:\s+503316480\n`}},
	}
	// More than the largest of them, so that it is the card that refuses.
	args := []string{"--limit", "depth=65536"}
	for i, c := range cards {
		args = append(args, "--device", fmt.Sprintf("card%d,addr=10.%d.0.2/24%s,profile=%s", i, 100+i,
			c.more, c.name))
	}
	d := up(t, nil, args...)
	for i, c := range cards {
		name := fmt.Sprint("card", i)
		t.Run(c.name+strings.TrimPrefix(c.more, ",transport="), func(t *testing.T) {
			q := *d
			q.T = t
			info := q.start("ibv_devinfo", "-v", "-d", name)
			info.succeed(cLimit, c.says...)
			args := []string{cProgram(t, "profile"), name}
			for _, n := range []int{c.inline, int(c.deep), c.noSRQ, c.send, c.recv, c.cq, int(c.resize),
				c.srq, c.asked, int(c.large), int(c.empty)} {
				args = append(args, fmt.Sprint(n))
			}
			q.start(args...).succeed(cLimit, "^ok profile$")
		})
	}
}

// A device that shows itself as another card moves queue pairs from state to state as its driver
// does: some of what a program asks for is refused there, and some is passed over.
func TestProfileStates(t *testing.T) {
	const roce = ",transport=roce"
	cards := []struct{ name, more, fresh, connected string }{
		// steps are STATE=ERRNO/NOW: 0 is RESET, 1 INIT, 2 RTR, 3 RTS, 4 SQD, 5 SQE, 6 ERR
		{"none", "", "2=22/1,4=22/1,6=0/6,1=0/1", "1=22/3,0=22/3,6=0/6,0=0/1"},
		{"siw", "", "2=0/1,4=0/1,5=0/1,3=22/1,6=0/6,1=0/6,0=0/6,6=0/6", "0=0/3,1=0/3,2=0/3,6=0/6,1=0/6"},
		{"cxgb4", "", "2=0/1,4=22/1,5=22/1,6=0/6,4=22/6,2=0/6,6=0/6,0=0/1",
			"0=22/3,1=22/3,2=0/3,6=0/6,1=0/1"},
		{"irdma", "", "1=0/1,2=0/1,4=0/1,0=0/6,1=22/6,2=22/6,0=0/6", "1=22/3,2=22/3,0=0/6,1=22/6"},
		{"irdma", roce, "0=0/0", "4=0/4,3=0/3,0=0/0"},
		{"rxe", roce, "0=0/0", "4=0/4,3=0/3,6=0/6,0=0/0"},
		{"mlx5", roce, "4=22/1,0=0/0", "4=22/3,6=0/6,4=22/6,0=0/0"},
	}
	var args []string
	for i, c := range cards {
		if c.name != "none" {
			c.more += ",profile=" + c.name
		}
		args = append(args, "--device", fmt.Sprintf("card%d,addr=10.%d.0.2/24%s", i, 100+i, c.more))
	}
	d := up(t, nil, args...)
	for i, c := range cards {
		t.Run(c.name+strings.TrimPrefix(c.more, ",transport="), func(t *testing.T) {
			q := *d
			q.T = t
			addr := fmt.Sprintf("10.%d.0.2", 100+i)
			for what, steps := range map[string]string{"fresh": c.fresh, "connected": c.connected} {
				q.startEnv([]string{"VT_SERVER=" + addr, "VT_CLIENT=" + addr, "VT_STEPS=" + steps},
					cProgram(t, "profile_states"), what).succeed(cLimit, "^ok "+what+"$")
			}
		})
	}
}
