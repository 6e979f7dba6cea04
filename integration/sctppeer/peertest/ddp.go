// Package peertest tests ours against a program of package sctppeer, a netstack.SCTP as plain SCTP
// and a vnic.Device by RFC 5043: the same for each SCTP that the program can run on.
package peertest

import (
	"bytes"
	"cmp"
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/vrnic/vrnic/integration/sctppeer"
	"github.com/vrnic/vrnic/internal/needtest"
	"github.com/vrnic/vrnic/netstack/sctp"
	"github.com/vrnic/vrnic/rdma"
	"github.com/vrnic/vrnic/vnic"
	"github.com/vrnic/vrnic/vnic/vnictest"
)

// A Rig is a device and a program that can reach each other.
type Rig struct {
	Ctx    *vnic.Context
	Ours   netip.Addr // the device's
	Theirs string     // the program's
	Start  func(t *testing.T) *sctppeer.Peer
	// NoDial says that the device cannot reach the program before it has been reached.
	NoDial bool
	// MaxSeg is how small chunks Fragments asks for; 0: 200 octets.
	MaxSeg int

	sessions uint16
}

// Patience bounds each wait for the program.
const Patience = time.Minute

// firstPort is where listeners' ports begin. Each session has its own: a device uses an association
// that it still has with a port, and these programs end like crashes.
const firstPort = 7174

type session struct {
	*Rig
	t      *testing.T
	ctx    context.Context
	p      *sctppeer.Peer
	q      *vnictest.Peer
	port   uint16
	stream string
}

func (s *session) do(format string, args ...any) {
	s.t.Helper()
	if err := s.p.Do(s.ctx, format, args...); err != nil {
		s.t.Fatal(err)
	}
}

// said waits for a line of the program and returns the words behind the prefix.
func (s *session) said(prefix string) []string {
	s.t.Helper()
	line, err := s.p.Wait(s.ctx, prefix+" ")
	if err != nil {
		s.t.Fatal(err)
	}
	return strings.Fields(line[len(prefix):])
}

// start makes a QP and starts a program with these settings.
func (r *Rig) start(t *testing.T, set ...string) *session {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 2*Patience)
	t.Cleanup(cancel)
	s := &session{Rig: r, t: t, ctx: ctx, p: r.Start(t), port: firstPort + r.sessions}
	r.sessions++
	t.Cleanup(func() {
		if t.Failed() {
			for _, l := range s.p.Said() {
				t.Logf("peer: %.200s", l)
			}
		}
	})
	s.q = vnictest.NewPeer(t, r.Ctx, vnictest.PeerConfig{})
	for _, x := range set {
		s.do("set %s", x)
	}
	s.do("ddp on")
	return s
}

var (
	private = []byte("what we say")
	theirs  = []byte("what they say")
	// enhanced asks for client-server mode, IRD 4 and ORD 4: RFC 6581, section 9.
	enhanced = []byte{0, 4, 0, 4}
)

// open opens a session: active says that we ask for it. In the enhanced form, revision is 2.
func (s *session) open(active bool, revision uint8) {
	s.t.Helper()
	said, prefix := theirs, ""
	if revision == 2 {
		said, prefix = append(bytes.Clone(enhanced), theirs...), "e"
	}
	param := rdma.ConnParam{PrivateData: private, SCTP: true, IRD: 4, ORD: 4, MPA: rdma.MPAParam{
		Revision: revision, ClientServer: true}}
	var heard []byte
	var err error
	if active {
		s.do("ddp answer accept %x", said)
		s.do("listen %d %s", s.port, s.Theirs)
		s.q.Conn, err = s.Ctx.Connect(s.ctx, s.q.QP, netip.AddrPortFrom(netip.MustParseAddr(s.Theirs),
			s.port), param)
		if err != nil {
			s.t.Fatal(err)
		}
		heard = s.q.Conn.Param().PrivateData
		prefix += "initiate"
	} else {
		l := s.listen()
		defer l.Close()
		s.do("connect %d %v 0 %s", s.port, s.Ours, s.Theirs)
		s.said("up")
		s.do("ddp %sinitiate 3 %x", prefix, said)
		r, err := l.Next(s.ctx)
		if err != nil {
			s.t.Fatal(err)
		}
		heard = r.Param().PrivateData
		if s.q.Conn, err = r.Accept(s.ctx, s.q.QP, param); err != nil {
			s.t.Fatal(err)
		}
		prefix += "accept"
	}
	if !bytes.Equal(heard, theirs) {
		s.t.Errorf("the private data of the peer is %q", heard)
	}
	w := s.said("ddp " + prefix)
	s.stream = w[0]
	if !strings.HasSuffix(w[1], hex.EncodeToString(private)) {
		s.t.Errorf("the peer got private data %s", w[1])
	}
	if revision == 2 && len(w[1]) != 2*(len(private)+4) || revision == 1 && len(w[1]) != 2*len(
		private) {
		s.t.Errorf("the peer got %s in revision %d", w[1], revision)
	}
}

