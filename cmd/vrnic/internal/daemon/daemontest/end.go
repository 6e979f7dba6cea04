package daemontest

import (
	"context"
	"errors"
	"net/netip"
	"testing"
	"time"

	"github.com/vrnic/vrnic/rdma"
)

// callTimeout bounds what a test waits for that must come.
const callTimeout = time.Minute

// An End is a QP with all that it needs: one CQ, one buffer, one MR that covers it with all rights.
type End struct {
	t    testing.TB
	Dev  rdma.Device
	PD   rdma.PD
	CQ   rdma.CQ
	QP   rdma.QP
	Buf  rdma.Buffer
	MR   rdma.MR
	Conn rdma.Conn
}

// NewEnd makes an End on dev with a buffer of size octets. It is closed with dev. change, which
// comes when all but the QP is there, alters what the QP is made of.
func NewEnd(t testing.TB, dev rdma.Device, size int,
	change ...func(e *End, cfg *rdma.QPConfig)) *End {
	t.Helper()
	e := &End{t: t, Dev: dev}
	var err error
	if e.PD, err = dev.AllocPD(); err != nil {
		t.Fatal(err)
	}
	if e.Buf, err = dev.AllocBuffer(size); err != nil {
		t.Fatal(err)
	}
	if e.MR, err = e.PD.RegisterMemory(e.Buf.Bytes(),
		rdma.LocalWrite|rdma.RemoteWrite|rdma.RemoteRead); err != nil {
		t.Fatal(err)
	}
	if e.CQ, err = dev.CreateCQ(256); err != nil {
		t.Fatal(err)
	}
	cfg := rdma.QPConfig{SendCQ: e.CQ, RecvCQ: e.CQ, MaxSendWR: 64, MaxRecvWR: 64, MaxSendSGE: 2,
		MaxRecvSGE: 2, MaxInline: 64}
	for _, f := range change {
		f(e, &cfg)
	}
	if e.QP, err = e.PD.CreateQP(cfg); err != nil {
		t.Fatal(err)
	}
	return e
}

// Connect connects a to b, which accepts at addr: an address of b's device. Port 0 is any. change
// alters what both ends ask for.
func Connect(t testing.TB, a, b *End, addr netip.AddrPort, change ...func(*rdma.ConnParam)) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), callTimeout)
	defer cancel()
	l, err := b.Dev.Listen(addr, 1)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	please, yes := rdma.ConnParam{PrivateData: []byte("please")}, rdma.ConnParam{
		PrivateData: []byte("yes")}
	for _, f := range change {
		f(&please)
		f(&yes)
	}
	accepted := make(chan error, 1)
	go func() {
		req, err := l.Next(ctx)
		if err == nil {
			b.Conn, err = req.Accept(ctx, b.QP, yes)
		}
		accepted <- err
	}()
	a.Conn, err = a.Dev.Connect(ctx, a.QP, l.Addr(), please)
	if err != nil {
		t.Fatalf("connect: %v", err)
	}
	if err := <-accepted; err != nil {
		t.Fatalf("accept: %v", err)
	}
}

// SGE names n octets of e's buffer from off on.
func (e *End) SGE(off, n int) rdma.SGE {
	return rdma.SGE{Addr: e.MR.Addr() + uint64(off), Length: uint32(n), LKey: e.MR.LKey()}
}

// Send, Write and Read post one signaled request; what it names in the peer's buffer starts at
// the offset there.
func (e *End) Send(id uint64, off, n int) {
	e.t.Helper()
	e.Post(&rdma.SendWR{ID: id, Op: rdma.OpSend, Flags: rdma.Signaled, SGEs: []rdma.SGE{
		e.SGE(off, n)}})
}

func (e *End) Write(id uint64, off, n int, peer *End, there int) {
	e.t.Helper()
	e.Post(&rdma.SendWR{ID: id, Op: rdma.OpWrite, Flags: rdma.Signaled, SGEs: []rdma.SGE{
		e.SGE(off, n)},
		RemoteAddr: peer.MR.Addr() + uint64(there), RKey: peer.MR.RKey()})
}

func (e *End) Read(id uint64, off, n int, peer *End, there int) {
	e.t.Helper()
	e.Post(&rdma.SendWR{ID: id, Op: rdma.OpRead, Flags: rdma.Signaled, SGEs: []rdma.SGE{e.SGE(off, n)},
		RemoteAddr: peer.MR.Addr() + uint64(there), RKey: peer.MR.RKey()})
}

// Post posts a send request.
func (e *End) Post(wr *rdma.SendWR) {
	e.t.Helper()
	if err := e.QP.PostSend(wr); err != nil {
		e.t.Fatalf("post %v: %v", wr.Op, err)
	}
}

// Recv posts a receive.
func (e *End) Recv(id uint64, off, n int) {
	e.t.Helper()
	if err := e.QP.PostRecv(&rdma.RecvWR{ID: id, SGEs: []rdma.SGE{e.SGE(off, n)}}); err != nil {
		e.t.Fatalf("post a receive: %v", err)
	}
}

// WC waits for the next completion.
func (e *End) WC(why string) rdma.WC {
	e.t.Helper()
	wc, err := e.NextWC()
	if err != nil {
		e.t.Fatalf("%s: no completion: %v", why, err)
	}
	return wc
}

// NextWC waits for the next completion, as programs do: poll, arm, poll again, wait.
func (e *End) NextWC() (rdma.WC, error) {
	ctx, cancel := context.WithTimeout(context.Background(), callTimeout)
	defer cancel()
	var wc [1]rdma.WC
	for {
		for _, arm := range []bool{true, false} {
			if n, err := e.CQ.Poll(wc[:]); err != nil || n == 1 {
				return wc[0], err
			}
			if !arm {
				break
			}
			if err := e.CQ.Arm(false); err != nil {
				return wc[0], err
			}
		}
		// With the daemon gone, Poll completes what was posted before it fails too.
		if err := e.CQ.Wait(ctx); err != nil && !errors.Is(err, rdma.ErrDeviceGone) {
			return wc[0], err
		}
	}
}

// WantOK waits for the next completion, which must be id's success.
func (e *End) WantOK(why string, id uint64, op rdma.WCOpcode) rdma.WC {
	e.t.Helper()
	wc := e.WC(why)
	if wc.ID != id || wc.Status != rdma.WCSuccess || wc.Op != op {
		e.t.Fatalf("%s: completion %+v (%v), want success of %d, opcode %d", why, wc, wc.Status, id, op)
	}
	return wc
}

// WantStatus waits for the next completion, which must be id's with a status.
func (e *End) WantStatus(why string, id uint64, s rdma.WCStatus) rdma.WC {
	e.t.Helper()
	wc := e.WC(why)
	if wc.ID != id || wc.Status != s {
		e.t.Fatalf("%s: completion %+v (%v), want %v of %d", why, wc, wc.Status, s, id)
	}
	return wc
}

// Fill writes a pattern that depends on seed into n octets of e's buffer; Check compares with it.
func (e *End) Fill(off, n int, seed byte) {
	b := e.Buf.Bytes()[off : off+n]
	for i := range b {
		b[i] = pattern(i, seed)
	}
}

func (e *End) Check(why string, off, n int, seed byte) {
	e.t.Helper()
	b := e.Buf.Bytes()[off : off+n]
	for i := range b {
		if b[i] != pattern(i, seed) {
			e.t.Fatalf("%s: octet %d of %d is %#x, want %#x", why, i, n, b[i], pattern(i, seed))
		}
	}
}

func pattern(i int, seed byte) byte { return byte(i) ^ byte(i>>8)*31 ^ byte(i>>16)*7 ^ seed }
