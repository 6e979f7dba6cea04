package vnic_test

import (
	"bytes"
	"context"
	"errors"
	"slices"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/vrnic/vrnic/iwarp"
	"github.com/vrnic/vrnic/rdma"
	"github.com/vrnic/vrnic/roi"
	"github.com/vrnic/vrnic/vnic"
	"github.com/vrnic/vrnic/vnic/internal/link/linktest"
	"github.com/vrnic/vrnic/vnic/vnictest"
)

// roiPaths are those on which the protocol differs: a handover to a pipe, which ROI begins with, is
// iWARP's.
var roiPaths = slices.DeleteFunc(slices.Clone(paths), func(p path) bool { return p.pipe })

// withROI are peers that speak rdma.ROI.
func withROI(p rdma.ROIParam) vnictest.PeerConfig {
	return vnictest.PeerConfig{Param: rdma.ConnParam{Protocol: rdma.ROI, ROI: p}}
}

func onROI(t *testing.T, f func(t *testing.T, e *env), opts ...vnictest.Option) {
	for _, p := range roiPaths {
		t.Run(p.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { f(t, newEnv(t, p, opts...)) })
		})
	}
}

// ROI is a link as the others are: ROI-013, ROI-017, ROI-025.
func TestROILinks(t *testing.T) {
	for _, p := range roiPaths {
		t.Run(p.name, func(t *testing.T) {
			linktest.RunROI(t, func(t *testing.T) (x, y *vnictest.Peer) {
				return newEnv(t, p).pair(withROI(rdma.ROIParam{}), withROI(rdma.ROIParam{}))
			})
		})
	}
}

// A receiver that is slow: with iWARP its peer's Sends wait there for as long as a receive may be
// late, and then the connection ends with a Terminate; with ROI they wait at the sender for as long
// as it takes, and none ever finds the receive queue empty: ROI-002.
func TestROISlowReceiver(t *testing.T) {
	onROI(t, func(t *testing.T, e *env) {
		const n = 20
		serve := func(x, y *vnictest.Peer) (sent []want) {
			for i := range uint64(n) {
				x.Send(i, 0, 1000)
				sent = append(sent, is(i, ok))
			}
			y.Recv(100, 0, 1000)
			y.Recv(101, 0, 1000)
			y.WantRecv("posted in time", is(100, ok), is(101, ok))
			time.Sleep(time.Hour) // the program is busy
			return sent
		}
		x, y := e.plain()
		serve(x, y)
		y.WantEvent("iWARP: no receive in time", rdma.EventQPFatal)
		var te *rdma.TerminateError
		if err := x.WantDone("iWARP"); !errors.As(err, &te) || te.Layer != 1 || te.Type != 2 ||
			te.Code != 2 || !te.Remote {
			t.Errorf("iWARP: the connection ended with %v, want the peer's 1/2/02", err)
		}
		x.WantEvent("iWARP: the peer's Terminate", rdma.EventQPFatal)

		x, y = e.pair(withROI(rdma.ROIParam{}), withROI(rdma.ROIParam{}))
		sent := serve(x, y)
		for i := range uint64(n - 2) {
			y.Recv(i, 0, 1000)
			y.WantRecv("ROI, an hour later", is(i, ok))
		}
		x.WantSend("ROI", sent...)
		for _, p := range []*vnictest.Peer{x, y} {
			p.WantState("ROI", rdma.QPRTS)
			if c := p.QP.Info().Counters; c.Stalls+c.TerminatesOut != 0 {
				t.Errorf("ROI: %d Sends found no receive, %d Terminates", c.Stalls, c.TerminatesOut)
			}
		}
	})
}