func (s *session) listen() rdma.Listener {
	s.t.Helper()
	l, err := s.Ctx.Listen(netip.AddrPortFrom(s.Ours, s.port), 0)
	if err != nil {
		s.t.Fatal(err)
	}
	return l
}

// pattern fills n octets.
func pattern(n, seed int) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(i*7 + i>>8 + seed)
	}
	return b
}

const theirTag = 0x12345

// move moves data in all ways there are, size octets each.
func (s *session) move(size int) {
	s.t.Helper()
	q := s.q
	s.do("ddp segment 500")
	s.do("ddp memory %#x %d", theirTag, size)
	want := func(what string, got, want []byte) {
		s.t.Helper()
		if !bytes.Equal(got, want) {
			s.t.Errorf("%s: the data is damaged (%d octets of %d)", what, len(got), len(want))
		}
	}

	q.Recv(1, 0, size)
	b := pattern(size, 1)
	// the one that connects sends first: RFC 5044, section 7
	if s.q.Conn.LocalAddr().Port() != s.port {
		copy(q.Buf[size:], b)
		q.Send(2, size, size)
		q.WantSend("a Send", vnictest.Want{ID: 2})
		got, err := hex.DecodeString(s.said("ddp send " + s.stream + " 1")[0])
		if err != nil {
			s.t.Fatal(err)
		}
		want("our Send", got, b)
	}
	s.do("ddp send %s %x", s.stream, b)
	q.WantRecv("the peer's Send", vnictest.Want{ID: 1})
	want("the peer's Send", q.Buf[:size], b)

	b = pattern(size, 2)
	copy(q.Buf[size:], b)
	q.Post(rdma.SendWR{ID: 3, Op: rdma.OpWrite, RKey: theirTag}, size, size)
	q.WantSend("a Write", vnictest.Want{ID: 3})
	for s.said("ddp write " + s.stream)[3] != "last" {
	}
	s.do("ddp dump %#x", theirTag)
	got, err := hex.DecodeString(s.said("ddp dump")[0])
	if err != nil {
		s.t.Fatal(err)
	}
	want("our Write", got, b)

	b = pattern(size, 3)
	s.do("ddp fill %#x %x", theirTag, b)
	clear(q.Buf)
	q.Post(rdma.SendWR{ID: 4, Op: rdma.OpRead, RKey: theirTag}, 0, size)
	q.WantSend("a Read", vnictest.Want{ID: 4})
	want("our Read", q.Buf[:size], b)

	b = pattern(size, 4)
	q.Recv(5, 0, 1)
	s.do("ddp write %s %#x %d %x", s.stream, q.MR.RKey(), q.MR.Addr()+uint64(size), b)
	s.do("ddp send %s 01", s.stream)
	q.WantRecv("the Send behind a Write", vnictest.Want{ID: 5})
	want("the peer's Write", q.Buf[size:2*size], b)

	s.do("ddp read %s %#x 0 %d %#x %d", s.stream, theirTag, size, q.MR.RKey(),
		q.MR.Addr()+uint64(size))
	for s.said("ddp response " + s.stream)[3] != "last" {
	}
	s.do("ddp dump %#x", theirTag)
	if got, err = hex.DecodeString(s.said("ddp dump")[0]); err != nil {
		s.t.Fatal(err)
	}
	want("the peer's Read", got, b)
}

