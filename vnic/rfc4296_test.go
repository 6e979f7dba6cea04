package vnic_test

import (
	"bytes"
	"context"
	"errors"
	"net/netip"
	"os"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/vrnic/vrnic/rdma"
	"github.com/vrnic/vrnic/vnic"
	"github.com/vrnic/vrnic/vnic/vnictest"
)

// A socket is what RFC 4296 calls one, by the Go interface alone: a connected rdma.QP with what
// goes with it.
type socket struct {
	t    *testing.T
	dev  rdma.Device
	pd   rdma.PD
	cq   rdma.CQ // of both directions: a queue of all indications
	qp   rdma.QP
	mr   rdma.MR
	conn rdma.Conn
}

func must4296[T any](t *testing.T) func(v T, err error) T {
	return func(v T, err error) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
}

const bufferLen = 4096

// socketOn is a socket that is not connected; srq may be nil.
func socketOn(t *testing.T, dev rdma.Device, pd rdma.PD, srq rdma.SRQ) *socket {
	t.Helper()
	s := &socket{t: t, dev: dev, pd: pd}
	if pd == nil {
		s.pd = must4296[rdma.PD](t)(dev.AllocPD())
	}
	s.cq = must4296[rdma.CQ](t)(dev.CreateCQ(256))
	s.mr = must4296[rdma.MR](t)(s.pd.RegisterMemory(make([]byte, bufferLen),
		vnictest.Full|rdma.MWBind))
	s.qp = must4296[rdma.QP](t)(s.pd.CreateQP(rdma.QPConfig{SendCQ: s.cq, RecvCQ: s.cq, MaxSendWR: 64,
		MaxRecvWR: 64, MaxSendSGE: 2, MaxRecvSGE: 2, SignalAll: true, SRQ: srq}))
	return s
}

// join connects x to y.
func join(t *testing.T, x, y *socket, sctp bool) {
	t.Helper()
	at := netip.AddrPortFrom(y.dev.Attr().Addrs[0].Addr(), 0)
	l := must4296[rdma.Listener](t)(y.dev.Listen(at, 0))
	defer l.Close()
	done := make(chan error, 1)
	p := rdma.ConnParam{Extensions: true}
	go func() {
		r, err := l.Next(context.Background())
		if err == nil {
			y.conn, err = r.Accept(context.Background(), y.qp, p)
		}
		done <- err
	}()
	p.SCTP = sctp
	x.conn = must4296[rdma.Conn](t)(x.dev.Connect(context.Background(), x.qp, l.Addr(), p))
	if err := <-done; err != nil {
		t.Fatal(err)
	}
}

func (s *socket) sge(off, n int) rdma.SGE {
	return rdma.SGE{Addr: s.mr.Addr() + uint64(off), Length: uint32(n), LKey: s.mr.LKey()}
}

func (s *socket) post(wr rdma.SendWR, off, n int) {
	s.t.Helper()
	if n > 0 {
		wr.SGEs = []rdma.SGE{s.sge(off, n)}
	}
	if err := s.qp.PostSend(&wr); err != nil {
		s.t.Fatal(err)
	}
}

func (s *socket) recv(id uint64, off, n int) {
	s.t.Helper()
	if err := s.qp.PostRecv(&rdma.RecvWR{ID: id, SGEs: []rdma.SGE{s.sge(off, n)}}); err != nil {
		s.t.Fatal(err)
	}
}

// next is the next indication.
func (s *socket) next() (wc rdma.WC) {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	for one := make([]rdma.WC, 1); ; {
		for range 2 {
			if n, err := s.cq.Poll(one); err != nil {
				s.t.Fatal(err)
			} else if n > 0 {
				return one[0]
			}
			if err := s.cq.Arm(false); err != nil {
				s.t.Fatal(err)
			}
		}
		if err := s.cq.Wait(ctx); err != nil {
			s.t.Fatalf("no indication comes: %v", err)
		}
	}
}

// want is next, which is of id and well.
func (s *socket) want(id uint64, op rdma.WCOpcode) rdma.WC {
	s.t.Helper()
	wc := s.next()
	if wc.ID != id || wc.Op != op || wc.Status != rdma.WCSuccess {
		s.t.Fatalf("indicated is %+v, want %d, %v", wc, id, op)
	}
	return wc
}