// Both ends send as fast as they can to receives that are posted one at a time: none is ever
// missing: ROI-006, ROI-032.
func TestROINeverStalls(t *testing.T) {
	onROI(t, func(t *testing.T, e *env) {
		x, y := e.pair(withROI(rdma.ROIParam{}), withROI(rdma.ROIParam{}))
		const n, depth = 300, 16
		ends := []*vnictest.Peer{x, y}
		for _, p := range ends {
			fill(p.Buf[:3000], 1)
			for i := range uint64(depth) {
				p.Recv(i, 4000+3000*int(i%2), 3000)
			}
		}
		for i := range uint64(n) {
			for _, p := range ends {
				p.Send(i, 0, int(i*10))
			}
			for j, p := range ends {
				got := p.WantRecv("a Send", is(i%depth, ok))[0]
				if got.ByteLen != uint32(i*10) {
					t.Fatalf("Send %d has %d octets", i, got.ByteLen)
				}
				if !bytes.Equal(p.Buf[4000+3000*int(i%2):][:i*10], ends[1-j].Buf[:i*10]) {
					t.Fatalf("Send %d differs", i)
				}
				p.Recv(i%depth, 4000+3000*int(i%2), 3000)
				p.WantSend("sent", is(i, ok))
			}
		}
		for _, p := range ends {
			if c := p.QP.Info().Counters; c.Stalls != 0 || c.Sends != n {
				t.Errorf("%d stalls, %d Sends", c.Stalls, c.Sends)
			}
		}
	})
}

// What the two ends agree on is told: ROI-007, ROI-038. A pool that both do without bounds nothing.
func TestROIParam(t *testing.T) {
	onROI(t, func(t *testing.T, e *env) {
		for _, roi := range []rdma.ROIParam{{}, {NoSendCredits: true}, {NoReadCredits: true},
			{NoSendCredits: true, NoReadCredits: true}} {
			l := e.server()
			x := vnictest.NewPeer(t, e.a, vnictest.PeerConfig{})
			y := vnictest.NewPeer(t, e.b, vnictest.PeerConfig{})
			y.Recv(1, 0, 100)
			y.Recv(2, 0, 100)
			param := rdma.ConnParam{Protocol: rdma.ROI, ROI: roi, SCTP: e.sctp, IRD: 5, ORD: 6,
				PrivateData: bytes.Repeat([]byte("q"), 496)}
			done := make(chan error, 1)
			go func() {
				r, err := l.Next(context.Background())
				if err != nil {
					done <- err
					return
				}
				if p := r.Param(); p.Protocol != rdma.ROI || p.ROI != roi ||
					!bytes.Equal(p.PrivateData, param.PrivateData) || p.IRD != 5 || p.ORD != 6 {
					t.Errorf("asked for %+v", p)
				}
				y.Conn, err = r.Accept(context.Background(), y.QP, rdma.ConnParam{Protocol: rdma.ROI,
					ROI: roi, IRD: 3, PrivateData: []byte("welcome")})
				done <- err
			}()
			var err error
			if x.Conn, err = e.a.Connect(context.Background(), x.QP, l.Addr(), param); err != nil {
				t.Fatal(err)
			}
			if err := <-done; err != nil {
				t.Fatal(err)
			}
			ord := uint16(3)
			if roi.NoReadCredits {
				ord = 6 // the other end's IRD is raised to that
			}
			if p := x.Conn.Param(); p.Protocol != rdma.ROI || p.ROI != roi || p.Extensions ||
				string(p.PrivateData) != "welcome" || p.ORD != ord {
				t.Errorf("agreed: %+v", p)
			}
			if p := y.Conn.Param(); p.Protocol != rdma.ROI || p.ROI != roi {
				t.Errorf("accepted: %+v", p)
			}
			x.Send(1, 0, 100)
			x.Write(2, 0, 100, y, 200)
			x.Send(3, 0, 100)
			x.Read(4, 300, 100, y, 200)
			x.WantSend("with these credits", is(1, ok), is(2, ok), is(3, ok), is(4, ok))
			y.WantRecv("with these credits", is(1, ok), is(2, ok))
			l.Close()
			if !roi.NoSendCredits {
				continue
			}
			x.Send(5, 0, 100)
			y.WantEvent("without credits a Send that finds no receive ends the connection",
				rdma.EventQPFatal)
			x.WantEvent("the peer's word", rdma.EventQPFatal)
			if c := y.QP.Info().Counters; c.Stalls != 1 {
				t.Errorf("%d stalls", c.Stalls)
			}
		}
	})
}