// clean fails the test if the program has found something wrong.
func (s *session) clean() {
	s.t.Helper()
	for _, l := range s.p.Said() {
		if strings.HasPrefix(l, "ddp bad") || strings.HasPrefix(l, "unsent") ||
			strings.HasPrefix(l, "option") {
			s.t.Errorf("the peer says: %s", l)
		}
	}
}

// Sessions is the test of sessions in both roles and forms: set-up with private data, Sends, Writes
// and Reads both ways, and their end by either side.
func (r *Rig) Sessions(t *testing.T) {
	for _, active := range []bool{true, false} {
		if active && r.NoDial {
			continue
		}
		for _, revision := range []uint8{1, 2} {
			for _, weEnd := range []bool{true, false} {
				t.Run(fmt.Sprintf("we connect %v revision %d we end it %v", active, revision, weEnd),
					func(t *testing.T) {
						s := r.start(t, "adapt 1")
						s.open(active, revision)
						if w := s.said("adapt"); w[0] != "1" {
							t.Errorf("the indication is %v", w)
						}
						s.move(5000)
						if weEnd {
							if err := s.q.Conn.Disconnect(); err != nil {
								t.Fatal(err)
							}
							s.said("ddp terminate " + s.stream)
							s.do("ddp terminate %s", s.stream)
						} else {
							s.do("ddp terminate %s", s.stream)
							s.said("ddp terminate " + s.stream)
						}
						if err := s.q.WantDone("a session that was ended"); err != nil {
							t.Errorf("the connection ended by %v", err)
						}
						s.clean()
					})
			}
		}
	}
}

// Fragments is the test of segments that the peer's SCTP cuts into small chunks.
func (r *Rig) Fragments(t *testing.T) {
	s := r.start(t, "adapt 1", fmt.Sprintf("maxseg %d", cmp.Or(r.MaxSeg, 200)))
	s.open(false, 2)
	s.do("ddp segment 1000")
	b := pattern(9500, 5)
	s.q.Recv(1, 0, len(b))
	s.do("ddp send %s %x", s.stream, b)
	s.q.WantRecv("a Send in fragments", vnictest.Want{ID: 1})
	if !bytes.Equal(s.q.Buf[:len(b)], b) {
		t.Error("the data is damaged")
	}
	s.do("ddp terminate %s", s.stream)
	if err := s.q.WantDone("a session that was ended"); err != nil {
		t.Errorf("the connection ended by %v", err)
	}
	s.clean()
}

// Fault is the test of a Write to memory that is not there: an RDMAP Terminate message, then the
// end.
func (r *Rig) Fault(t *testing.T) {
	s := r.start(t, "adapt 1")
	s.open(false, 2)
	s.do("ddp write %s 0xdead00 0 00112233", s.stream)
	// Layer 1 (DDP), type 1 (tagged buffer), code 0 (invalid STag): RFC 5040, section 4.8.
	if w := s.said("ddp fault " + s.stream); !strings.HasPrefix(w[0], "1100") {
		t.Errorf("the Terminate message is %s", w[0])
	}
	s.do("ddp terminate %s", s.stream)
	var e *rdma.TerminateError
	if err := s.q.WantDone("a Write to nowhere"); !errors.As(err, &e) {
		t.Errorf("the connection ended by %v", err)
	}
	s.clean()
}

