package roce_test

import (
	"bytes"
	"fmt"
	"strings"
	"testing"
	"time"

	. "github.com/vrnic/vrnic/roce"
	"github.com/vrnic/vrnic/roce/packet"
)

// A raw is a peer of one RC that sends what it likes. PSNs are told from the start of each
// direction.
type raw struct {
	t   *testing.T
	cfg Config
	rc  *RC
	*host
	now time.Time
}

func newRaw(t *testing.T, with ...func(*Config)) *raw {
	cfg := config()
	for _, f := range with {
		f(&cfg)
	}
	h := newHost(t, 1<<16)
	for i := range h.mem {
		h.mem[i] = byte(i * 7)
	}
	h.srq = true
	return &raw{t: t, cfg: cfg, rc: NewRC(cfg, h), host: h, now: epoch}
}

// post posts a request; a Send or a Write has n octets of data.
func (r *raw) post(op Op, n int, with ...func(*Request)) {
	r.t.Helper()
	q := Request{Token: uint64(r.rc.Outstanding() + len(r.done) + 1), Op: op, Length: uint32(n),
		RKey: 0x77,
		Addr: 0x4000}
	if op <= WriteImm {
		q.Data = octets(bytes.Repeat([]byte{0xab}, n))
	} else {
		r.sinks[q.Token] = make([]byte, max(n, 8))
	}
	for _, f := range with {
		f(&q)
	}
	if err := r.rc.Post(&q); err != nil {
		r.t.Fatal(err)
	}
}

// in has the engine receive a packet of n octets; a request's PSN is told from its first, an
// answer's from that of the engine's first request.
func (r *raw) in(op packet.Opcode, psn, n int, with ...func(*packet.Header)) {
	r.t.Helper()
	from := r.cfg.RQPSN
	if op.IsResponse() {
		from = r.cfg.SQPSN
	}
	h := packet.Header{Opcode: op, PKey: packet.DefaultPKey, Dest: 1,
		PSN:      from.Add(uint32(psn) & 0xffffff),
		Syndrome: packet.Unlimited, RKey: rkey, Addr: base, DMA: uint32(n)}
	for _, f := range with {
		f(&h)
	}
	data := bytes.Repeat([]byte{0xcd}, n)
	if op == packet.ReadRequest || !op.HasPayload() {
		data = nil
	}
	h.Pad = packet.PadOf(len(data))
	r.rc.Receive(r.now, &h, data)
}

func ackReq(h *packet.Header) { h.AckReq = true }

func says(s packet.Syndrome) func(*packet.Header) {
	return func(h *packet.Header) { h.Syndrome = s }
}

func dma(n uint32) func(*packet.Header) { return func(h *packet.Header) { h.DMA = n } }

func atAddr(a uint64) func(*packet.Header) { return func(h *packet.Header) { h.Addr = a } }

func key(k uint32) func(*packet.Header) { return func(h *packet.Header) { h.RKey = k } }

// out is what the engine sends, in short: "SEND Only +0", "Acknowledge +3 ACK msn 2".
func (r *raw) out() string {
	r.t.Helper()
	var lines []string
	for _, b := range drain(at(r.rc, r.now)) {
		h, _ := read(r.t, b)
		from := r.cfg.SQPSN
		if h.Opcode.IsResponse() {
			from = r.cfg.RQPSN
		}
		line := fmt.Sprintf("%s %+d", strings.TrimPrefix(h.Opcode.String(), "RC "), h.PSN.Sub(from))
		if h.Opcode == packet.Acknowledge {
			line += fmt.Sprintf(" %v msn %d", h.Syndrome, h.MSN)
		}
		lines = append(lines, line)
	}
	return strings.Join(lines, ", ")
}

// want fails the test unless the engine sends just that.
func (r *raw) want(what string) {
	r.t.Helper()
	if got := r.out(); got != what {
		r.t.Errorf("it sends %q, want %q", got, what)
	}
}

// wantDone fails the test unless n requests are done.
func (r *raw) wantDone(n int) {
	r.t.Helper()
	if len(r.done) != n {
		r.t.Errorf("%d requests are done, want %d", len(r.done), n)
	}
}

// wantFault fails the test unless the oldest request has failed with s.
func (r *raw) wantFault(s Status) {
	r.t.Helper()
	f := r.rc.Fault()
	if f == nil || !f.Requester || f.Status != s || f.Token != uint64(len(r.done)+1) {
		r.t.Errorf("the fault is %v, want %v of request %d", f, s, len(r.done)+1)
	}
}

// wantRefused fails the test unless a request of the peer has ended the connection, and it was told
// what.
func (r *raw) wantRefused(s packet.Syndrome, what string) {
	r.t.Helper()
	f := r.rc.Fault()
	if f == nil || f.Requester || f.Sent != s {
		r.t.Errorf("the fault is %v, want %v", f, s)
	}
	r.want(what)
	r.in(packet.SendOnly, 0, 4, ackReq)
	r.want("") // ROCE-161
}

// clean fails the test unless a Send goes through in each direction.
func (r *raw) clean(psn int) {
	r.t.Helper()
	if f := r.rc.Fault(); f != nil {
		r.t.Fatalf("the connection is over: %v", f)
	}
	r.recvs = append(r.recvs, make([]byte, 8))
	n := len(r.received)
	r.in(packet.SendOnly, psn, 8, ackReq)
	if got := r.out(); !strings.HasPrefix(got, fmt.Sprintf("Acknowledge %+d ACK msn ", psn)) ||
		len(r.received) != n+1 {
		r.t.Errorf("afterwards a Send is answered by %q, %d received", got, len(r.received)-n)
	}
}

// pass lets time pass, to the engine's deadline if it is within d.
func (r *raw) pass(d time.Duration) (expired bool) {
	if at, ok := r.rc.Deadline(); ok && !at.After(r.now.Add(d)) {
		r.now = at
		r.rc.Expire(at)
		return true
	}
	r.now = r.now.Add(d)
	r.rc.Expire(r.now)
	return false
}
