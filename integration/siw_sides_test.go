package integration

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/vrnic/vrnic/integration/peer"
	"github.com/vrnic/vrnic/rdma"
)

// A side is one end of a connection: vrnic's, through the rings of a daemon, or siw's, through
// the probe in the guest. A method that cannot do its work panics with a fault, which
// ends the cell of the matrix that it is for.
type side interface {
	String() string
	// region registers size octets; those of PD 1 are out of reach for every connection.
	region(size int, access rdma.Access, pd int) *region
	// lend gives a key to r that the peer of this connection may invalidate.
	lend(r *region, access rdma.Access) uint32
	fill(r *region, off, n int, seed uint64)
	check(r *region, off, n int, seed uint64)
	recv(id uint64, r *region, off, n int)
	post(w work)
	// poll waits for n completions and returns fewer if limit ends first.
	poll(n int, limit time.Duration) []done
	disconnect()
	abort()
	// ended waits for the connection's end.
	ended(limit time.Duration)
	// close gives back all that the side has made.
	close()
}

// A region is registered memory of a side.
type region struct {
	addr uint64
	key  uint32
	size int

	vrnic rdma.MR
	buf   rdma.Buffer
	siw   string // the probe's number
}

// A work is a request for the send queue, of n octets at off of a region of the side's own.
type work struct {
	id     uint64
	op     rdma.Opcode
	flags  rdma.SendFlags // besides Signaled
	r      *region
	off, n int
	addr   uint64 // Write, Read, atomics
	key    uint32 // Write, Read, SendInv, atomics

	imm           uint32        // with immediate data
	compare, swap uint64        // atomics; compare is what is added, too
	to            rdma.Datagram // of a datagram
}

// A done is a completion.
type done struct {
	id     uint64
	status rdma.WCStatus
	op     rdma.WCOpcode
	n      int

	invalidated uint32 // by vrnic's peer
	imm         uint32
	from        uint32 // whose datagram it is
}

// A fault is why a cell failed.
type fault struct{ err error }

// must ends the cell if err is not nil.
func must(err error) {
	if err != nil {
		panic(fault{err})
	}
}

func failf(format string, args ...any) { panic(fault{fmt.Errorf(format, args...)}) }

// guarded runs f and returns its fault.
func guarded(f func()) (err error) {
	defer func() {
		switch p := recover().(type) {
		case nil:
		case fault:
			err = p.err
		default:
			panic(p)
		}
	}()
	f()
	return nil
}

// pattern is what the data of a seed is made of: octet i is octet i%8, lowest first, of number i/8.
func pattern(seed uint64, i uint64) uint64 {
	z := seed + (i+1)*0x9e3779b97f4a7c15
	z = (z ^ z>>30) * 0xbf58476d1ce4e5b9
	z = (z ^ z>>27) * 0x94d049bb133111eb
	return z ^ z>>31
}

func fillPattern(b []byte, seed uint64) {
	for i := uint64(0); len(b) > 0; i++ {
		var word [8]byte
		binary.LittleEndian.PutUint64(word[:], pattern(seed, i))
		b = b[copy(b, word[:]):]
	}
}

// vrnicSide is an end on a device of the daemon.
type vrnicSide struct {
	ctx  context.Context
	dev  rdma.Device
	pds  [2]rdma.PD
	cq   rdma.CQ
	qp   rdma.QP
	conn rdma.Conn
	mrs  []*region
	mws  []rdma.MW
	ahs  []rdma.AH
}

// depth is that of the queues of either side, as in the probe.
const depth = 512

func newVrnicSide(ctx context.Context, dev rdma.Device, kind rdma.QPType) *vrnicSide {
	s := &vrnicSide{ctx: ctx, dev: dev}
	var err error
	for i := range s.pds {
		s.pds[i], err = dev.AllocPD()
		must(err)
	}
	s.cq, err = dev.CreateCQ(2 * depth)
	must(err)
	s.qp, err = s.pds[0].CreateQP(rdma.QPConfig{SendCQ: s.cq, RecvCQ: s.cq, MaxSendWR: depth,
		MaxRecvWR: depth, Type: kind})
	must(err)
	return s
}

func (s *vrnicSide) String() string { return "vrnic" }

