package iwarptest_test

import (
	"bytes"
	"fmt"
	"testing"

	"github.com/vrnic/vrnic/iwarp"
	"github.com/vrnic/vrnic/iwarp/iwarptest"
)

// A reader logs segments; it places every second one ahead, and waits where stop says.
type reader struct {
	log   []string
	ahead int
	stop  string
	kept  [][]byte
}

func (r *reader) Ahead(seg []byte) int {
	r.kept = append(r.kept, seg)
	if r.ahead++; r.ahead%2 == 0 {
		return 1
	}
	return len(seg)
}

func (r *reader) Segment(seg []byte, size int) error {
	if r.stop != "" && seg[0] == r.stop[0] {
		return iwarp.ErrNoReceive
	}
	r.log = append(r.log, fmt.Sprintf("%s/%d", seg[:1], size))
	return nil
}

// Nothing is lost, and the order is that of sending, whatever order it arrives in.
func TestRecords(t *testing.T) {
	a, b := iwarptest.NewRecords(4, 5)
	var want []string
	for i := range 26 {
		text := fmt.Sprintf("%c%0*d", 'a'+i, i, 0)
		if n, err := a.WriteFrom(bytes.NewReader([]byte(text))); n != len(text) || err != nil {
			t.Fatal(n, err)
		}
		want = append(want, fmt.Sprintf("%c/%d", 'a'+i, len(text)))
	}
	if n, err := a.WriteFrom(bytes.NewReader(nil)); n != 0 || err != nil || a.UnderWay() != 26 {
		t.Errorf("%d, %v, %d under way", n, err, a.UnderWay())
	}
	r := &reader{stop: "h"}
	for b.Arrive(r) {
	}
	if got := fmt.Sprint(r.log); got != fmt.Sprint(want[:7]) || b.Held() != 19 {
		t.Errorf("%s, %d held", got, b.Held())
	}
	r.stop = ""
	b.Resume(r)
	if got := fmt.Sprint(r.log); got != fmt.Sprint(want) || b.Held() != 0 || r.ahead < 10 {
		t.Errorf("%s, %d held, %d ahead", got, b.Held(), r.ahead)
	}
	if !bytes.Equal(r.kept[0], bytes.Repeat([]byte{0xdb}, len(r.kept[0]))) {
		t.Errorf("what was shown is still %q", r.kept[0])
	}
	if n, err := a.WriteFrom(&failing{n: 4}); n != 0 || err == nil || a.UnderWay() != 0 {
		t.Errorf("%d, %v", n, err)
	}
}
