package main

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"github.com/vrnic/vrnic/rdma"
)

// The two processes of the demo speak this protocol. Each has a region that the other may write
// and read, whose address, key and size go along as private data when they connect. Then one of
// them, first the client, is active and the other passive; a yield swaps them once.
//
//	Send   active: command, then the data as one Send; passive compares
//	Write  active: RDMA Write into passive's region, then command; passive compares
//	Read   active: command; passive fills its region and answers; active RDMA Reads and compares
//
// The data follows from a seed that each command carries, another one for every message. Each
// command has an answer, which says whether the data was right.

const (
	demoMaxSize  = 1 << 20
	demoMessages = 8 // of each kind and size
	demoMsgLen   = 24
	demoRecvs    = 2 // a command and the data of a Send behind it
)

var demoSizes = []int{64, 4 << 10, 64 << 10, demoMaxSize}

// A demoOp is what a command is about; it is also the work request's ID.
type demoOp uint64

const (
	demoSend demoOp = iota + 1
	demoWrite
	demoRead
	demoYield
	demoAnswer
	demoRecv // work request IDs only; the slot is added
)

var demoOpNames = map[demoOp]string{demoSend: "Send", demoWrite: "Write", demoRead: "Read",
	demoYield: "yield", demoAnswer: "answer"}

func (o demoOp) String() string { return demoOpNames[o] }

// A demoMsg is a command or an answer: op, ok (an answer's), size, seed.
type demoMsg struct {
	op   demoOp
	ok   bool
	size int
	seed uint64
}

func (m demoMsg) put(b []byte) {
	clear(b[:demoMsgLen])
	b[0] = byte(m.op)
	if m.ok {
		b[1] = 1
	}
	binary.BigEndian.PutUint32(b[4:], uint32(m.size))
	binary.BigEndian.PutUint64(b[8:], m.seed)
}

func parseDemoMsg(b []byte) (demoMsg, error) {
	if len(b) != demoMsgLen {
		return demoMsg{}, fmt.Errorf("a message of %d octets, want %d", len(b), demoMsgLen)
	}
	m := demoMsg{op: demoOp(b[0]), ok: b[1] == 1, size: int(binary.BigEndian.Uint32(b[4:])),
		seed: binary.BigEndian.Uint64(b[8:])}
	if m.op < demoSend || m.op > demoAnswer || m.size > demoMaxSize {
		return demoMsg{}, fmt.Errorf("a message with op %d, size %d", m.op, m.size)
	}
	return m, nil
}

// demoFill makes b the data of seed (splitmix64, little-endian; sizes are multiples of 8).
func demoFill(b []byte, seed uint64) {
	for i := 0; i+8 <= len(b); i += 8 {
		seed += 0x9e3779b97f4a7c15
		z := seed
		z = (z ^ z>>30) * 0xbf58476d1ce4e5b9
		z = (z ^ z>>27) * 0x94d049bb133111eb
		binary.LittleEndian.PutUint64(b[i:], z^z>>31)
	}
}

// A demoEvent is what a peer tells the demo, as a line of JSON.
type demoEvent struct {
	Event    string         // listening, connected, step, done
	Addr     netip.AddrPort `json:",omitzero"`  // listening
	IRD, ORD uint16         `json:",omitempty"` // connected
	Op       string         `json:",omitempty"` // step: what the active end did, and
	Size     int            `json:",omitempty"` // in octets
	Messages int            `json:",omitempty"` // how many of that size, each verified
	Median   time.Duration  `json:",omitempty"` // of the time to the completion (Read) or the answer
}

// A span is a part of a demoPeer's buffer.
type span struct{ off, n int }

// Where things are in the buffer: the region, which the peer writes and reads and which begins
// at 0; the data of the active end; what is received; messages to send.
const (
	demoDataOff = demoMaxSize * (1 + iota)
	demoSlotOff
	demoCtlOff = demoSlotOff + demoRecvs*demoMaxSize
	demoBufLen = demoCtlOff + demoMsgLen
)

// A demoPeer is one of the two.
type demoPeer struct {
	buf    rdma.Buffer
	pd     rdma.PD
	cq     rdma.CQ
	qp     rdma.QP
	mr     rdma.MR // all of buf
	conn   rdma.Conn
	emit   func(demoEvent)
	remote struct {
		addr uint64
		key  uint32
	}
	seed uint64

	sent map[demoOp]int // completions seen and not waited for
	recv []rdma.WC      // Receives in order
}

