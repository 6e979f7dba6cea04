package roce_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"testing"
	"time"

	. "github.com/vrnic/vrnic/roce"
	"github.com/vrnic/vrnic/roce/packet"
)

const (
	base = 0x10000 // the address of a host's memory
	rkey = 0x1234  // and its key
)

var (
	epoch     = time.Unix(1000, 0)
	errMemory = errors.New("not a part of the memory")
)

// A host is memory with one key, receives in order, and a record of what was done to them.
type host struct {
	t     testing.TB
	mem   []byte
	recvs [][]byte // posted, the oldest first
	taken []byte   // the receive that was taken
	noInv bool     // nothing can be invalidated
	srq   bool     // Receives does not tell

	done     []uint64
	sinks    map[uint64][]byte // of Reads and atomics, by token
	received []message
	failed   []Status
	onDone   func(token uint64)

	write struct {
		addr uint64
		n    uint32
	}
	sources int  // ReadSource without EndReadSource
	unended bool // the receive that was taken lacks its end
}

type message struct {
	Received
	data []byte
}

func newHost(t testing.TB, size int) *host {
	return &host{t: t, mem: make([]byte, size), sinks: map[uint64][]byte{}}
}

func (h *host) Done(token uint64) {
	h.done = append(h.done, token)
	if h.onDone != nil {
		h.onDone(token)
	}
}

func (h *host) PlaceRead(token uint64, off uint32, chunk []byte) error {
	if copy(h.sinks[token][off:], chunk) != len(chunk) {
		h.t.Fatalf("read %d: %d octets at %d of %d", token, len(chunk), off, len(h.sinks[token]))
	}
	return nil
}

func (h *host) PlaceOriginal(token uint64, original uint64) error {
	binary.NativeEndian.PutUint64(h.sinks[token], original)
	return nil
}

func (h *host) BeginReceive() (uint32, bool) {
	if h.taken != nil {
		h.t.Fatal("two receives are taken")
	}
	if len(h.recvs) == 0 {
		return 0, false
	}
	h.taken, h.recvs = h.recvs[0], h.recvs[1:]
	return uint32(len(h.taken)), true
}

func (h *host) PlaceReceive(off uint32, chunk []byte, last bool) error {
	if copy(h.taken[off:], chunk) != len(chunk) {
		h.t.Fatalf("receive: %d octets at %d of %d", len(chunk), off, len(h.taken))
	}
	h.unended = !last
	return nil
}

func (h *host) EndReceive(r Received) error {
	m := message{Received: r}
	if !r.Write {
		if r.Length > 0 && h.unended {
			h.t.Fatalf("a receive of %d octets ends without its last ones", r.Length)
		}
		m.data = bytes.Clone(h.taken[:r.Length])
	}
	h.received = append(h.received, m)
	h.taken = nil
	if r.Invalidate && h.noInv {
		return errMemory
	}
	return nil
}

func (h *host) FailReceive(s Status) {
	if h.taken == nil {
		h.t.Fatal("no receive to fail")
	}
	h.taken = nil
	h.failed = append(h.failed, s)
}

func (h *host) KeepReceive() {
	if h.taken == nil {
		h.t.Fatal("no receive to keep")
	}
	h.recvs = append([][]byte{h.taken}, h.recvs...)
	h.taken = nil
}

func (h *host) Receives() (uint32, bool) { return uint32(len(h.recvs)), !h.srq }

func (h *host) at(key uint32, addr uint64, n uint32) ([]byte, error) {
	if key != rkey || addr < base || addr-base > uint64(len(h.mem)) ||
		uint64(n) > uint64(len(h.mem))-(addr-base) {
		return nil, errMemory
	}
	return h.mem[addr-base:][:n], nil
}

func (h *host) BeginWrite(key uint32, addr uint64, n uint32) error {
	h.write.addr, h.write.n = addr, n
	_, err := h.at(key, addr, n)
	return err
}

func (h *host) PlaceWrite(off uint32, chunk []byte, last bool) error {
	if uint64(off)+uint64(len(chunk)) > uint64(h.write.n) ||
		last != (uint64(off)+uint64(len(chunk)) == uint64(h.write.n)) {
		h.t.Fatalf("write: %d octets at %d of %d, last %t", len(chunk), off, h.write.n, last)
	}
	b, err := h.at(rkey, h.write.addr+uint64(off), uint32(len(chunk)))
	if err != nil {
		h.t.Fatal(err)
	}
	copy(b, chunk)
	return nil
}

type octets []byte

func (o octets) CopyOut(p []byte, off uint32) error {
	if int(off)+len(p) > len(o) {
		return errMemory
	}
	copy(p, o[off:])
	return nil
}

func (h *host) ReadSource(key uint32, addr uint64, n uint32) (Payload, error) {
	b, err := h.at(key, addr, n)
	if err != nil {
		return nil, err
	}
	h.sources++
	return octets(b), nil
}

func (h *host) EndReadSource(Payload) { h.sources-- }

func (h *host) Atomic(a Atomic) (uint64, error) {
	b, err := h.at(a.RKey, a.Addr, 8)
	if err != nil {
		return 0, err
	}
	old := binary.NativeEndian.Uint64(b)
	switch {
	case a.Op == FetchAdd:
		binary.NativeEndian.PutUint64(b, old+a.Swap)
	case old == a.Compare:
		binary.NativeEndian.PutUint64(b, a.Swap)
	}
	return old, nil
}

// config is what most tests connect with.
func config() Config {
	return Config{MTU: 256, PKey: packet.DefaultPKey, Dest: 17, SQPSN: 0xfffffe, RQPSN: 0xfffff0,
		Access: RemoteWrite | RemoteRead | RemoteAtomic, MaxRead: 4, MaxDestRead: 4, Timeout: 14,
		Retries: 3, RNRRetries: 2, MinRNRTimer: 12, SendQueue: 64, Window: 64}
}

// mirror is the other end's.
func mirror(c Config) Config {
	c.SQPSN, c.RQPSN = c.RQPSN, c.SQPSN
	return c
}

// An appender is an RC at a time, or a UC.
type appender func(b []byte) ([]byte, bool)

// drain returns the packets that an end has to send.
func drain(f appender) (out [][]byte) {
	for {
		b, ok := f(nil)
		if !ok {
			return out
		}
		out = append(out, b)
	}
}

func at(c *RC, now time.Time) appender {
	return func(b []byte) ([]byte, bool) { return c.Append(b, now) }
}

// read takes a packet apart, which has no ICRC.
func read(t testing.TB, b []byte) (h packet.Header, payload []byte) {
	t.Helper()
	payload, err := h.Parse(append(bytes.Clone(b), 0, 0, 0, 0))
	if err != nil {
		t.Fatalf("% x: %v", b, err)
	}
	return h, payload
}

// text is packets in words, one a line.
func text(t testing.TB, out [][]byte) string {
	t.Helper()
	var b bytes.Buffer
	for _, p := range out {
		h, payload := read(t, p)
		h.Migrated = false
		fmt.Fprintf(&b, "%v data %d\n", &h, len(payload))
	}
	return b.String()
}
