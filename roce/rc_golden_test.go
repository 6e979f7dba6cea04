package roce_test

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"net/netip"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	. "github.com/vrnic/vrnic/roce"
	"github.com/vrnic/vrnic/roce/packet"
	"github.com/vrnic/vrnic/roce/rocetest"
	"github.com/vrnic/vrnic/roce/udp"
)

// A spoken is a packet of RC of a recording.
type spoken struct {
	from    netip.Addr
	ip      []byte
	h       packet.Header
	payload []byte
}

// spokenIn are those of a recording, in which two queue pairs speak.
func spokenIn(t *testing.T, name string) (all []spoken) {
	t.Helper()
	qps := map[netip.Addr]packet.QPN{}
	for _, ip := range rocetest.Packets(t, name) {
		p, err := udp.Parse(ip)
		if err != nil {
			t.Fatal(err)
		}
		s := spoken{from: p.Src, ip: ip}
		if s.payload, err = s.h.Parse(p.Datagram); err != nil {
			t.Fatal(err)
		}
		if s.h.Opcode.Transport() != packet.RC {
			continue
		}
		if qpn, ok := qps[p.Dst]; ok && qpn != s.h.Dest {
			t.Fatalf("%s has more than one connection", name)
		}
		qps[p.Dst] = s.h.Dest
		all = append(all, s)
	}
	return all
}

// recorded is the order of octets of the machines that were recorded.
var recorded = binary.LittleEndian

// A player is one end of a recording, and the memory and programs of that end.
type player struct {
	t    *testing.T
	all  []spoken
	self netip.Addr
	script
	rc  *RC
	now time.Time

	mem    map[uint64]byte   // what is known of the memory that the peer reads and writes here
	theirs map[uint64]bool   // what of it the peer has written
	sinks  map[uint64][]byte // of Reads and atomics, by token
	token  uint64
	next   packet.PSN // of the next request

	refuse       bool   // the memory of the request that is being heard is not the peer's
	empty        bool   // there is no receive for it
	size         uint32 // of the receive
	done         uint64
	writing      uint64
	answers      [][]byte // said and not yet found in the recording
	requests     [][]byte
	lastReceived []byte
}

func (p *player) Done(token uint64) {
	if p.done++; token != p.done {
		p.t.Errorf("request %d is done as number %d", token, p.done)
	}
}

func (p *player) PlaceRead(token uint64, off uint32, chunk []byte) error {
	copy(p.sinks[token][off:], chunk)
	return nil
}

func (p *player) PlaceOriginal(token uint64, original uint64) error {
	recorded.PutUint64(p.sinks[token], original)
	return nil
}

func (p *player) BeginReceive() (uint32, bool) {
	p.lastReceived = make([]byte, p.size)
	return p.size, !p.empty
}

func (p *player) PlaceReceive(off uint32, chunk []byte, last bool) error {
	if p.badReceive {
		return errMemory
	}
	if copy(p.lastReceived[off:], chunk) != len(chunk) {
		p.t.Errorf("%d octets at %d of a receive of %d", len(chunk), off, p.size)
	}
	return nil
}

func (p *player) EndReceive(Received) error { return nil }
func (p *player) FailReceive(Status)        {}
func (p *player) KeepReceive()              {}
func (p *player) Receives() (uint32, bool)  { return 0, false }

func (p *player) BeginWrite(_ uint32, addr uint64, _ uint32) error {
	p.writing = addr
	return p.allowed()
}

func (p *player) allowed() error {
	if p.refuse {
		return errMemory
	}
	return nil
}

func (p *player) PlaceWrite(off uint32, chunk []byte, _ bool) error {
	for i, b := range chunk {
		a := p.writing + uint64(off) + uint64(i)
		p.mem[a], p.theirs[a] = b, true
	}
	return nil
}

func (p *player) ReadSource(_ uint32, addr uint64, n uint32) (Payload, error) {
	return source{p, addr, n}, p.allowed()
}

func (p *player) EndReadSource(Payload) {}

// A source is memory that the peer reads.
type source struct {
	p    *player
	addr uint64
	n    uint32
}

func (s source) CopyOut(b []byte, off uint32) error {
	for i := range b {
		v, ok := s.p.mem[s.addr+uint64(off)+uint64(i)]
		if !ok || off+uint32(i) >= s.n {
			return errMemory
		}
		b[i] = v
	}
	return nil
}

