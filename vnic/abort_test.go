package vnic_test

import (
	"errors"
	"io"
	"testing"
	"testing/synctest"
	"time"

	"github.com/vrnic/vrnic/iwarp"
	"github.com/vrnic/vrnic/iwarp/iwarptest"
	"github.com/vrnic/vrnic/rdma"
	"github.com/vrnic/vrnic/vnic"
	"github.com/vrnic/vrnic/vnic/vnictest"
)

// Whoever gives a connection up has it reset at once: what the peer has not taken is dropped. A QP
// that is destroyed, or whose id is, when all that was posted is complete closes it behind that.
func TestAbortIsReset(t *testing.T) {
	for name, tt := range map[string]struct {
		do     func(p *rawPeer)
		orders bool
	}{
		"Abort":               {func(p *rawPeer) { p.y.QP.Abort() }, false},
		"modify to Error":     {func(p *rawPeer) { p.y.QP.ModifyState(rdma.QPError) }, false},
		"the program is gone": {func(p *rawPeer) { p.y.Ctx.Shutdown() }, false},
		"the device is":       {func(p *rawPeer) { p.d.Close() }, false},
		"destroy the QP":      {func(p *rawPeer) { p.y.QP.Close() }, true},
		"and the program is gone, behind a disconnect": {func(p *rawPeer) {
			p.y.QP.Disconnect()
			p.y.Ctx.Shutdown()
		}, true},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				p := newRawPeer(t)
				p.y.Send(1, 0, 1000)
				p.y.WantSend("TCP has it", is(1, ok))
				tt.do(p)
				synctest.Wait()
				var in sink
				n, err := p.s.ReadInto(&in)
				if err == nil {
					_, err = p.s.ReadInto(&in)
				}
				switch {
				case tt.orders && (n < 1000 || !errors.Is(err, io.EOF)):
					t.Errorf("the peer gets %d octets, then %v", n, err)
				case !tt.orders && (n > 0 || !errors.Is(err, iwarptest.ErrReset)):
					t.Errorf("the peer gets %d octets and %v, want a reset", n, err)
				}
			})
		})
	}
}

// What a Terminate has promised goes first, for as long as the peer may take to answer it. Then the
// connection is reset.
func TestAbortBehindTerminate(t *testing.T) {
	for name, do := range map[string]func(p *rawPeer){
		"Abort":               func(p *rawPeer) { p.y.QP.Abort() },
		"destroy the QP":      func(p *rawPeer) { p.y.QP.Close() },
		"the program is gone": func(p *rawPeer) { p.y.Ctx.Shutdown() },
	} {
		for _, read := range []bool{true, false} {
			t.Run(name, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					p := newRawPeer(t)
					p.send(iwarp.AppendTagged(nil, true, iwarp.OpWrite, 77, 0)) // no octets, no check
					p.send(append(iwarp.AppendTagged(nil, true, iwarp.OpWrite, 77, 0), 1))
					synctest.Wait()
					p.y.WantState("refused", rdma.QPTerminate)
					do(p)
					synctest.Wait()
					if name == "Abort" {
						p.y.WantState("for the program it is over", rdma.QPError)
					}
					if read {
						if c, ok := p.terminate(); !ok || c != iwarp.TermInvalidSTag {
							t.Errorf("the peer gets %v, %t", c, ok)
						}
					}
					time.Sleep(vnic.DefaultTimeouts().Terminate)
					synctest.Wait()
					var in sink
					if n, err := p.s.ReadInto(&in); n > 0 || !errors.Is(err, iwarptest.ErrReset) {
						t.Errorf("then it gets %d octets and %v, want a reset", n, err)
					}
				})
			})
		}
	}
}

// A disconnect that does not get rid of what was posted in time ends in a reset.
func TestDrainTimeoutIsReset(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := vnictest.NewNet()
		n.Link.Buffer = 8 << 10
		c := vnictest.Open(t, n.Device(t, "vnic0", []string{"10.0.0.1/24"}), vnic.ContextConfig{})
		p := rawDial(t, n, c, vnictest.PeerConfig{})
		p.y.Send(1, 0, 60000)
		p.y.QP.Disconnect()
		time.Sleep(vnic.DefaultTimeouts().Drain)
		synctest.Wait()
		p.y.WantState("too late", rdma.QPError)
		var in sink
		if n, err := p.s.ReadInto(&in); n > 0 || !errors.Is(err, iwarptest.ErrReset) {
			t.Errorf("the peer gets %d octets and %v, want a reset", n, err)
		}
	})
}