// No connection comes of ends that do not agree: ROI-038; nor of credits for the receives of an
// SRQ, whichever end has it: ROI-036. What a program asks for in vain is an error, and its
// QP can be used for something else.
func TestROIRefused(t *testing.T) {
	onROI(t, func(t *testing.T, e *env) {
		roi := rdma.ConnParam{Protocol: rdma.ROI, SCTP: e.sctp}
		none := roi
		none.ROI.NoReadCredits = true
		for _, tt := range []struct {
			name           string
			asked, accepts rdma.ConnParam
			accept         error // of Accept at once; nil: it finds out with the peer, or not at all
		}{
			{"the server speaks iWARP", roi, rdma.ConnParam{}, nil},
			{"the server does without a pool", roi, none, rdma.ErrInvalid},
			{"the client does without a pool", none, roi, rdma.ErrInvalid},
			{"nobody has asked for it", rdma.ConnParam{SCTP: e.sctp}, roi, rdma.ErrInvalid},
		} {
			l := e.server()
			x := vnictest.NewPeer(t, e.a, vnictest.PeerConfig{})
			y := vnictest.NewPeer(t, e.b, vnictest.PeerConfig{})
			done := make(chan error, 1)
			go func() {
				r, err := l.Next(context.Background())
				if err != nil {
					done <- err
					return
				}
				_, err = r.Accept(context.Background(), y.QP, tt.accepts)
				if tt.accept != nil {
					_ = r.Reject(nil)
				}
				done <- err
			}()
			_, err := e.a.Connect(context.Background(), x.QP, l.Addr(), tt.asked)
			accepted := <-done
			if err == nil || tt.accept != nil && !errors.Is(accepted, tt.accept) {
				t.Errorf("%s: connect: %v, accept: %v", tt.name, err, accepted)
			}
			t.Logf("%s: %v", tt.name, err)
			l.Close()
		}

		x := vnictest.NewPeer(t, e.a, vnictest.PeerConfig{})
		at := addr(e.b, 9)
		for name, edit := range map[string]func(p *rdma.ConnParam){
			"markers":            func(p *rdma.ConnParam) { p.MPA.Markers = true },
			"private data":       func(p *rdma.ConnParam) { p.PrivateData = make([]byte, 497) },
			"another protocol":   func(p *rdma.ConnParam) { p.Protocol = 2 },
			"one of the largest": func(p *rdma.ConnParam) { p.Protocol = 255 },
		} {
			p := roi
			edit(&p)
			if _, err := e.a.Connect(context.Background(), x.QP, at, p); !errors.Is(err,
				rdma.ErrInvalid) {
				t.Errorf("%s: %v", name, err)
			}
			x.WantState(name, rdma.QPIdle)
		}
		srq, err := x.PD.NewSRQ(vnic.SRQOptions{SRQConfig: rdma.SRQConfig{MaxWR: 10}})
		if err != nil {
			t.Fatal(err)
		}
		z := vnictest.NewPeer(t, e.a, vnictest.PeerConfig{PD: x.PD, QP: rdma.QPConfig{SRQ: srq}})
		if _, err := e.a.Connect(context.Background(), z.QP, at, roi); !errors.Is(err,
			rdma.ErrUnsupported) {
			t.Errorf("an SRQ: %v", err)
		}
		e.refusesShared(roi)
		// Nobody listens, and that is all.
		if _, err := e.a.Connect(context.Background(), x.QP, at, roi); !errors.Is(err,
			syscall.ECONNREFUSED) {
			t.Errorf("nobody there: %v", err)
		}
	})
}