func (p *player) Atomic(a Atomic) (original uint64, err error) {
	if err := p.allowed(); err != nil {
		return 0, err
	}
	var word [8]byte
	if err := (source{p, a.Addr, 8}).CopyOut(word[:], 0); err != nil {
		return 0, err
	}
	original = recorded.Uint64(word[:])
	switch {
	case a.Op == FetchAdd:
		recorded.PutUint64(word[:], original+a.Swap)
	case original == a.Compare:
		recorded.PutUint64(word[:], a.Swap)
	}
	p.writing = a.Addr
	return original, p.PlaceWrite(0, word[:], true)
}

// mine reports whether packet i is this end's.
func (p *player) mine(i int) bool { return p.all[i].from == p.self }

// find is the first packet from i on, of this end or of the other, that is like f says.
func (p *player) find(i int, mine bool, f func(*packet.Header) bool) (int, bool) {
	for ; i < len(p.all); i++ {
		if p.mine(i) == mine && f(&p.all[i].h) {
			return i, true
		}
	}
	return 0, false
}

// config is the connection as its packets show it.
func (p *player) config() Config {
	c := Config{MTU: 1024, PKey: packet.DefaultPKey, Access: RemoteWrite | RemoteRead | RemoteAtomic,
		MaxRead: 16, MaxDestRead: 16, Timeout: 17, Retries: 7, RNRRetries: RNRForever, SendQueue: 64}
	request := func(h *packet.Header) bool { return !h.Opcode.IsResponse() }
	if i, ok := p.find(0, true, func(*packet.Header) bool { return true }); ok {
		c.Dest = p.all[i].h.Dest
	}
	if i, ok := p.find(0, true, request); ok {
		c.SQPSN = p.all[i].h.PSN
	}
	if i, ok := p.find(0, false, request); ok {
		c.RQPSN = p.all[i].h.PSN
	}
	if i, ok := p.find(0, true, func(h *packet.Header) bool {
		return h.Opcode.IsResponse() && h.Syndrome.IsRNR()
	}); ok {
		c.MinRNRTimer = uint8(p.all[i].h.Syndrome) & 0x1f
	}
	for _, s := range p.all {
		if !s.h.Opcode.Ends() {
			c.MTU = uint32(len(s.payload))
		}
	}
	if p.with != nil {
		p.with(&c)
	}
	return c
}

// octetsOf is a packet from the BTH to the ICRC.
func octetsOf(h packet.Header, payload []byte) []byte {
	h.Migrated = true // rxe has 0, against ROCE-024
	b := append(h.Append(nil), payload...)
	return append(b, make([]byte, h.Pad)...)
}

// drain takes what our end answers now, and up to one request.
func (p *player) drain() {
	for len(p.requests) == 0 {
		b, ok := p.rc.Append(nil, p.now)
		if !ok {
			return
		}
		if h, _ := read(p.t, b); h.Opcode.IsResponse() {
			p.answers = append(p.answers, b)
		} else {
			p.requests = append(p.requests, b)
		}
	}
}

// hears gives packet i to our end, whose memory and receives are as they were then.
func (p *player) hears(i int) {
	h := p.all[i].h
	p.refuse, p.empty = false, false
	if !h.Opcode.IsResponse() {
		answer, ok := p.find(i+1, true, func(a *packet.Header) bool {
			return a.Opcode == packet.Acknowledge && a.PSN == h.PSN
		})
		said := packet.Unlimited
		if ok {
			said = p.all[answer].h.Syndrome
		}
		p.refuse, p.empty = said == packet.NAKAccess, said.IsRNR()
		p.size = p.receiveFor(i)
		switch h.Opcode {
		case packet.ReadRequest, packet.FetchAdd, packet.CompareSwap:
			p.learn(i)
		default:
		}
	}
	p.rc.Receive(p.now, &h, p.all[i].payload)
	if !h.Opcode.IsResponse() {
		p.drain()
	}
}

