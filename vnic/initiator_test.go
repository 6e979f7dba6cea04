package vnic_test

import (
	"bytes"
	"context"
	"encoding/hex"
	"errors"
	"io"
	"net/netip"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/vrnic/vrnic/iwarp"
	"github.com/vrnic/vrnic/rdma"
	"github.com/vrnic/vrnic/vnic"
	"github.com/vrnic/vrnic/vnic/vnictest"
)

// A rawResponder has taken the Request of x by hand and can answer it with anything.
type rawResponder struct {
	t       *testing.T
	s       iwarp.Stream
	request []byte
	x       *vnictest.Peer
	id      *vnic.CMID
	r       *recorder
}

func newRawResponder(t *testing.T, p rdma.ConnParam) *rawResponder {
	t.Helper()
	n := vnictest.NewNet()
	c := vnictest.Open(t, n.Device(t, "vnic0", []string{"10.0.0.1/24"}), vnic.ContextConfig{})
	at := netip.MustParseAddrPort("10.0.0.2:7")
	l, err := n.Host(at.Addr()).Listen(at, 1)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	w := &rawResponder{t: t, x: vnictest.NewPeer(t, c, vnictest.PeerConfig{})}
	w.id, w.r = routed(t, c, at)
	if err := w.id.Connect(w.x.QP, p); err != nil {
		t.Fatal(err)
	}
	if w.s, err = l.Accept(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { w.s.Close() })
	synctest.Wait()
	w.request, _ = w.read()
	return w
}

// read takes what x's end has sent, and says whether it is closed.
func (w *rawResponder) read() (b []byte, closed bool) {
	w.t.Helper()
	synctest.Wait()
	var in sink
	for {
		n, err := w.s.ReadInto(&in)
		if n == 0 {
			return in.b, err != nil
		}
	}
}

const replyKey = "4d504120494420526570204672616d65"

func octets(s string) []byte {
	b, err := hex.DecodeString(strings.ReplaceAll(s, " ", ""))
	if err != nil {
		panic(err)
	}
	return b
}

// What a Responder can answer that is no acceptance, or none that will do: nothing but a Terminate
// follows the Request, TCP is closed, and the program is told. MPA-060, 061, 075, 081, 082;
// EMPA-014, 016, 024, 040, 048, 050.
func TestBadReplies(t *testing.T) {
	const (
		term6 = "00164147000000000000000200000001000000002006000065 40fb1b"
		term7 = "0016414700000000000000020000000100000000200700001bd2babe"
	)
	for _, tt := range []struct {
		name   string
		reply  string
		sends  string
		typ    vnic.CMEventType
		status syscall.Errno
	}{
		{"closed without a Reply", "", "", vnic.CMRejected, syscall.ECONNRESET},
		{"a Request", strings.Replace(replyKey, "526570", "526571", 1) + "50 02 0004 8020 8020", "",
			vnic.CMConnectError, syscall.EPROTO},
		{"wrong Key", "00" + replyKey[2:] + "50 02 0004 8020 8020", "", vnic.CMConnectError,
			syscall.EPROTO},
		{"PD_Length 600", replyKey + "50 02 0258 8020 8020", "", vnic.CMConnectError, syscall.EPROTO},
		{"plain Reply", replyKey + "40 02 0000", "", vnic.CMConnectError, syscall.EPROTO},
		{"rejected", replyKey + "70 02 0006 8020 8020 6e6f", "", vnic.CMRejected, syscall.ECONNRESET},
		{"wants 16000 Reads", replyKey + "50 02 0004 8020 be80", term6, vnic.CMConnectError,
			syscall.EPROTO},
		{"no kind of RTR", replyKey + "50 02 0004 8020 0020", term7, vnic.CMConnectError, syscall.EPROTO},
		{"CRCs not confirmed", replyKey + "10 02 0004 8020 8020",
			"0016414700000000000000020000000100000000200500001680d5f1", vnic.CMConnectError, syscall.EPROTO},
		{"A=0", replyKey + "50 02 0004 0020 8020", term7, vnic.CMConnectError, syscall.EPROTO},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newRawResponder(t, rdma.ConnParam{MPA: rdma.MPAParam{CRC: rdma.CRCRequired}})
				if !bytes.Equal(w.request, octets(strings.Replace(replyKey, "526570", "526571", 1)+
					"50 02 0004 c020 c020")) {
					t.Errorf("the Request is %x", w.request)
				}
				if tt.reply == "" {
					w.s.CloseWrite()
				} else {
					writeAll(t, w.s, octets(tt.reply))
				}
				ev := w.r.want("it comes to nothing", tt.typ)[0]
				if ev.Status != -int32(tt.status) {
					t.Errorf("status %d (%v), want %v", ev.Status, ev.Err, tt.status)
				}
				if tt.name == "rejected" && string(ev.Param.PrivateData) != "no" {
					t.Errorf("private data %q", ev.Param.PrivateData)
				}
				if b, closed := w.read(); !bytes.Equal(b, octets(tt.sends)) || !closed {
					t.Errorf("sent %x, closed: %t; want %s and the end", b, closed, tt.sends)
				}
			})
		})
	}
}