// refusesShared has a QP with an SRQ accept credits for Sends, which it cannot.
func (e *env) refusesShared(roi rdma.ConnParam) {
	e.t.Helper()
	pd, err := e.b.NewPD()
	if err != nil {
		e.t.Fatal(err)
	}
	srq, err := pd.NewSRQ(vnic.SRQOptions{SRQConfig: rdma.SRQConfig{MaxWR: 10}})
	if err != nil {
		e.t.Fatal(err)
	}
	x := vnictest.NewPeer(e.t, e.a, vnictest.PeerConfig{})
	y := vnictest.NewPeer(e.t, e.b, vnictest.PeerConfig{PD: pd, QP: rdma.QPConfig{SRQ: srq}})
	l := e.server()
	defer l.Close()
	done := make(chan error, 1)
	go func() {
		r, err := l.Next(context.Background())
		if err == nil {
			_, err = r.Accept(context.Background(), y.QP, r.Param())
			_ = r.Reject(nil)
		}
		done <- err
	}()
	_, err = e.a.Connect(context.Background(), x.QP, l.Addr(), roi)
	if accepted := <-done; err == nil || !errors.Is(accepted, rdma.ErrUnsupported) {
		e.t.Errorf("an SRQ that accepts: connect: %v, accept: %v", err, accepted)
	}
	y.WantState("an SRQ that accepts", rdma.QPIdle)
}

// A QP with an SRQ has ROI without credits for Sends.
func TestROISharedReceives(t *testing.T) {
	onROI(t, func(t *testing.T, e *env) {
		pd, err := e.b.NewPD()
		if err != nil {
			t.Fatal(err)
		}
		srq, err := pd.NewSRQ(vnic.SRQOptions{SRQConfig: rdma.SRQConfig{MaxWR: 10}})
		if err != nil {
			t.Fatal(err)
		}
		with := withROI(rdma.ROIParam{NoSendCredits: true})
		shared := with
		shared.PD, shared.QP.SRQ = pd, srq
		x, y := e.pair(with, shared)
		x.Send(1, 0, 100)
		time.Sleep(time.Second)
		if err := srq.PostRecv(&rdma.RecvWR{ID: 2, SGEs: []rdma.SGE{y.SGE(0, 100)}}); err != nil {
			t.Fatal(err)
		}
		x.WantSend("into the pool", is(1, ok))
		y.WantRecv("into the pool", is(2, ok))
	})
}

// A Credit Return that crosses the end of a connection is no fault: ROI-032.
func TestROIEnds(t *testing.T) {
	onROI(t, func(t *testing.T, e *env) {
		if e.loop {
			return // nothing can cross there
		}
		x, y := e.pair(withROI(rdma.ROIParam{}), withROI(rdma.ROIParam{}))
		y.Recv(1, 0, 100)
		x.Send(1, 0, 100)
		x.WantSend("before", is(1, ok))
		y.WantRecv("before", is(1, ok))
		e.hold(true)
		for i := range uint64(8) {
			y.Recv(i, 0, 100)
		}
		e.settle()
		if err := x.Conn.Disconnect(); err != nil {
			t.Fatal(err)
		}
		e.settle()
		e.hold(false)
		for _, p := range []*vnictest.Peer{x, y} {
			if err := p.WantDone("an end in order"); err != nil {
				t.Error(err)
			}
			p.WantState("an end in order", rdma.QPIdle)
		}
	})
}

// The end of a connection does not wait for credits that nobody gives: ROI-002.
func TestROIEndsWithoutCredits(t *testing.T) {
	onROI(t, func(t *testing.T, e *env) {
		for name, end := range map[string]func(x, y *vnictest.Peer) error{
			"the sender disconnects":   func(x, _ *vnictest.Peer) error { return x.Conn.Disconnect() },
			"the receiver disconnects": func(_, y *vnictest.Peer) error { return y.Conn.Disconnect() },
			"the sender aborts":        func(x, _ *vnictest.Peer) error { return x.QP.Abort() },
			"the receiver is closed":   func(_, y *vnictest.Peer) error { return y.QP.Close() },
		} {
			x, y := e.pair(withROI(rdma.ROIParam{}), withROI(rdma.ROIParam{}))
			x.Send(1, 0, 100)
			x.Read(2, 0, 100, y, 0)
			e.settle()
			if err := end(x, y); err != nil {
				t.Fatal(err)
			}
			_ = x.WantDone(name)
			_ = y.WantDone(name)
			x.WantSend(name, is(1, flush), is(2, flush))
		}
		x, _ := e.pair(withROI(rdma.ROIParam{}), withROI(rdma.ROIParam{}))
		x.Send(1, 0, 100)
		e.settle()
		if err := x.QP.Close(); err != nil {
			t.Fatal(err)
		}
	})
}

