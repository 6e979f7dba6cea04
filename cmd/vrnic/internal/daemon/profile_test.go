package daemon_test

import (
	"errors"
	"testing"

	"github.com/vrnic/vrnic/cmd/vrnic/internal/daemon"
	"github.com/vrnic/vrnic/cmd/vrnic/internal/daemon/daemontest"
	"github.com/vrnic/vrnic/rdma"
)

// A program in Go finds on a device what the card that it shows itself as has, and no more: what is
// above is refused, of a queue pair and of what is posted to it.
func TestProfile(t *testing.T) {
	card, err := daemon.ParseDevice("siw0,addr=10.79.0.2/24,profile=siw")
	if err != nil {
		t.Fatal(err)
	}
	d := daemontest.Start(t, func(c *daemon.Config) { c.Devices = append(c.Devices, card) })
	dev := daemontest.Open(t, d.Dial(), "siw0")
	a := dev.Attr()
	if a.MaxSGE != 6 || a.MaxInline != 80 || a.VendorID != 0x626d74 || a.Firmware != "0.0.0" ||
		a.MaxQP != 102400 || a.MaxMW != 0 {
		t.Errorf("attributes %+v, want siw's", a)
	}
	x, y := daemontest.NewEnd(t, dev, 4096), daemontest.NewEnd(t, dev, 4096)
	for what, cfg := range map[string]rdma.QPConfig{
		"seven parts":      {MaxSendSGE: 7},
		"81 octets inline": {MaxInline: 81},
	} {
		cfg.SendCQ, cfg.RecvCQ = x.CQ, x.CQ
		if qp, err := x.PD.CreateQP(cfg); !errors.Is(err, rdma.ErrInvalid) {
			t.Errorf("a queue pair with %s: %v, %v, want %v", what, qp, err, rdma.ErrInvalid)
		}
	}
	if mw, err := x.PD.AllocMW(rdma.MWType1); !errors.Is(err, rdma.ErrUnsupported) {
		t.Errorf("a window: %v, %v, want %v", mw, err, rdma.ErrUnsupported)
	}
	daemontest.Connect(t, x, y, daemontest.Addr(t, dev, false, 7000))
	if err := x.QP.PostSend(&rdma.SendWR{Op: rdma.OpFetchAdd, SGEs: []rdma.SGE{x.SGE(0, 8)},
		RemoteAddr: y.MR.Addr(), RKey: y.MR.RKey()}); !errors.Is(err, rdma.ErrInvalid) &&
		!errors.Is(err, rdma.ErrUnsupported) {
		t.Errorf("an atomic was posted: %v", err)
	}
	parts := make([]rdma.SGE, 7)
	for i := range parts {
		parts[i] = x.SGE(i, 1)
	}
	if err := x.QP.PostSend(&rdma.SendWR{Op: rdma.OpWrite, SGEs: parts, RemoteAddr: y.MR.Addr(),
		RKey: y.MR.RKey()}); !errors.Is(err, rdma.ErrInvalid) {
		t.Errorf("a Write of seven parts was posted: %v", err)
	}
	x.Fill(0, 64, 7)
	x.Write(1, 0, 64, y, 128)
	x.WantOK("a Write", 1, rdma.WCWrite)
	y.Check("what was written", 128, 64, 7)
}