func (s *vrnicSide) close() {
	if s.qp != nil {
		must(s.qp.Close())
	}
	for _, w := range s.mws {
		must(w.Close())
	}
	for _, ah := range s.ahs {
		must(ah.Close())
	}
	for _, r := range s.mrs {
		must(errors.Join(r.vrnic.Close(), r.buf.Close()))
	}
	if s.cq != nil {
		must(s.cq.Close())
	}
	for _, pd := range s.pds {
		if pd != nil {
			must(pd.Close())
		}
	}
}

func (s *vrnicSide) region(size int, access rdma.Access, pd int) *region {
	buf, err := s.dev.AllocBuffer(size)
	must(err)
	mr, err := s.pds[pd].RegisterMemory(buf.Bytes(), access)
	must(err)
	r := &region{addr: mr.Addr(), key: mr.RKey(), size: size, vrnic: mr, buf: buf}
	s.mrs = append(s.mrs, r)
	return r
}

// lend binds a window: peers cannot invalidate a region itself.
func (s *vrnicSide) lend(r *region, access rdma.Access) uint32 {
	w, err := s.pds[0].AllocMW(rdma.MWType2)
	must(err)
	s.mws = append(s.mws, w)
	const id = 1 << 33
	wr := rdma.SendWR{ID: id, Op: rdma.OpBindMW, Flags: rdma.Signaled, RKey: rdma.NextKey(w.RKey()),
		RemoteAddr: r.addr,
		Range: rdma.MemRange{Addr: r.addr, Length: uint64(r.size), LKey: r.vrnic.LKey(),
			Access: access}}
	must(s.qp.PostSend(&wr))
	if got := s.poll(1, doneLimit); len(got) != 1 || got[0].id != id ||
		got[0].status != rdma.WCSuccess {
		failf("vrnic: binding a window has completed as %+v", got)
	}
	return wr.RKey
}

func (s *vrnicSide) fill(r *region, off, n int, seed uint64) {
	fillPattern(r.buf.Bytes()[off:off+n], seed)
}

func (s *vrnicSide) check(r *region, off, n int, seed uint64) {
	want := make([]byte, n)
	fillPattern(want, seed)
	got := r.buf.Bytes()[off : off+n]
	if slices.Equal(got, want) {
		return
	}
	for i := range got {
		if got[i] != want[i] {
			failf("vrnic: octet %d of %d is %02x, want %02x", i, n, got[i], want[i])
		}
	}
}

func (s *vrnicSide) sge(r *region, off, n int) []rdma.SGE {
	return []rdma.SGE{{Addr: r.addr + uint64(off), Length: uint32(n), LKey: r.vrnic.LKey()}}
}

func (s *vrnicSide) recv(id uint64, r *region, off, n int) {
	must(s.qp.PostRecv(&rdma.RecvWR{ID: id, SGEs: s.sge(r, off, n)}))
}

func (s *vrnicSide) post(w work) {
	must(s.qp.PostSend(&rdma.SendWR{ID: w.id, Op: w.op, Flags: rdma.Signaled | w.flags,
		SGEs:       s.sge(w.r, w.off, w.n),
		RemoteAddr: w.addr, RKey: w.key, InvKey: w.key, Imm: w.imm, To: w.to,
		Atomic: rdma.AtomicArgs{CompareAdd: w.compare, Swap: w.swap}}))
}

func (s *vrnicSide) poll(n int, limit time.Duration) (out []done) {
	ctx, cancel := context.WithTimeout(s.ctx, limit)
	defer cancel()
	wc := make([]rdma.WC, 16)
	for armed := false; len(out) < n; {
		got, err := s.cq.Poll(wc[:min(len(wc), n-len(out))])
		must(err)
		for _, w := range wc[:got] {
			d := done{id: w.ID, status: w.Status, op: w.Op, n: int(w.ByteLen)}
			switch {
			case w.Flags&rdma.WCWithInv != 0:
				d.invalidated = w.Imm
			case w.Flags&rdma.WCWithImm != 0:
				d.imm = w.Imm
			}
			d.from = w.SrcQP
			out = append(out, d)
		}
		switch {
		case got > 0:
			armed = false
		case !armed:
			must(s.cq.Arm(false))
			armed = true
		default:
			if err := s.cq.Wait(ctx); err != nil {
				must(s.ctx.Err())
				return out
			}
			armed = false
		}
	}
	return out
}