// A peer is promised no more receives than it can count: ROI-033.
func TestROIManyReceives(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := newEnv(t, paths[0], func(c *vnic.Config) {
			c.Limits.Depth, c.Limits.CQDepth = 1<<17, 1<<18
		})
		many := withROI(rdma.ROIParam{})
		many.QP.MaxRecvWR = 1<<16 + 100
		x, y := e.pair(withROI(rdma.ROIParam{}), many)
		for i := range uint64(many.QP.MaxRecvWR) {
			y.Recv(i, 0, 100)
		}
		for i := range uint64(200) { // each takes credits along
			y.Write(i, 0, 0, x, 0)
			y.WantSend("a Write", is(i, ok))
		}
		e.settle()
		x.WantState("more receives than credits", rdma.QPRTS)
		x.Send(1, 0, 100)
		x.WantSend("more receives than credits", is(1, ok))
	})
}

// A peer that cheats: it sends without a credit, gives more than anybody could, or speaks DDP. Its
// stream ends with the cause, whatever is posted, and nothing of it is delivered: ROI-002, ROI-008,
// ROI-033, ROI-039.
func TestROICheats(t *testing.T) {
	send := func(number uint32) []byte {
		return (&roi.Message{Kind: roi.Send, Final: true, Number: number}).Append(nil)
	}
	grant := (&roi.Message{Kind: roi.CreditReturn, Credits: 255}).Append(nil)
	write := roi.Message{Notify: true, Final: true, Notifying: true}
	for name, tt := range map[string]struct {
		without   bool // flow control, and Reads
		msgs      [][]byte
		delivered rdma.WCStatus
		want      iwarp.TermCode
	}{
		"Sends":             {false, [][]byte{send(0), send(1)}, ok, iwarp.TermNoBuffer},
		"a notifying Write": {false, [][]byte{send(0), write.Append(nil)}, ok, iwarp.TermNoBuffer},
		"a flood of credits": {false, slices.Repeat([][]byte{grant}, 258), flush,
			iwarp.TermRemoteOperation},
		"credits unasked": {true, [][]byte{grant}, flush, iwarp.TermRemoteOperation},
		"a Read, of none": {true, [][]byte{(&roi.Message{Kind: roi.ReadRequest}).Append(nil)}, flush,
			iwarp.TermNoBuffer},
		"DDP": {false, [][]byte{iwarp.AppendTagged(nil, true, iwarp.OpWrite, 0, 0)}, flush,
			iwarp.TermTaggedVersion},
		"DDP, long": {false,
			[][]byte{append(iwarp.AppendTagged(nil, true, iwarp.OpWrite, 1, 0), "data"...)}, flush,
			iwarp.TermTaggedVersion},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				n := vnictest.NewNet()
				c := vnictest.Open(t, n.Device(t, "vnic0", []string{"10.0.0.1/24"}), vnic.ContextConfig{})
				l, lr := listen(t, c, 0)
				s := rawStream(t, n, l.Local())
				cfg := iwarp.DefaultStartConfig()
				cfg.ROI, cfg.ClientServer = true, true
				own := roi.Setup{Sends: !tt.without, Reads: !tt.without}
				if own.Reads {
					own.ReadCredits = 1
				} else {
					cfg.IRD, cfg.ORD = 0, 0
				}
				m, err := iwarp.NewInitiator(cfg, own.Append(nil))
				if err != nil {
					t.Fatal(err)
				}
				k, _ := s.WriteFrom(m)
				m.Commit(k)
				req := lr.want("a request", vnic.CMConnectRequest)[0]
				y := vnictest.NewPeer(t, c, vnictest.PeerConfig{})
				y.Recv(0, 0, 8)
				p := rdma.ConnParam{Protocol: rdma.ROI}
				p.ROI = rdma.ROIParam{NoSendCredits: tt.without, NoReadCredits: tt.without}
				if tt.without {
					p.IRD = rdma.NoReads
				}
				req.ID.SetHandler(nil)
				if err := req.ID.Accept(y.QP, p); err != nil {
					t.Fatal(err)
				}
				synctest.Wait()
				s.ReadInto(m)
				params, err := m.Result()
				if err != nil {
					t.Fatal(err)
				}
				theirs, _, there := roi.ParseSetup(params.PrivateData)
				if want := uint16(1); !there || !tt.without && theirs.SendCredits != want {
					t.Fatalf("the answer has %+v, %t", theirs, there)
				}
				raw := &rawPeer{t: t, s: s, y: y, d: c.Device()}
				raw.send((&roi.Message{Kind: roi.CreditReturn}).Append(nil))
				for _, msg := range tt.msgs {
					raw.send(msg)
				}
				y.WantEvent("a peer that cheats", rdma.EventQPFatal)
				synctest.Wait()
				var last roi.Message
				for b := raw.octets(); len(b) > 0; {
					k := int(b[0])<<8 | int(b[1])
					if last, _, err = roi.Parse(b[2:][:k]); err != nil {
						t.Fatal(err)
					}
					b = b[iwarp.FPDULen(k):]
				}
				if last.Kind != roi.Failure || last.Cause != tt.want {
					t.Errorf("told %+v, want a Failure %v", last, tt.want)
				}
				y.WantRecv("what was before", is(0, tt.delivered))
			})
		})
	}
}