// to is op on the peer's buffer at off.
func (s *socket) to(op rdma.Opcode, off int, key uint32) rdma.SendWR {
	return rdma.SendWR{Op: op, RemoteAddr: s.mr.Addr() + uint64(off), RKey: key}
}

// bind binds the window of key to the first octets of s's memory, for Reads.
func (s *socket) bind(key uint32) {
	s.t.Helper()
	s.post(rdma.SendWR{ID: 3, Op: rdma.OpBindMW, RKey: key, RemoteAddr: s.mr.Addr(),
		Range: rdma.MemRange{Addr: s.mr.Addr(), Length: 64, LKey: s.mr.LKey(), Access: rdma.RemoteRead}},
		0, 0)
	s.want(3, rdma.WCBindMW)
}

// refused does what the peer does not let happen.
func (s *socket) refused(wr rdma.SendWR, why string) {
	s.t.Helper()
	s.post(wr, 0, 8)
	if wr.Op == rdma.OpWrite { // its octets may be on their way when it completes
		s.post(rdma.SendWR{Op: rdma.OpRead}, 0, 0)
		if wc := s.next(); wc.Status != rdma.WCSuccess {
			return
		}
	}
	if wc := s.next(); wc.Status == rdma.WCSuccess {
		s.t.Errorf("%s: %v was carried out", why, wr.Op)
	}
}

// A carrier is a transport that the operations are run on.
type carrier struct {
	name string
	roce bool
	sctp bool
}

