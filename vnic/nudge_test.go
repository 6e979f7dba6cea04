package vnic_test

import (
	"net/netip"
	"testing"
	"testing/synctest"
	"time"

	"github.com/vrnic/vrnic/iwarp"
	"github.com/vrnic/vrnic/rdma"
	"github.com/vrnic/vrnic/vnic"
	"github.com/vrnic/vrnic/vnic/vnictest"
)

// An initiator reminds a silent responder with zero-length Writes, four times at most, each after
// twice the time, and stops once the peer has said something. siw can overlook what follows its
// Reply until another segment comes (S1). A peer that is not siw, as it takes a Send for an RTR
// (S6), is left alone.
func TestNudge(t *testing.T) {
	const rtr = 20 // octets of the zero-length Write as an FPDU: of the RTR, too
	for _, tt := range []struct {
		name   string
		rtr    iwarp.RTRKinds
		speaks time.Duration // when the peer sends its first FPDU; 0: never
		want   []time.Duration
	}{
		{"silent", iwarp.RTRWrite, 0, []time.Duration{100, 300, 700, 1500}},
		{"silent, Writes and Reads", iwarp.RTRWrite | iwarp.RTRRead, 0, []time.Duration{100, 300,
			700, 1500}},
		{"speaks late", iwarp.RTRWrite, 500 * time.Millisecond, []time.Duration{100, 300}},
		{"speaks at once", iwarp.RTRWrite, time.Millisecond, nil},
		{"takes Sends", iwarp.RTRWrite | iwarp.RTRSend, 0, nil},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				n := vnictest.NewNet()
				d := n.Device(t, "vnic0", []string{"10.0.0.1/24"})
				c := vnictest.Open(t, d, vnic.ContextConfig{})
				at := netip.MustParseAddrPort("10.0.0.2:7")
				l, err := n.Host(at.Addr()).Listen(at, 1)
				if err != nil {
					t.Fatal(err)
				}
				defer l.Close()
				id, r := routed(t, c, at)
				x := vnictest.NewPeer(t, c, vnictest.PeerConfig{})
				if err := id.Connect(x.QP, rdma.ConnParam{}); err != nil {
					t.Fatal(err)
				}
				s, err := l.Accept()
				if err != nil {
					t.Fatal(err)
				}
				defer s.Close()
				cfg := iwarp.DefaultStartConfig()
				cfg.RTR = tt.rtr
				m, err := iwarp.NewResponder(cfg)
				if err != nil {
					t.Fatal(err)
				}
				synctest.Wait()
				s.ReadInto(m)
				if _, err := m.Accept(32, 32, nil); err != nil {
					t.Fatal(err)
				}
				k, _ := s.WriteFrom(m)
				m.Commit(k)
				r.want("accepted", vnic.CMEstablished)

				start := time.Now()
				if tt.speaks > 0 {
					time.AfterFunc(tt.speaks, func() {
						writeAll(t, s, iwarp.AppendFPDU(nil, iwarp.AppendTagged(nil, true, iwarp.OpWrite, 0, 0),
							true))
					})
				}
				var in sink
				synctest.Wait()
				s.ReadInto(&in)
				if len(in.b) != rtr {
					t.Fatalf("%d octets right behind the Reply, want the RTR", len(in.b))
				}
				var got []time.Duration
				for time.Since(start) < 10*time.Second {
					time.Sleep(10 * time.Millisecond)
					synctest.Wait()
					in.b = in.b[:0]
					s.ReadInto(&in)
					switch len(in.b) {
					case 0:
					case rtr:
						got = append(got, time.Since(start)/time.Millisecond)
					default:
						t.Fatalf("%d octets after %v", len(in.b), time.Since(start))
					}
				}
				if len(got) != len(tt.want) {
					t.Fatalf("reminded after %v ms, want %v", got, tt.want)
				}
				for i, w := range tt.want {
					if got[i] < w || got[i] > w+10 {
						t.Errorf("reminded after %v ms, want %v", got, tt.want)
					}
				}
				x.WantState("nothing has happened", rdma.QPRTS)
			})
		})
	}
}