// octets are all that has come.
func (p *rawPeer) octets() []byte {
	var b bytes.Buffer
	for {
		if n, _ := p.s.ReadInto(&b); n == 0 {
			return b.Bytes()
		}
	}
}

// Private data of a program of iWARP are its own, whatever they look like; and an answer of iWARP
// is none of ROI, though it gives back what has come: ROI-038.
func TestROIPrivateData(t *testing.T) {
	alike := (&roi.Setup{Sends: true, SendCredits: 3, Reads: true, ReadCredits: 4}).Append(nil)
	alike = append(alike, "and more"...)
	onROI(t, func(t *testing.T, e *env) {
		for _, protocol := range []rdma.Protocol{rdma.IWARP, rdma.ROI} {
			if protocol == rdma.ROI && e.sctp {
				continue // there it is the association that says which it is
			}
			l := e.server()
			x := vnictest.NewPeer(t, e.a, vnictest.PeerConfig{})
			y := vnictest.NewPeer(t, e.b, vnictest.PeerConfig{})
			done := make(chan rdma.ConnParam, 1)
			go func() {
				var p rdma.ConnParam
				defer func() { done <- p }()
				r, err := l.Next(context.Background())
				if err != nil {
					t.Error(err)
					return
				}
				p = r.Param()
				_, err = r.Accept(context.Background(), y.QP, rdma.ConnParam{PrivateData: alike})
				if protocol == rdma.IWARP && err != nil {
					t.Errorf("accept: %v", err)
				}
			}()
			conn, err := e.a.Connect(context.Background(), x.QP, l.Addr(), rdma.ConnParam{
				Protocol: protocol, SCTP: e.sctp, PrivateData: alike})
			if p := <-done; p.Protocol != protocol || !bytes.Equal(p.PrivateData, alike) {
				t.Errorf("%v: asked for %v with %q", protocol, p.Protocol, p.PrivateData)
			}
			switch {
			case protocol == rdma.ROI:
				if err == nil || !strings.Contains(err.Error(), "does not speak ROI") {
					t.Errorf("an answer of iWARP: %v", err)
				}
			case err != nil:
				t.Errorf("%v: %v", protocol, err)
			default:
				if p := conn.Param(); p.Protocol != protocol || !bytes.Equal(p.PrivateData, alike) {
					t.Errorf("%v: answered %v with %q", protocol, p.Protocol, p.PrivateData)
				}
			}
			l.Close()
		}
	})
}
