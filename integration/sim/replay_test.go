package sim

import (
	"bytes"
	"errors"
	"flag"
	"io"
	"runtime"
	"slices"
	"testing"

	"github.com/vrnic/vrnic/vnic/record"
)

var replayFlag = flag.Uint64("replay", 6, "programs of TestReplay, from -seed on")

// TestReplay records programs, and plays what their connections have done again: nothing differs,
// whatever the wire has lost and the program has done.
//
//	go test ./integration/sim -run Replay -replay 500 -v
func TestReplay(t *testing.T) {
	repeatable(t)
	octets, engines, calls := 0, make(map[string]int), make(map[string]int)
	overSCTPOnly := []string{record.SCTPEndpoint, record.DDPStreams, record.DDPSession}
	wanted := append(overSCTPOnly, record.Connection, record.StartUp, record.ConnManager)
	end := *seedFlag + *replayFlag
	last := end + 1000 // few programs are over SCTP, and one is wanted
	lacks := func(kind string) bool { return calls[kind] < 100 }
	for seed := *seedFlag; seed < end || seed < last && slices.ContainsFunc(wanted, lacks); seed++ {
		o := options(seed, 3000)
		if seed >= end && o.path != overSCTP && !slices.ContainsFunc(wanted[len(overSCTPOnly):], lacks) {
			continue
		}
		var b bytes.Buffer
		o.Record = &b
		if r := Run(t, o); r.Err != nil {
			t.Fatal(r.Err)
		}
		octets += b.Len()
		in, err := record.NewReader(&b)
		if err != nil {
			t.Fatal(err)
		}
		p := record.NewPlayer(in.Meta)
		for {
			rec, err := in.Next()
			if errors.Is(err, io.EOF) {
				break
			}
			if err != nil {
				t.Fatalf("seed %d: %v", seed, err)
			}
			played, d, err := p.Take(&rec)
			if err != nil || d != nil || rec.Lost {
				t.Errorf("seed %d (%v): %v, lost %v: %+v", seed, o.path, err, rec.Lost, d)
			}
			if played {
				calls[rec.Subject.Kind]++
			}
			if rec.Opened && rec.Subject.Played() {
				engines[rec.Subject.Kind]++
			}
		}
		runtime.GC()
	}
	t.Logf("%d programs: of %v engines %v calls, %d octets", *replayFlag, engines, calls, octets)
	for _, k := range wanted {
		if lacks(k) {
			t.Errorf("%d calls were played of %d engines of kind %s", calls[k], engines[k], k)
		}
	}
}