// receiveFor is how long a receive for a message that begins with packet i is: too short if the
// recording says so.
func (p *player) receiveFor(i int) (n uint32) {
	for psn := p.all[i].h.PSN; ; psn = psn.Add(1) {
		part, ok := p.find(i, false, func(h *packet.Header) bool {
			return !h.Opcode.IsResponse() && h.PSN == psn
		})
		if !ok {
			return n
		}
		n += uint32(len(p.all[part].payload))
		if _, bad := p.find(i, true, func(h *packet.Header) bool {
			return h.PSN == psn && h.Opcode == packet.Acknowledge && h.Syndrome == packet.NAKOperational
		}); bad && !p.badReceive {
			return n - 1
		}
		if p.all[part].h.Opcode.Ends() {
			return n
		}
	}
}

// learn has the memory that packet i asks for hold what the recording answers: what its program has
// put there. What the peer has written is for the engine to know.
func (p *player) learn(i int) {
	h := &p.all[i].h
	know := func(addr uint64, b []byte) {
		for k, v := range b {
			if a := addr + uint64(k); !p.theirs[a] {
				p.mem[a] = v
			}
		}
	}
	if h.Opcode != packet.ReadRequest {
		if a, ok := p.find(i, true, func(a *packet.Header) bool {
			return a.Opcode == packet.AtomicAcknowledge && a.PSN == h.PSN
		}); ok {
			know(h.Addr, recorded.AppendUint64(nil, p.all[a].h.Original))
		}
		return
	}
	for off := uint32(0); off < h.DMA; {
		part, ok := p.find(i, true, func(a *packet.Header) bool {
			return a.Opcode.IsResponse() && a.Opcode.HasPayload() &&
				a.PSN == h.PSN.Add(off/p.mtu())
		})
		if !ok || len(p.all[part].payload) == 0 {
			return
		}
		know(h.Addr+uint64(off), p.all[part].payload)
		off += uint32(len(p.all[part].payload))
	}
}

func (p *player) mtu() uint32 { return p.config().MTU }

// ops are the operations by how the last packet of a message says it.
var ops = map[packet.Opcode]Op{
	packet.SendOnly: Send, packet.SendMiddle: Send, packet.SendLast: Send, packet.SendOnlyImm: SendImm,
	packet.SendLastImm: SendImm, packet.SendOnlyInv: SendInv, packet.SendLastInv: SendInv,
	packet.WriteOnly: Write, packet.WriteLast: Write, packet.WriteOnlyImm: WriteImm,
	packet.WriteLastImm: WriteImm, packet.ReadRequest: Read, packet.CompareSwap: CompareSwap,
	packet.FetchAdd: FetchAdd,
}

// posts has our end post what packet i begins, unless it goes out again.
func (p *player) posts(i int) {
	h := &p.all[i].h
	if h.PSN != p.next {
		return
	}
	p.token++
	r := Request{Token: p.token, Addr: h.Addr, RKey: h.RKey, Swap: h.Swap, Compare: h.Compare}
	p.sinks[r.Token] = make([]byte, max(8, h.DMA))
	var data []byte
	last, n := h, uint32(0)
	for {
		part, ok := p.find(i, true, func(a *packet.Header) bool {
			return !a.Opcode.IsResponse() && a.PSN == h.PSN.Add(n)
		})
		if !ok { // it was refused before its end, which has an octet at least
			data, n = append(data, 0), n+1
			break
		}
		data, last = append(data, p.all[part].payload...), &p.all[part].h
		if n++; last.Opcode.Ends() {
			break
		}
	}
	if h.Opcode == packet.ReadRequest {
		r.Length = h.DMA
		n = max(1, (h.DMA+p.mtu()-1)/p.mtu())
	}
	r.Op, r.Solicited, r.Imm = ops[last.Opcode], last.Solicited, last.Imm
	if r.Op == SendInv {
		r.RKey = last.RKey
	}
	if r.Op <= WriteImm {
		r.Length = uint32(len(data))
		if len(data) > 0 {
			r.Data = octets(data)
		}
	}
	p.next = h.PSN.Add(n)
	if err := p.rc.Post(&r); err != nil {
		p.t.Fatal(err)
	}
}