func newDemoPeer(dev rdma.Device, seed uint64, emit func(demoEvent)) (p *demoPeer, err error) {
	p = &demoPeer{emit: emit, seed: seed, sent: map[demoOp]int{}}
	defer func() {
		if err != nil {
			p.close()
		}
	}()
	if p.buf, err = dev.AllocBuffer(demoBufLen); err != nil {
		return nil, err
	}
	if p.pd, err = dev.AllocPD(); err != nil {
		return nil, err
	}
	if p.cq, err = dev.CreateCQ(16); err != nil {
		return nil, err
	}
	if p.mr, err = p.pd.RegisterMemory(p.buf.Bytes(),
		rdma.LocalWrite|rdma.RemoteRead|rdma.RemoteWrite); err != nil {
		return nil, err
	}
	p.qp, err = p.pd.CreateQP(rdma.QPConfig{SendCQ: p.cq, RecvCQ: p.cq, MaxSendWR: 8,
		MaxRecvWR: demoRecvs, SignalAll: true})
	if err != nil {
		return nil, err
	}
	for i := range demoRecvs {
		if err := p.postRecv(i); err != nil {
			return nil, err
		}
	}
	return p, nil
}

func (p *demoPeer) close() {
	if p.qp != nil {
		p.qp.Close()
	}
	if p.mr != nil {
		p.mr.Close()
	}
	if p.cq != nil {
		p.cq.Close()
	}
	if p.pd != nil {
		p.pd.Close()
	}
	if p.buf != nil {
		p.buf.Close()
	}
}

// param is our end of the connection: the private data says where region is.
func (p *demoPeer) param() rdma.ConnParam {
	pd := binary.BigEndian.AppendUint64(nil, p.mr.Addr())
	pd = binary.BigEndian.AppendUint32(pd, p.mr.RKey())
	pd = binary.BigEndian.AppendUint32(pd, demoMaxSize)
	return rdma.ConnParam{PrivateData: pd}
}

func (p *demoPeer) connected(conn rdma.Conn, private []byte) error {
	p.conn = conn
	if len(private) < 16 || binary.BigEndian.Uint32(private[12:]) != demoMaxSize {
		return fmt.Errorf("private data %x: want address, key and size of a region", private)
	}
	p.remote.addr, p.remote.key = binary.BigEndian.Uint64(private),
		binary.BigEndian.Uint32(private[8:])
	param := conn.Param()
	p.emit(demoEvent{Event: "connected", IRD: param.IRD, ORD: param.ORD})
	return nil
}

// demoServer is the process that is connected to: it is passive first. It returns when the
// client has disconnected.
func demoServer(ctx context.Context, dev rdma.Device, addr netip.AddrPort,
	emit func(demoEvent)) error {
	p, err := newDemoPeer(dev, 1<<32, emit)
	if err != nil {
		return err
	}
	defer p.close()
	l, err := dev.Listen(addr, 1)
	if err != nil {
		return err
	}
	defer l.Close()
	emit(demoEvent{Event: "listening", Addr: l.Addr()})
	req, err := l.Next(ctx)
	if err != nil {
		return err
	}
	conn, err := req.Accept(ctx, p.qp, p.param())
	if err != nil {
		return fmt.Errorf("accept: %w", err)
	}
	if err := p.connected(conn, req.Param().PrivateData); err != nil {
		return err
	}
	if err := p.passive(ctx); err != nil {
		return err
	}
	if err := p.active(ctx); err != nil {
		return err
	}
	emit(demoEvent{Event: "done"})
	return p.ended(ctx)
}

// demoClient connects to addr and is active first. When all is done it waits for release before
// it disconnects.
func demoClient(ctx context.Context, dev rdma.Device, addr netip.AddrPort, release <-chan struct{},
	emit func(demoEvent)) error {
	p, err := newDemoPeer(dev, 2<<32, emit)
	if err != nil {
		return err
	}
	defer p.close()
	conn, err := dev.Connect(ctx, p.qp, addr, p.param())
	if err != nil {
		return fmt.Errorf("connect to %v: %w", addr, err)
	}
	if err := p.connected(conn, conn.Param().PrivateData); err != nil {
		return err
	}
	if err := p.active(ctx); err != nil {
		return err
	}
	if err := p.passive(ctx); err != nil {
		return err
	}
	emit(demoEvent{Event: "done"})
	select {
	case <-release:
	case <-ctx.Done():
		return ctx.Err()
	}
	if err := conn.Disconnect(); err != nil {
		return fmt.Errorf("disconnect: %w", err)
	}
	return p.ended(ctx)
}