// operations4296 runs each abstract operation that is there. Those of DDP and of RDMA with one
// calling sequence in Go are one entry.
var operations4296 = map[string]func(t *testing.T, c *carried){
	"xpt_send, xpt_recv": func(t *testing.T, c *carried) {
		x, y := c.pair()
		fill(x.mr.Bytes(), 1)
		x.post(y.to(rdma.OpWrite, 0, y.mr.RKey()), 0, bufferLen) // more than one segment
		x.post(rdma.SendWR{ID: 1, Op: rdma.OpSend}, 0, 0)
		y.recv(2, 0, 0)
		y.want(2, rdma.WCRecv)
		if !bytes.Equal(x.mr.Bytes(), y.mr.Bytes()) {
			t.Error("the octets differ")
		}
	},
	"xpt_max_msize": func(t *testing.T, c *carried) {
		x, _ := c.pair()
		if c.roce {
			a := must4296[rdma.QPAttr](t)(x.qp.Query())
			if n := a.PathMTU; n == 0 {
				t.Error("no path MTU")
			}
		} else if i := x.qp.(*vnic.QP).Info(); i.EMSS < 500 {
			t.Errorf("a segment has %d octets", i.EMSS)
		}
	},
	"ddp_send": send4296, "rdma_send": send4296,
	"ddp_send_ddp": write4296, "rdma_write": write4296,
	"ddp_post_recv, rdma_post_recv": func(t *testing.T, c *carried) {
		x, y := c.pair()
		y.recv(1, 0, 100)
		y.recv(2, 100, 100)
		for i, b := range []byte{7, 8} { // into one after the other
			x.mr.Bytes()[i] = b
			x.post(rdma.SendWR{Op: rdma.OpSend}, i, 1)
		}
		y.want(1, rdma.WCRecv)
		y.want(2, rdma.WCRecv)
		if b := y.mr.Bytes(); b[0] != 7 || b[100] != 8 {
			t.Errorf("received %d and %d", b[0], b[100])
		}
	},
	"ddp_post_recv on several sockets": func(t *testing.T, c *carried) {
		pd := must4296[rdma.PD](t)(c.b.AllocPD())
		srq := must4296[rdma.SRQ](t)(pd.CreateSRQ(rdma.SRQConfig{MaxWR: 8, MaxPerQP: -1}))
		x1, y1 := c.pairOf(pd, srq)
		x2, y2 := c.pairOf(pd, srq)
		for i := range uint64(2) {
			if err := srq.PostRecv(&rdma.RecvWR{ID: i, SGEs: []rdma.SGE{y1.sge(0, 8)}}); err != nil {
				t.Fatal(err)
			}
		}
		for i, p := range [][2]*socket{{x2, y2}, {x1, y1}} { // whoever comes first has the first
			p[0].post(rdma.SendWR{Op: rdma.OpSend}, 0, 8)
			if wc := p[1].want(uint64(i), rdma.WCRecv); wc.QPN == 0 {
				t.Errorf("%+v says not which socket it came by", wc)
			}
		}
	},
	"ddp_recv, rdma_recv": func(t *testing.T, c *carried) {
		x, y := c.pair()
		for i := range uint64(3) {
			y.recv(i, 0, 10)
		}
		for i := range 2 {
			x.post(rdma.SendWR{Op: rdma.OpSend}, 0, i)
		}
		for i := range uint64(2) { // messages, in order, each with its length
			if wc := y.want(i, rdma.WCRecv); wc.ByteLen != uint32(i) {
				t.Errorf("message %d has %d octets", i, wc.ByteLen)
			}
		}
		// and errors, behind them
		x.post(y.to(rdma.OpWrite, 0, y.mr.RKey()+1), 0, 8)
		if wc := y.next(); wc.ID != 2 || wc.Status != rdma.WCFlush {
			t.Errorf("behind an error: %+v", wc)
		}
		ev := must4296[rdma.AsyncEvent](t)(y.dev.NextAsyncEvent(context.Background()))
		if ev.Type != rdma.EventQPAccessErr {
			t.Errorf("the error is told as %v", ev.Type)
		}
		if c.roce {
			return // the connection does not end with its QP there
		}
		<-x.conn.Done()
		var te *rdma.TerminateError
		if err := x.conn.Err(); !errors.As(err, &te) || te.Layer != 1 || te.Type != 1 {
			t.Errorf("the connection has ended with %v", err)
		}
	},
	"ddp_register, rdma_register": func(t *testing.T, c *carried) {
		x, y := c.pair()
		// As often as wanted, overlapping, each with an STag and rights of its own.
		b := y.mr.Bytes()
		reads := must4296[rdma.MR](t)(y.pd.RegisterMemory(b[:100], rdma.RemoteRead))
		writes := must4296[rdma.MR](t)(y.pd.RegisterMemory(b[50:150], rdma.RemoteWrite|rdma.LocalWrite))
		if slices.Contains([]uint32{y.mr.RKey(), writes.RKey()}, reads.RKey()) {
			t.Error("two registrations have one STag")
		}
		x.mr.Bytes()[0] = 99
		x.post(rdma.SendWR{ID: 1, Op: rdma.OpWrite, RemoteAddr: writes.Addr() + 10, RKey: writes.RKey()},
			0, 1)
		x.post(rdma.SendWR{ID: 2, Op: rdma.OpRead, RemoteAddr: reads.Addr() + 60, RKey: reads.RKey()},
			8, 1)
		x.want(1, rdma.WCWrite)
		x.want(2, rdma.WCRead)
		if x.mr.Bytes()[8] != 99 {
			t.Error("an octet written by one registration is not read by the other")
		}
		// For one socket: a window, which another socket of the same PD does not have.
		mw := must4296[rdma.MW](t)(y.pd.AllocMW(rdma.MWType2))
		key := rdma.NextKey(mw.RKey())
		y.bind(key)
		x.post(y.to(rdma.OpRead, 0, key), 0, 8)
		x.want(0, rdma.WCRead)
		x2, _ := c.pairOf(y.pd, nil)
		x2.refused(y.to(rdma.OpRead, 0, key), "by another socket")
		x.refused(rdma.SendWR{Op: rdma.OpWrite, RemoteAddr: reads.Addr(), RKey: reads.RKey()},
			"without the right to")
	},
	"ddp_deregister, rdma_deregister": func(t *testing.T, c *carried) {
		fast := func(x, y *socket) (mr rdma.MR, key uint32) {
			mr = must4296[rdma.MR](t)(y.pd.AllocMR(bufferLen))
			key = rdma.NextKey(mr.RKey())
			y.post(rdma.SendWR{ID: 4, Op: rdma.OpRegMR, RKey: key, RemoteAddr: y.mr.Addr(),
				Range: rdma.MemRange{Addr: y.mr.Addr(), Length: 64, LKey: y.mr.LKey(),
					Access: rdma.RemoteRead}}, 0, 0)
			if wc := y.next(); wc.ID != 4 || wc.Status != rdma.WCSuccess {
				t.Fatalf("%+v", wc)
			}
			return mr, key
		}
		for what, end := range map[string]func(x, y *socket) (key uint32){
			"MR.Close": func(_, y *socket) uint32 {
				mr := must4296[rdma.MR](t)(y.pd.RegisterMemory(y.mr.Bytes(), rdma.RemoteRead))
				if err := mr.Close(); err != nil {
					t.Error(err)
				}
				return mr.RKey()
			},
			"MW.Close": func(x, y *socket) uint32 {
				mw := must4296[rdma.MW](t)(y.pd.AllocMW(rdma.MWType2))
				key := rdma.NextKey(mw.RKey())
				y.bind(key)
				x.post(y.to(rdma.OpRead, 0, key), 0, 8)
				x.want(0, rdma.WCRead)
				if err := mw.Close(); err != nil {
					t.Error(err)
				}
				return key
			},
			"OpLocalInv": func(x, y *socket) uint32 {
				_, key := fast(x, y)
				x.post(y.to(rdma.OpRead, 0, key), 0, 8)
				x.want(0, rdma.WCRead)
				y.post(rdma.SendWR{ID: 5, Op: rdma.OpLocalInv, InvKey: key}, 0, 0)
				y.want(5, rdma.WCLocalInv)
				return key
			},
		} {
			x, y := c.pair()
			x.refused(y.to(rdma.OpRead, 0, end(x, y)), what)
		}
	},
	"rdma_read": func(t *testing.T, c *carried) {
		x, y := c.pair()
		fill(y.mr.Bytes(), 5)
		wr := y.to(rdma.OpRead, 0, y.mr.RKey())
		wr.ID, wr.SGEs = 6, []rdma.SGE{x.sge(1000, 700), x.sge(0, 800)}
		x.post(wr, 0, 0)
		if wc := x.want(6, rdma.WCRead); wc.ByteLen != 1500 {
			t.Errorf("%d octets", wc.ByteLen)
		}
		b := x.mr.Bytes()
		if got := slices.Concat(b[1000:1700], b[:800]); !bytes.Equal(got, y.mr.Bytes()[:1500]) {
			t.Error("the octets differ")
		}
	},
	"several calls at once": func(t *testing.T, c *carried) {
		x, y := c.pair()
		const callers, each = 4, 8
		for i := range uint64(callers * each) {
			y.recv(i, 0, 100)
		}
		var calls sync.WaitGroup
		for i := range callers {
			calls.Go(func() {
				for range each { // it does not wait for the one before
					x.post(rdma.SendWR{ID: uint64(i), Op: rdma.OpSend}, 0, 100)
				}
			})
		}
		calls.Wait()
		var done [callers]int
		for i := range uint64(callers * each) {
			wc := x.next()
			if wc.Status != rdma.WCSuccess {
				t.Fatalf("%+v", wc)
			}
			done[wc.ID]++
			y.want(i, rdma.WCRecv)
		}
		if done != [callers]int{each, each, each, each} {
			t.Errorf("of each caller have completed %v", done)
		}
	},
}