// Reject is the test of requests that are refused, by either side.
func (r *Rig) Reject(t *testing.T) {
	t.Run("by the peer", func(t *testing.T) {
		if r.NoDial {
			needtest.Skip(t, "the device cannot reach the peer first")
		}
		s := r.start(t, "adapt 1")
		s.do("ddp answer reject %x", theirs)
		s.do("listen %d %s", s.port, s.Theirs)
		_, err := s.Ctx.Connect(s.ctx, s.q.QP, netip.AddrPortFrom(netip.MustParseAddr(s.Theirs), s.port),
			rdma.ConnParam{SCTP: true, MPA: rdma.MPAParam{Revision: 1}})
		var e *rdma.RejectedError
		if !errors.As(err, &e) || !bytes.Equal(e.PrivateData, theirs) {
			t.Errorf("we see %v", err)
		}
	})
	t.Run("by us", func(t *testing.T) {
		s := r.start(t, "adapt 1")
		l := s.listen()
		defer l.Close()
		s.do("connect %d %v 0 %s", s.port, s.Ours, s.Theirs)
		s.said("up")
		s.do("ddp initiate 2 %x", theirs)
		q, err := l.Next(s.ctx)
		if err != nil {
			t.Fatal(err)
		}
		if err := q.Reject(private); err != nil {
			t.Fatal(err)
		}
		if w := s.said("ddp reject 2"); w[0] != hex.EncodeToString(private) {
			t.Errorf("the peer got %v", w)
		}
	})
}

// Restart is the test of a peer that loses all it knows and comes again from the same port: the
// connections over the old association end, and new ones work. again starts it anew.
func (r *Rig) Restart(t *testing.T, again func(t *testing.T)) {
	s := r.start(t, "adapt 1")
	l := s.listen()
	defer l.Close()
	accept := func(stream int) *vnictest.Peer {
		t.Helper()
		s.do("ddp initiate %d -", stream)
		q, err := l.Next(s.ctx)
		if err != nil {
			t.Fatal(err)
		}
		p := vnictest.NewPeer(t, r.Ctx, vnictest.PeerConfig{})
		p.Recv(1, 0, 1)
		if p.Conn, err = q.Accept(s.ctx, p.QP, rdma.ConnParam{MPA: rdma.MPAParam{Revision: 1}}); err !=
			nil {
			t.Fatal(err)
		}
		s.said(fmt.Sprint("ddp accept ", stream))
		s.do("ddp send %d 2a", stream)
		p.WantRecv("a Send", vnictest.Want{ID: 1})
		return p
	}
	connect := func() {
		t.Helper()
		s.do("connect %d %v %d %s", s.port, s.Ours, restartPort, s.Theirs)
		s.said("up")
	}
	connect()
	before := []*vnictest.Peer{accept(0), accept(5)}
	again(t)
	s.p = r.Start(t)
	s.do("set adapt 1")
	s.do("ddp on")
	connect()
	for _, p := range before {
		if err := p.WantDone("its peer has restarted"); err == nil {
			t.Error("the connection ended as if all were well")
		}
		p.WantState("after the end", rdma.QPError)
	}
	accept(5)
	s.clean()
}

// restartPort is the peer's own.
const restartPort = 4321

// Indication is the test of peers without the indication of DDP or with another one: no session
// begins, from neither side, and no message of DDP is sent.
func (r *Rig) Indication(t *testing.T) {
	for name, set := range map[string][]string{"none": nil, "another": {"adapt 7"}} {
		t.Run(name+", we connect", func(t *testing.T) {
			if r.NoDial {
				needtest.Skip(t, "the device cannot reach the peer first")
			}
			s := r.start(t, set...)
			s.do("listen %d %s", s.port, s.Theirs)
			_, err := s.Ctx.Connect(s.ctx, s.q.QP, netip.AddrPortFrom(netip.MustParseAddr(s.Theirs), s.port),
				rdma.ConnParam{SCTP: true})
			if err == nil {
				t.Error("we connected")
			}
			for _, l := range s.p.Said() {
				if strings.HasPrefix(l, "ddp") || strings.HasPrefix(l, "up") {
					t.Errorf("the peer says %s", l)
				}
			}
		})
		t.Run(name+", the peer connects", func(t *testing.T) {
			s := r.start(t, set...)
			l := s.listen()
			defer l.Close()
			// the refusal may have come by then
			_ = s.p.Do(s.ctx, "connect %d %v 0 %s", s.port, s.Ours, s.Theirs)
			// An ABORT with a reason: not one of a closed port.
			if w := s.said("failed"); w[0] != fmt.Sprint(int(sctp.CauseUserAbort)) {
				t.Errorf("the peer was refused with cause %s", w[0])
			}
		})
	}
}
