package vnic_test

import (
	"errors"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"

	"github.com/vrnic/vrnic/rdma"
	"github.com/vrnic/vrnic/vnic"
	"github.com/vrnic/vrnic/vnic/vnictest"
)

// An env is what a test of the suite runs on: two contexts that reach each other, and how.
type env struct {
	t      *testing.T
	a, b   *vnic.Context
	net    *vnictest.Net
	loop   bool
	pipe   bool
	sctp   bool
	staged bool
	moved  bool
}

// A path is a way in which two QPs can be joined.
type path struct {
	name   string
	loop   bool // one device, joined directly
	one    bool // one device, through the network
	pipe   bool // one device, joined directly and then handed over
	moved  bool // one device, joined as pipe says and then brought to the network
	staged bool // b has memory that can block
	sctp   bool
	v6     bool // addresses are IPv6's, where a test names no other
	within bool // both contexts have their handlers called within calls of theirs, as a daemon's have
	mixed  int  // how many messages may overtake one that was sent before
}

// What applications see must be the same on all of them.
var paths = []path{
	{name: "loop", loop: true},
	{name: "loop-staged", loop: true, staged: true, v6: true},
	{name: "pipe", pipe: true, staged: true},
	{name: "moved", moved: true},
	{name: "pipe-moved", pipe: true, moved: true, staged: true, v6: true},
	{name: "wire"},
	{name: "wire-one-device", one: true},
	{name: "wire-within", within: true, v6: true},
	{name: "wire-staged", staged: true},
	{name: "sctp", sctp: true},
	{name: "sctp-mixed", sctp: true, mixed: 8, v6: true},
	{name: "sctp-one-device", sctp: true, one: true},
	{name: "sctp-staged", sctp: true, staged: true, mixed: 3},
}

// onPaths runs f on each path, in a bubble with fake time.
func onPaths(t *testing.T, f func(t *testing.T, e *env), opts ...vnictest.Option) {
	for _, p := range paths {
		t.Run(p.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f(t, newEnv(t, p, opts...))
			})
		})
	}
}

// newEnv makes what a test on p needs.
func newEnv(t *testing.T, p path, opts ...vnictest.Option) *env {
	t.Helper()
	e := &env{t: t, net: vnictest.NewNet(), loop: p.loop, pipe: p.pipe, sctp: p.sctp, staged: p.staged,
		moved: p.moved}
	e.net.SCTP = vnictest.SCTPLink{Reorder: p.mixed, Seed: 1}
	addrs := func(n int) []string {
		a := []string{fmt.Sprintf("10.0.0.%d/24", n), fmt.Sprintf("fd00::%d/64", n)}
		if p.v6 {
			slices.Reverse(a) // peers connect to the first
		}
		return a
	}
	a := e.net.Device(t, "vnic0", addrs(1),
		append(opts, func(c *vnic.Config) { c.ForceWire = p.one })...)
	b := a
	if !p.loop && !p.one && !p.pipe && !p.moved {
		b = e.net.Device(t, "vnic1", addrs(2), opts...)
	}
	e.a = vnictest.Open(t, a, vnic.ContextConfig{Label: "a", InlineEvents: p.within})
	e.b = vnictest.Open(t, b, vnic.ContextConfig{Label: "b", InlineEvents: p.within})
	if p.staged {
		if err := e.b.AllowBlocking(); err != nil {
			t.Fatal(err)
		}
	}
	return e
}

// pair gives two connected peers.
func (e *env) pair(x, y vnictest.PeerConfig) (*vnictest.Peer, *vnictest.Peer) {
	e.t.Helper()
	x.Param.SCTP = e.sctp
	p, q := vnictest.NewQPs(e.t, e.a, e.b, x, y)
	want := "tcp"
	switch {
	case e.local(), e.moved:
		want = "loop"
	case e.sctp:
		want = "sctp"
	}
	if x.Param.Protocol == rdma.ROI {
		want += "+roi"
	}
	if i := p.QP.Info(); i.Transport != want || i.State != "RTS" {
		e.t.Fatalf("the QP is %v over %q, want RTS over %q", i.State, i.Transport, want)
	}
	if e.pipe {
		if err := e.b.HandOver(); err != nil {
			e.t.Fatal(err)
		}
	}
	if e.moved {
		e.move(p)
	}
	return p, q
}

// move has the connection of p, which is within its device, go on over the network.
func (e *env) move(p *vnictest.Peer) {
	e.t.Helper()
	if err := e.a.Device().ToStreams(e.t.Context(), p.QP.Num(), e.net.Within); err != nil {
		e.t.Fatal(err)
	}
}

// local says that the two QPs are joined within their device, and stay so.
func (e *env) local() bool { return e.loop || e.pipe && !e.moved }

func (e *env) plain() (*vnictest.Peer, *vnictest.Peer) {
	e.t.Helper()
	return e.pair(vnictest.PeerConfig{}, vnictest.PeerConfig{})
}

// hold keeps back what the end that accepted sends from now on, or lets it go.
func (e *env) hold(on bool) {
	switch {
	case e.sctp:
		e.net.Assocs()[1].Hold(on)
	case on:
		e.net.Streams()[1].Hold()
	default:
		e.net.Streams()[1].Release()
	}
}

type want = vnictest.Want

const (
	ok    = rdma.WCSuccess
	flush = rdma.WCFlush
)

func fill(b []byte, seed byte) {
	for i := range b {
		b[i] = byte(i*7) + byte(i>>8) + seed
	}
}

// settle waits until nothing moves any more.
func (e *env) settle() { synctest.Wait() }

func isErr(err, target error) bool { return errors.Is(err, target) }

func is(id uint64, s rdma.WCStatus) want { return want{ID: id, Status: s} }