func send4296(t *testing.T, c *carried) {
	x, y := c.pair()
	copy(x.mr.Bytes(), "hello")
	y.recv(1, 10, 100)
	x.post(rdma.SendWR{ID: 2, Op: rdma.OpSend, Flags: rdma.Solicited}, 0, 5)
	x.want(2, rdma.WCSend)
	if wc := y.want(1, rdma.WCRecv); wc.ByteLen != 5 || string(y.mr.Bytes()[10:15]) != "hello" {
		t.Errorf("%d octets: %q", wc.ByteLen, y.mr.Bytes()[10:15])
	}
	// With Invalidate: the peer's registration ends with it.
	mr := must4296[rdma.MR](t)(y.pd.AllocMR(bufferLen))
	key := rdma.NextKey(mr.RKey())
	y.post(rdma.SendWR{ID: 4, Op: rdma.OpRegMR, RKey: key, RemoteAddr: y.mr.Addr(),
		Range: rdma.MemRange{Addr: y.mr.Addr(), Length: 64, LKey: y.mr.LKey(), Access: rdma.RemoteRead}},
		0, 0)
	y.want(4, rdma.WCRegMR)
	y.recv(5, 10, 100)
	x.post(rdma.SendWR{ID: 6, Op: rdma.OpSendInv, InvKey: key}, 0, 5)
	x.want(6, rdma.WCSend)
	if wc := y.want(5, rdma.WCRecv); wc.Flags&rdma.WCWithInv == 0 || wc.Imm != key {
		t.Errorf("%+v, want that %#x was invalidated", wc, key)
	}
	x.refused(y.to(rdma.OpRead, 0, key), "invalidated")
}

