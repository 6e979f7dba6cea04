package iwarp

import "testing"

// A counter takes every message.
type counter struct {
	receives, reads int
	sent            []uint64
}

func (c *counter) PlaceWrite(STag, uint64, []byte, bool) error { return nil }
func (c *counter) BeginReceive() (uint32, bool)                { return 8, true }
func (c *counter) PlaceReceive(uint32, []byte) error           { return nil }
func (c *counter) EndReceive(Received) error                   { c.receives++; return nil }
func (c *counter) PlaceRead(uint32, []byte) error              { return nil }
func (c *counter) EndRead(token uint64) error {
	if token != uint64(c.reads) {
		return ErrState
	}
	c.reads++
	return nil
}
func (c *counter) ReadSource(STag, uint64, uint32) (Payload, error) { return c, nil }
func (c *counter) CopyOut([]byte, uint32) error                     { return nil }
func (c *counter) EndReadSource(Payload)                            {}
func (c *counter) Atomic(Atomic) (uint64, error)                    { return 0, nil }
func (c *counter) EndAtomic(token uint64, _ uint64) error           { return c.EndRead(token) }
func (c *counter) Sent(token uint64) {
	c.sent = append(c.sent, token)
}

func move(t *testing.T, from, to *Endpoint) {
	t.Helper()
	for from.Pending() {
		b := make([]byte, from.Len())
		n, err := from.Read(b)
		from.Commit(n)
		if err != nil {
			t.Fatal(err)
		}
		if k, err := to.Write(b); k != n || err != nil || to.Err() != nil {
			t.Fatal(k, err, to.Err())
		}
	}
}

// DDP-039: FFFFFFFF is followed by 0 on both queues and both sides, and so are the engine's own
// counts of messages.
func TestCountersWrap(t *testing.T) {
	const start = 0xfffffffe
	ha, hb := &counter{}, &counter{}
	a := NewEndpoint(Params{Initiator: true, CRC: true, ORD: 3, IRD: 3}, ha, Config{SendQueue: 5})
	b := NewEndpoint(Params{CRC: true, ORD: 3, IRD: 3}, hb, Config{})
	a.tx.cur.msn, a.tx.cur.rmsn = start, start
	b.rx.msn, b.rx.rmsn = start, start
	a.tx.cur.sent, a.tx.posted = start, start
	a.tx.cur.reads, a.tx.readsPosted, a.tx.readsDone = start, start, start
	b.tx.cur.answered, b.tx.asked = start, start
	reads := uint64(0)
	for i := range 10 {
		ha.sent = nil
		for k := range uint64(5) {
			var err error
			if k == 0 || k == 4 {
				err = a.PostSend(100+k, OpSend, 0, nil, 0)
			} else {
				err = a.PostRead(reads, 1, 2, uint32(reads), 3, 4)
				reads++
			}
			if err != nil {
				t.Fatal(err)
			}
		}
		if a.CanPost() {
			t.Error("a sixth message fits")
		}
		move(t, a, b)
		move(t, b, a)
		if len(ha.sent) != 5 || ha.sent[0] != 100 || ha.sent[1] != reads-3 || ha.sent[2] != reads-2 ||
			ha.sent[3] != reads-1 || ha.sent[4] != 104 {
			t.Errorf("round %d: sent %v", i, ha.sent)
		}
	}
	if hb.receives != 20 || ha.reads != 30 || a.tx.cur.msn != 18 || b.rx.rmsn != 28 {
		t.Errorf("%d receives, %d reads, next MSN %d and %d", hb.receives, ha.reads, a.tx.cur.msn,
			b.rx.rmsn)
	}
}

// Text has words for every cause, registered or not.
func TestText(t *testing.T) {
	for c, want := range map[TermCode]string{
		{0, 0, 7}:    "local catastrophic error",
		{0, 1, 0x77}: "remote protection error",
		{0, 2, 0x77}: "remote operation error",
		{1, 0, 9}:    "local catastrophic error in DDP",
		{1, 3, 2}:    "MPA CRC error", // A27
		{2, 3, 2}:    "MPA CRC error",
		{2, 0, 0x99}: "error of the LLP",
		{9, 9, 9}:    "unknown cause",
	} {
		if got := c.Text(); got != want {
			t.Errorf("%v: %q, want %q", c, got, want)
		}
	}
}

// MPA-026: positions are modulo 2^32; a Marker's distance survives the wrap inside an FPDU.
func TestMarkersWrap(t *testing.T) {
	const start = 0xfffffc00
	ha, hb := &counter{}, &counter{}
	a := NewEndpoint(Params{Initiator: true, CRC: true, MarkersOut: true}, ha, Config{EMSS: 1460})
	b := NewEndpoint(Params{CRC: true, MarkersIn: true}, hb, Config{})
	a.tx.cur.pos, b.rx.mark.pos = start, start
	for i := range uint64(10) {
		if err := a.PostWrite(i, 1, 0, ha, 700); err != nil {
			t.Fatal(err)
		}
	}
	var out []byte
	for a.Pending() {
		p := make([]byte, a.Len())
		n, err := a.Read(p)
		a.Commit(n)
		if err != nil {
			t.Fatal(err)
		}
		out = append(out, p...)
	}
	var want []byte
	for range 10 {
		want = AppendMarkedFPDU(want, append(AppendTagged(nil, true, OpWrite, 1, 0),
			make([]byte, 700)...), true, uint32(len(want)))
	}
	if string(out) != string(want) {
		t.Error("the stream is another one behind the wrap")
	}
	for i := range out {
		b.Write(out[i : i+1])
	}
	if b.Err() != nil || b.Stats().FPDUsIn != 10 || b.rx.mark.pos >= start ||
		a.tx.cur.pos != b.rx.mark.pos {
		t.Errorf("%v, %d FPDUs, at %#x", b.Err(), b.Stats().FPDUsIn, b.rx.mark.pos)
	}
}
