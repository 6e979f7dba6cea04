package iwarp_test

import (
	"bytes"
	"fmt"
	"testing"

	. "github.com/vrnic/vrnic/iwarp"
)

// The rows of TestFatal on an LLP that keeps segments apart: the same causes and copies, in a bare
// segment; and so if the bad segment is seen ahead of its turn.
func TestFatalRecords(t *testing.T) {
	shown, placed := 0, 0
	for _, tt := range fatals() {
		for _, ext := range []bool{false, true} {
			if ext && tt.only == "off" || !ext && tt.only == "on" {
				continue
			}
			for _, ahead := range []bool{false, true} {
				name := fmt.Sprintf("%s (%s), extensions %t, ahead %t", tt.name, tt.ids, ext, ahead)
				r := &raw{h: newHost()}
				r.Endpoint = NewEndpoint(responder, r.h, Config{MULPDU: 1400, Records: true, Extensions: ext})
				r.h.mem[0x10] = make([]byte, 64)
				if tt.setup != nil {
					tt.setup(r)
				}
				bad := tt.bad
				if ahead {
					keep := r.Ahead(bad)
					if shown++; keep < len(bad) {
						bad = bad[:keep:keep] // nothing is wrong with it but its place
						placed++
					}
				}
				for _, s := range tt.good {
					if err := r.Segment(s, len(s)); err != nil || r.Err() != nil {
						t.Fatalf("%s: the good segments: %v, %v", name, err, r.Err())
					}
				}
				log := len(r.h.log)
				mem := bytes.Clone(r.h.mem[0x10])
				if err := r.Segment(bad, len(tt.bad)); err != nil || r.Err() == nil {
					t.Errorf("%s: %v, %v", name, err, r.Err())
					continue
				}
				over := append(AppendTagged(nil, true, OpWrite, 0x10, 0), 0xee)
				if err := r.Segment(over, len(over)); err != nil || r.Ahead(over) != 0 {
					t.Errorf("%s: behind it %v", name, err)
				}
				for _, s := range r.h.log[log:] {
					if s[:5] != "begin" {
						t.Errorf("%s: still did %s", name, s)
					}
				}
				if !bytes.Equal(mem, r.h.mem[0x10]) {
					t.Errorf("%s: memory changed", name)
				}
				want := wantTerminate(tt.control, tt.mdr, tt.bad)
				want = want[2:][:int(want[0])<<8|int(want[1])]
				for range asked(r.h.log[:log]) { // a segment each
					wantAnswer(t, drain(r))
				}
				if out := drain(r); !bytes.Equal(out, want) || r.Pending() || !r.Drained() {
					t.Errorf("%s: sent\n%x\nwant\n%x\n%v", name, out, want, r.Err())
				}
			}
		}
	}
	if placed == 0 || placed > shown/5 {
		t.Errorf("%d of %d bad segments were placed ahead", placed, shown)
	}
}