// ended waits for the end of the connection, which is to be a graceful one.
func (p *demoPeer) ended(ctx context.Context) error {
	select {
	case <-p.conn.Done():
		return p.conn.Err()
	case <-ctx.Done():
		return fmt.Errorf("waiting for the end of the connection: %w", ctx.Err())
	}
}

// active moves data of all kinds and sizes, then yields.
func (p *demoPeer) active(ctx context.Context) error {
	for _, op := range []demoOp{demoSend, demoWrite, demoRead} {
		for _, size := range demoSizes {
			var times []time.Duration
			for range demoMessages {
				p.seed++
				d, err := p.move(ctx, demoMsg{op: op, size: size, seed: p.seed})
				if err != nil {
					return fmt.Errorf("%v of %d octets: %w", op, size, err)
				}
				times = append(times, d)
			}
			slices.Sort(times)
			p.emit(demoEvent{Event: "step", Op: op.String(), Size: size, Messages: len(times),
				Median: times[len(times)/2]})
		}
	}
	_, err := p.command(ctx, demoMsg{op: demoYield})
	return err
}

// move has one message move as cmd says, and returns how long that took.
func (p *demoPeer) move(ctx context.Context, cmd demoMsg) (time.Duration, error) {
	mine := span{demoDataOff, cmd.size}
	if cmd.op == demoRead {
		clear(p.bytes(mine))
		if _, err := p.command(ctx, cmd); err != nil {
			return 0, err
		}
		start := time.Now()
		if err := p.post(demoRead, rdma.OpRead, mine); err != nil {
			return 0, err
		}
		if err := p.await(ctx, demoRead); err != nil {
			return 0, err
		}
		d := time.Since(start)
		return d, p.compare(p.bytes(mine), cmd.seed)
	}

	demoFill(p.bytes(mine), cmd.seed)
	start := time.Now()
	if cmd.op == demoWrite {
		if err := p.post(demoWrite, rdma.OpWrite, mine); err != nil {
			return 0, err
		}
	}
	if err := p.sendMsg(ctx, cmd); err != nil {
		return 0, err
	}
	if cmd.op == demoSend {
		if err := p.post(demoSend, rdma.OpSend, mine); err != nil {
			return 0, err
		}
	}
	if err := p.answer(ctx); err != nil {
		return 0, err
	}
	d := time.Since(start)
	return d, p.await(ctx, cmd.op)
}

// command sends cmd and waits for the answer.
func (p *demoPeer) command(ctx context.Context, cmd demoMsg) (demoMsg, error) {
	if err := p.sendMsg(ctx, cmd); err != nil {
		return demoMsg{}, err
	}
	return cmd, p.answer(ctx)
}

func (p *demoPeer) answer(ctx context.Context) error {
	m, err := p.nextMsg(ctx)
	switch {
	case err != nil:
		return err
	case m.op != demoAnswer:
		return fmt.Errorf("a %v came instead of an answer", m.op)
	case !m.ok:
		return errDemoData
	}
	return nil
}

var errDemoData = errors.New("the data arrived changed")

// passive does what the commands say, until a yield.
func (p *demoPeer) passive(ctx context.Context) error {
	for {
		cmd, err := p.nextMsg(ctx)
		if err != nil {
			return err
		}
		region := p.bytes(span{0, cmd.size})
		switch cmd.op {
		case demoSend:
			err = p.nextRecv(ctx, func(b []byte) error {
				if len(b) != cmd.size {
					return fmt.Errorf("a Send of %d octets, want %d", len(b), cmd.size)
				}
				return p.compare(b, cmd.seed)
			})
		case demoWrite:
			err = p.compare(region, cmd.seed)
			clear(region)
		case demoRead:
			demoFill(region, cmd.seed)
		case demoYield:
		default:
			return fmt.Errorf("%v came instead of a command", cmd.op)
		}
		if err != nil && !errors.Is(err, errDemoData) {
			return err
		}
		if err := p.sendMsg(ctx, demoMsg{op: demoAnswer, ok: err == nil}); err != nil {
			return err
		}
		if err != nil || cmd.op == demoYield {
			return err
		}
	}
}

// compare says whether b is the data of seed. It uses no memory that the peer may write.
func (p *demoPeer) compare(b []byte, seed uint64) error {
	var want [512]byte
	for len(b) > 0 {
		n := min(len(b), len(want))
		demoFill(want[:n], seed)
		if !slices.Equal(b[:n], want[:n]) {
			return errDemoData
		}
		b = b[n:]
		seed += uint64(n/8) * 0x9e3779b97f4a7c15
	}
	return nil
}
