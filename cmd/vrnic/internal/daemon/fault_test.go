package daemon_test

import (
	"encoding/json"
	"errors"
	"syscall"
	"testing"

	"github.com/vrnic/vrnic/cmd/vrnic/internal/daemon/daemontest"
	"github.com/vrnic/vrnic/rdma"
	"github.com/vrnic/vrnic/shm"
)

// Each call that can be made to fail does, with the errno that was said, behind as many as were
// said, on that device only, and leaves nothing; how often is told. Behind off none does.
func TestFault(t *testing.T) {
	d := daemontest.Start(t)
	c := d.Dial()
	dev, other := daemontest.Open(t, c, "vrnic0"), daemontest.Open(t, c, "vrnic1")
	e := daemontest.NewEnd(t, dev, 1<<12)
	for call, do := range map[string]func(rdma.Device, *daemontest.End) (interface{ Close() error },
		error){
		"alloc_pd": func(dev rdma.Device, _ *daemontest.End) (interface{ Close() error }, error) {
			return dev.AllocPD()
		},
		"create_cq": func(dev rdma.Device, _ *daemontest.End) (interface{ Close() error }, error) {
			return dev.CreateCQ(10)
		},
		"reg_mr": func(_ rdma.Device, e *daemontest.End) (interface{ Close() error }, error) {
			return e.PD.RegisterMemory(e.Buf.Bytes(), rdma.LocalWrite)
		},
		"alloc_mw": func(_ rdma.Device, e *daemontest.End) (interface{ Close() error }, error) {
			return e.PD.AllocMW(rdma.MWType1)
		},
		"create_srq": func(_ rdma.Device, e *daemontest.End) (interface{ Close() error }, error) {
			return e.PD.CreateSRQ(rdma.SRQConfig{MaxWR: 8, MaxSGE: 1})
		},
		"create_qp": func(_ rdma.Device, e *daemontest.End) (interface{ Close() error }, error) {
			return e.PD.CreateQP(rdma.QPConfig{SendCQ: e.CQ, RecvCQ: e.CQ, MaxSendWR: 8, MaxRecvWR: 8,
				MaxSendSGE: 1, MaxRecvSGE: 1})
		},
	} {
		mustChange(t, d, shm.Set, "fault", "5\nvrnic0 "+call+" ENOSPC after 1 count 2")
		for i, want := range []error{nil, syscall.ENOSPC, syscall.ENOSPC, nil} {
			made, err := do(dev, e)
			if want != nil {
				if !errors.Is(err, want) {
					t.Errorf("%s, call %d: %v, want %v", call, i+1, err, want)
				}
				continue
			}
			if err != nil {
				t.Fatalf("%s, call %d: %v", call, i+1, err)
			}
			if err := made.Close(); err != nil {
				t.Errorf("%s: %v", call, err)
			}
		}
		rows, err := c.List("fault")
		if err != nil || len(rows) != 1 {
			t.Fatalf("%s, %v", rows, err)
		}
		var row struct {
			Dev, Words         string
			Calls, Fired, Seed int
		}
		if err := json.Unmarshal(rows[0], &row); err != nil || row.Dev != "vrnic0" || row.Calls != 4 ||
			row.Fired != 2 || row.Seed != 5 || row.Words != "vrnic0 "+call+" ENOSPC after 1 count 2" {
			t.Errorf("%s: %s, %v", call, rows[0], err)
		}
		mustChange(t, d, shm.Del, "fault", "vrnic0")
	}
	mustChange(t, d, shm.Set, "fault", "5\nvrnic0 alloc_pd EIO")
	if _, err := other.AllocPD(); err != nil {
		t.Errorf("another device: %v", err)
	}
	if _, err := dev.AllocPD(); !errors.Is(err, syscall.EIO) {
		t.Error(err)
	}
	mustChange(t, d, shm.Del, "fault", "")
	if _, err := dev.AllocPD(); err != nil {
		t.Errorf("behind off: %v", err)
	}
	for value, words := range map[string]string{
		"5\nvrnic9 alloc_pd EIO": "no device vrnic9", "x\nvrnic0 alloc_pd EIO": "seed",
		"5": "which fault",
	} {
		wantRefused(t, change(t, d, shm.Set, "fault", value), syscall.EINVAL, words)
	}
	wantRefused(t, change(t, d, shm.Del, "fault", "vrnic0"), syscall.EINVAL, "no faults")
	wantRefused(t, change(t, d, shm.Add, "fault", "5"), syscall.EINVAL, "verb")
}