// says takes what our end says in place of packet i.
func (p *player) says(i int) {
	s := p.all[i]
	queue := &p.answers
	if !s.h.Opcode.IsResponse() {
		queue = &p.requests
		p.posts(i)
		p.drain()
		for n := 0; len(*queue) == 0 && n < 10; n++ {
			at, ok := p.rc.Deadline()
			if !ok {
				break
			}
			p.now = at
			p.rc.Expire(at)
			p.drain()
		}
	}
	differs := ""
	for _, d := range p.differences {
		switch {
		case d.packet != i:
		case d.change == nil:
			return
		default:
			d.change(&s.h)
			differs = " (" + d.why + ")"
		}
	}
	want := octetsOf(s.h, s.payload)
	if len(*queue) == 0 {
		p.t.Fatalf("packet %d, %v, is not said; the engine's fault is %v", i, &s.h, p.rc.Fault())
	}
	if got := (*queue)[0]; !bytes.Equal(got, want) {
		h, _ := read(p.t, got)
		p.t.Fatalf("packet %d is said as\n%v\n% x, want%s\n%v\n% x", i, &h, got, differs, &s.h, want)
	}
	*queue = (*queue)[1:]
}

// play has our end take the part of self.
func (p *player) play() {
	cfg := p.config()
	p.next = cfg.SQPSN
	p.rc = NewRC(cfg, p)
	late := map[int][]int{}
	for i, at := range p.late {
		late[at] = append(late[at], i)
	}
	for i, s := range p.all {
		_, waits := p.late[i]
		// What the network has doubled was said once.
		doubled := i > 0 && bytes.Equal(s.ip, p.all[i-1].ip)
		switch {
		case p.mine(i) && !doubled:
			p.says(i)
		case !p.mine(i) && !waits && !slices.Contains(p.lost, i):
			p.hears(i)
		}
		for _, k := range late[i] {
			if !p.mine(k) {
				p.hears(k)
			}
		}
	}
	p.drain()
	for _, b := range slices.Concat(p.answers, p.requests) {
		h, _ := read(p.t, b)
		p.t.Errorf("said, and not recorded: %v", &h)
	}
	p.over()
}

// over wants our end to have ended as the other has told it, or it the other; else all that it has
// posted is done.
func (p *player) over() {
	refused := func(h *packet.Header) bool {
		return h.Opcode == packet.Acknowledge && h.Syndrome.IsNAK() && h.Syndrome != packet.NAKSequence
	}
	_, heard := p.find(0, false, refused)
	_, said := p.find(0, true, refused)
	asks := !p.all[0].h.Opcode.IsResponse() && p.mine(0)
	if at, ok := p.rc.Deadline(); ok && asks && p.ends == RetryExceeded {
		p.rc.Expire(at)
	}
	f := p.rc.Fault()
	switch {
	case heard || asks && p.ends != Success:
		if f == nil || !f.Requester || p.ends != Success && f.Status != p.ends {
			p.t.Errorf("the requester's fault is %v", f)
		}
	case said:
		if f == nil || f.Requester {
			p.t.Errorf("the responder's fault is %v", f)
		}
	case f != nil || p.rc.Outstanding() != 0:
		p.t.Errorf("%d requests are left, with the fault %v", p.rc.Outstanding(), f)
	}
}

// Our engine takes either end's part in what two of rxe's queue pairs said to each other, and says
// the same, octet for octet, but for what is listed: ROCE-023, 024, 028, 041, 044, 050, 055, 058,
// 066, 071, 072, 086, 093, 114, 117, 120, 129, 133, 134, 162.
func TestRCGolden(t *testing.T) {
	names := rocetest.Recordings(t)
	played := 0
	for _, name := range names {
		base := strings.TrimSuffix(filepath.Base(name), ".pcap")
		all := spokenIn(t, name)
		sc, ok := scripts[base]
		if len(all) == 0 {
			continue // of the connection manager, or of datagrams
		}
		if !ok {
			t.Errorf("%s has no script", base)
			continue
		}
		played++
		ends := []netip.Addr{all[0].from}
		for _, s := range all {
			if s.from != ends[0] {
				ends = append(ends, s.from)
				break
			}
		}
		for i, self := range ends {
			t.Run(fmt.Sprint(base, " ", []string{"first", "second"}[i]), func(t *testing.T) {
				p := &player{t: t, all: all, self: self, script: sc, now: epoch, mem: map[uint64]byte{},
					theirs: map[uint64]bool{}, sinks: map[uint64][]byte{}}
				p.play()
			})
		}
	}
	if played != len(scripts) {
		t.Errorf("%d recordings of %d are there", played, len(scripts))
	}
}
