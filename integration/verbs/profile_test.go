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
		inline     int // 0: nobody has published it
		deep       syscall.Errno
		noSRQ      int
		send, recv int // the depths of a queue pair that asks for 16 and 20
		cq         int // and that of a completion queue that asks for 16
		resize     syscall.Errno
		says       []string
	}{
		{"siw", "", 80, syscall.EINVAL, 0, 16, 32, 16, syscall.EOPNOTSUPP, []string{`transport:\s+iWARP`,
			`vendor_id:\s+0x626d74`,
			`fw_ver:\s+0\.0\.0`, `max_sge:\s+6\n`, `max_sge_rd:\s+1\n`, `ATOMIC_NONE`,
			`page_size_cap:\s+0x1000\n`, `port_cap_flags:\s+0x00090000`, `max_srq_wr:\s+327680\n`,
			`core clock not supported`, `max_res_rd_atom:\s+13107200\n`}},
		{"cxgb4", "", 280, syscall.E2BIG, 0, 16, 20, 30, syscall.EOPNOTSUPP, []string{`vendor_id:\s+0x1425`, `max_sge:\s+4\n`,
			`max_qp_wr:\s+8190\n`, `max_cqe:\s+65518\n`,
			`vendor_part_id:\s+21520\n`}},
		{"irdma", "", 101, syscall.EINVAL, 1, 127, 31, 16, 0, []string{`transport:\s+iWARP`,
			`vendor_id:\s+0x8086`,
			`device_cap_flags:\s+0x01220000`, `gid_tbl_len:\s+1\n`}},
		{"irdma", ",transport=roce", 101, syscall.EINVAL, 1, 127, 31, 16, 0, []string{`transport:\s+InfiniBand`,
			`device_cap_flags:\s+0x01221000`, `gid_tbl_len:\s+32\n`, `hw_ver:\s+0x2`,
			`max_qp_wr:\s+8127\n`, `max_srq:\s+0\n`, `fw_ver:\s+1\.74`}},
		{"rxe", ",transport=roce", 512, syscall.EINVAL, 0, 16, 32, 31, 0, []string{`vendor_id:\s+0xffffff`,
			`max_sge:\s+32\n`, `max_cqe:\s+32767\n`, `gid_tbl_len:\s+1024\n`, `max_pkeys:\s+64\n`,
			`local_ca_ack_delay:\s+15\n`, `max_msg_sz:\s+0x800000\n`}},
		{"mlx5", ",transport=roce", 0, syscall.EINVAL, 0, 16, 32, 31, 0, []string{`vendor_part_id:\s+4119`,
			`fw_ver:\s+16\.27\.1016`, `max_sge:\s+30\n`,
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
			q.start(cProgram(t, "profile"), name, fmt.Sprint(c.inline), fmt.Sprint(int(c.deep)),
				fmt.Sprint(c.noSRQ), fmt.Sprint(c.send),
				fmt.Sprint(c.recv), fmt.Sprint(c.cq),
				fmt.Sprint(int(c.resize))).succeed(cLimit, "^ok profile$")
		})
	}
}
