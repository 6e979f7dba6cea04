package roce_test

import (
	"bytes"
	"testing"
	"time"

	. "github.com/vrnic/vrnic/roce"
	"github.com/vrnic/vrnic/roce/packet"
)

// ROCE-225: a CNP, octet for octet.
func TestCNP(t *testing.T) {
	want := append([]byte{0x81, 0, 0xff, 0xff, 0x40, 0x12, 0x34, 0x56, 0, 0, 0, 0},
		make([]byte, 16)...)
	if got := AppendCNP(nil, 0x123456); !bytes.Equal(got, want) {
		t.Errorf("% x, want\n% x", got, want)
	}
	buf := make([]byte, 0, 64)
	if n := testing.AllocsPerRun(10, func() { AppendCNP(buf, 17) }); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

// ROCE-227: a CNP and BECN do nothing to what the engines do.
func TestCNPHarmless(t *testing.T) {
	var h packet.Header
	payload, err := h.Parse(append(AppendCNP(nil, 17), 0, 0, 0, 0))
	if err != nil {
		t.Fatal(err)
	}
	in := newHost(t, 100)
	in.recvs = [][]byte{make([]byte, 100)}
	rc, uc := NewRC(config(), in), NewUC(config(), in)
	if err := rc.Post(&Request{Op: Send}); err != nil {
		t.Fatal(err)
	}
	if got := len(drain(at(rc, epoch))); got != 1 {
		t.Fatalf("%d packets", got)
	}
	before, _ := rc.Deadline()
	rc.Receive(epoch.Add(time.Millisecond), &h, payload)
	uc.Receive(&h, payload)
	after, _ := rc.Deadline()
	if out := drain(at(rc, epoch)); len(out) != 0 || rc.Fault() != nil || after != before ||
		len(in.recvs) != 1 {
		t.Errorf("a CNP draws\n%s(%v)", text(t, out), rc.Fault())
	}
}