// No Reply, or one that takes too long: nothing follows the Request, and after 10 s, however many
// octets have come, it is over. MPA-080, 086.
func TestNoReply(t *testing.T) {
	for name, every := range map[string]time.Duration{"silence": 0, "an octet a second": time.Second} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newRawResponder(t, rdma.ConnParam{})
				start := time.Now()
				reply := octets(replyKey + "50 02 0004 8020 8020")
				for time.Since(start) < 9*time.Second {
					time.Sleep(time.Second)
					if every > 0 {
						writeAll(t, w.s, reply[:1])
						reply = reply[1:]
					}
					w.r.want("not yet")
					if b, closed := w.read(); len(b) > 0 || closed {
						t.Fatalf("sent %x, closed: %t", b, closed)
					}
				}
				time.Sleep(time.Second - 1)
				w.r.want("not before its time")
				time.Sleep(time.Nanosecond)
				if ev := w.r.want("in time", vnic.CMUnreachable)[0]; ev.Status != -int32(syscall.ETIMEDOUT) {
					t.Errorf("status %d", ev.Status)
				}
				if b, closed := w.read(); len(b) > 0 || !closed {
					t.Errorf("sent %x, closed: %t", b, closed)
				}
			})
		})
	}
}

// The program looks at what the Reply brings and closes: a FIN, and not one FPDU. MPA-085.
func TestCloseOnReply(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newRawResponder(t, rdma.ConnParam{MPA: rdma.MPAParam{ClientServer: true}})
		var got []byte
		w.id.SetHandler(func(ev vnic.CMEvent) {
			if ev.Type == vnic.CMEstablished {
				got = ev.Param.PrivateData
				ev.ID.Disconnect()
			}
		})
		writeAll(t, w.s, octets(replyKey+"50 02 0006 0020 0020 6e6f"))
		var in sink
		synctest.Wait()
		if n, err := w.s.ReadInto(&in); n > 0 || !errors.Is(err, io.EOF) {
			t.Errorf("sent %x, %v; want a FIN", in.b, err)
		}
		if string(got) != "no" {
			t.Errorf("private data %q", got)
		}
	})
}

// M=1 of a peer, as Responder and as Initiator: what we send begins with a Marker. MPA-019, 022.
func TestMarkersForPeer(t *testing.T) {
	rtr := "00000000 000e c140 00000001 0000000000000000"
	synctest.Test(t, func(t *testing.T) {
		w := newRawResponder(t, rdma.ConnParam{})
		writeAll(t, w.s, octets(replyKey+"d0 02 0004 8020 8020"))
		w.r.want("accepted", vnic.CMEstablished)
		if b, _ := w.read(); len(b) != 24 || !bytes.Equal(b[:20], octets(rtr)) {
			t.Errorf("sent %x, want %s and a CRC", b, rtr)
		}
	})
	synctest.Test(t, func(t *testing.T) {
		n := vnictest.NewNet()
		c := vnictest.Open(t, n.Device(t, "vnic0", []string{"10.0.0.1/24"}), vnic.ContextConfig{})
		l, lr := listen(t, c, 0)
		s := rawStream(t, n, l.Local())
		writeAll(t, s, octets("4d504120494420526571204672616d65 c0 01 0000"))
		req := lr.want("a request", vnic.CMConnectRequest)[0]
		y := vnictest.NewPeer(t, c, vnictest.PeerConfig{})
		if err := req.ID.Accept(y.QP, rdma.ConnParam{}); err != nil {
			t.Fatal(err)
		}
		lr.want("accepted", vnic.CMEstablished)
		y.Send(1, 0, 8)
		var in sink
		synctest.Wait()
		s.ReadInto(&in)
		if !bytes.Equal(in.b, octets(replyKey+"40 01 0000")) {
			t.Fatalf("sent %x, want the Reply", in.b) // MPA-084
		}
		writeAll(t, s, iwarp.AppendFPDU(nil, iwarp.AppendTagged(nil, true, iwarp.OpWrite, 0, 0), true))
		in.b = nil
		synctest.Wait()
		s.ReadInto(&in)
		want := iwarp.AppendMarkedFPDU(nil, append(iwarp.AppendUntagged(nil, true, iwarp.OpSend, 0, 1, 0),
			make([]byte, 8)...), true, 0)
		if !bytes.Equal(in.b, want) {
			t.Errorf("sent %x\nwant %x", in.b, want)
		}
	})
}

// A request is not accepted without a QP; it can be accepted or rejected then. MPA-053.
func TestAcceptWithoutQP(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := vnictest.NewNet()
		c := vnictest.Open(t, n.Device(t, "vnic0", []string{"10.0.0.1/24"}), vnic.ContextConfig{})
		l, err := c.Listen(netip.MustParseAddrPort("10.0.0.1:7"), 0)
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		s := rawStream(t, n, l.Addr())
		writeAll(t, s, octets("4d504120494420526571204672616d65 40 01 0000"))
		r, err := l.Next(context.Background())
		if err != nil {
			t.Fatal(err)
		}
		if _, err := r.Accept(context.Background(), nil, rdma.ConnParam{}); !errors.Is(err,
			rdma.ErrInvalid) {
			t.Errorf("accept: %v", err)
		}
		var in sink
		synctest.Wait()
		if n, err := s.ReadInto(&in); n > 0 || err != nil {
			t.Errorf("sent %x, %v", in.b, err)
		}
		if err := r.Reject(nil); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		if s.ReadInto(&in); !bytes.Equal(in.b, octets(replyKey+"60 01 0000")) {
			t.Errorf("sent %x, want a rejection", in.b)
		}
	})
}