func write4296(t *testing.T, c *carried) {
	x, y := c.pair()
	copy(x.mr.Bytes(), "placed")
	x.post(y.to(rdma.OpWrite, 20, y.mr.RKey()), 0, 6)
	wr := y.to(rdma.OpWriteImm, 30, y.mr.RKey()) // and with notify
	wr.ID, wr.Imm = 1, 42
	y.recv(2, 0, 0)
	x.post(wr, 0, 6)
	x.want(0, rdma.WCWrite)
	x.want(1, rdma.WCWrite)
	if wc := y.want(2, rdma.WCRecvImm); wc.Imm != 42 {
		t.Errorf("told %d", wc.Imm)
	}
	if b := y.mr.Bytes(); string(b[20:26]) != "placed" || string(b[30:36]) != "placed" {
		t.Errorf("%q", b[20:36])
	}
}

// A carried operation has devices that reach each other by its carrier.
type carried struct {
	carrier
	t    *testing.T
	a, b rdma.Device
}

func (c *carried) pair() (x, y *socket) { return c.pairOf(nil, nil) }

// pairOf is a pair whose second socket has pd, and takes what it receives from srq; nil: its own.
func (c *carried) pairOf(pd rdma.PD, srq rdma.SRQ) (x, y *socket) {
	c.t.Helper()
	x, y = socketOn(c.t, c.a, nil, nil), socketOn(c.t, c.b, pd, srq)
	join(c.t, x, y, c.sctp)
	return x, y
}

// Each abstract operation of RFC 4296 that docs/rfc4296.md has in Go is run through the Go
// interface on each transport; the table there and the one here are the same.
func TestRFC4296(t *testing.T) {
	carriers := []carrier{{name: "TCP"}, {name: "SCTP", sctp: true}, {name: "RoCE", roce: true}}
	for _, c := range carriers {
		t.Run(c.name, func(t *testing.T) {
			for name, run := range operations4296 {
				t.Run(name, func(t *testing.T) {
					synctest.Test(t, func(t *testing.T) {
						n := newRoCENet()
						var opts []vnictest.Option
						if c.roce {
							opts = append(opts, vnictest.RoCE)
						}
						a, b := n.Pair(t, opts...)
						run(t, &carried{c, t, vnictest.Open(t, a, vnic.ContextConfig{}),
							vnictest.Open(t, b, vnic.ContextConfig{})})
					})
				})
			}
		})
	}
	text, err := os.ReadFile("../docs/rfc4296.md")
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(text), "## Operations")
	table, _, _ := strings.Cut(rest, "## Rules")
	rows := 0
	for _, row := range regexp.MustCompile(`(?m)^\| ([^|]+) \| (yes|near|no) \|`).
		FindAllStringSubmatch(table, -1) {
		rows++
		name := strings.ReplaceAll(row[1], "`", "")
		if _, there := operations4296[name]; there == (row[2] == "no") {
			t.Errorf("docs/rfc4296.md has %q as %s, and it is run: %t", name, row[2], there)
		}
	}
	if want := len(operations4296) + 1; rows != want { // one that is not offered
		t.Errorf("docs/rfc4296.md has %d operations, want %d", rows, want)
	}
}