func (s *vrnicSide) disconnect() { must(s.conn.Disconnect()) }
func (s *vrnicSide) abort()      { must(s.qp.Abort()) }

func (s *vrnicSide) ended(limit time.Duration) {
	select {
	case <-s.conn.Done():
	case <-time.After(limit):
		failf("vrnic: still connected after %v", limit)
	}
}

// siwSide is an end in the guest, on a device of siw or of rxe.
type siwSide struct {
	ctx  context.Context
	p    *peer.Probe
	conn string // the probe's number
	qpn  uint32 // of makeQP
	mrs  []*region
	ahs  []uint64
	rxe  bool
}

func (s *siwSide) String() string {
	if s.rxe {
		return "rxe"
	}
	return "siw"
}

// do sends the probe a command.
func (s *siwSide) do(format string, args ...any) []string {
	words, err := s.p.Do(s.ctx, format, args...)
	must(err)
	return words
}

func (s *siwSide) close() {
	if s.conn != "" {
		s.do("close %s", s.conn)
	}
	for _, ah := range s.ahs {
		s.do("unah %d", ah)
	}
	for _, r := range s.mrs {
		s.do("unmr %s", r.siw)
	}
}

func (s *siwSide) region(size int, access rdma.Access, pd int) *region {
	words := s.do("mr %d %d %d", size, access, pd)
	if len(words) != 3 {
		failf("siw: mr: answer %q", words)
	}
	r := &region{size: size, siw: words[0], addr: number(words[1]), key: uint32(number(words[2]))}
	s.mrs = append(s.mrs, r)
	return r
}

// lend has nothing to do: siw lets a peer invalidate every region.
func (s *siwSide) lend(r *region, access rdma.Access) uint32 { return r.key }

func number(s string) uint64 {
	n, err := strconv.ParseUint(s, 10, 64)
	must(err)
	return n
}

func (s *siwSide) fill(r *region, off, n int, seed uint64) {
	s.do("fill %s %d %d %d", r.siw, off, n, seed)
}

func (s *siwSide) check(r *region, off, n int, seed uint64) {
	s.do("check %s %d %d %d", r.siw, off, n, seed)
}

func (s *siwSide) recv(id uint64, r *region, off, n int) {
	s.do("recv %s %d %s %d %d", s.conn, id, r.siw, off, n)
}

// siwOps are the probe's names.
var siwOps = map[rdma.Opcode]string{rdma.OpSend: "send", rdma.OpSendInv: "sendinv",
	rdma.OpWrite: "write", rdma.OpRead: "read", rdma.OpSendImm: "sendimm",
	rdma.OpWriteImm: "writeimm", rdma.OpCompareSwap: "cas", rdma.OpFetchAdd: "faa"}

func (s *siwSide) post(w work) {
	if w.to.QPN != 0 { // where the probe has what a datagram needs
		w.addr, w.key, w.compare = uint64(w.to.AH), w.to.QPN, uint64(w.to.QKey)
	}
	s.do("post %s %s %d %d %s %d %d %d %d %d %d %d", s.conn, siwOps[w.op], rdma.Signaled|w.flags,
		w.id, w.r.siw, w.off, w.n, w.addr, w.key, w.imm, w.compare, w.swap)
}

func (s *siwSide) poll(n int, limit time.Duration) (out []done) {
	for _, word := range s.do("poll %s %d %d", s.conn, n, limit.Milliseconds()) {
		f := strings.Split(word, ":")
		if len(f) != 7 {
			failf("siw: completion %q", word)
		}
		out = append(out, done{id: number(f[0]), status: rdma.WCStatus(number(f[1])),
			op: rdma.WCOpcode(number(f[2])), n: int(number(f[3])), imm: uint32(number(f[4])),
			from: uint32(number(f[5]))})
	}
	return out
}

func (s *siwSide) disconnect() { s.do("disconnect %s", s.conn) }
func (s *siwSide) abort()      { s.do("abort %s", s.conn) }

func (s *siwSide) ended(limit time.Duration) { s.do("ended %s %d", s.conn, limit.Milliseconds()) }

// async takes the asynchronous events that have come.
func (s *siwSide) async() (out []rdma.AsyncEventType) {
	for {
		words := s.do("async 0")
		if len(words) == 0 {
			return out
		}
		out = append(out, rdma.AsyncEventType(number(words[0])))
	}
}
