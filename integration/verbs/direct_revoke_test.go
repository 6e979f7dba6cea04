package verbs

import (
	"encoding/binary"
	"flag"
	"fmt"
	"os"
	"testing"
	"time"
)

var directRevocations = flag.Int("revocations", 300,
	"how often memory is taken back that a peer writes to by the direct path")

// A program that has taken memory back has it: nothing that its peer has posted is stored there any
// more, wherever the peer was. Regions are deregistered, moved and closed to peers, windows
// invalidated and deallocated.
func TestDirectRevoked(t *testing.T) {
	needHeap(t)
	top := direct(t, "user")
	f, err := os.CreateTemp(workDir, "record-")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if err := f.Truncate(4096); err != nil {
		t.Fatal(err)
	}
	d := top.server
	env := append(top.cEnv(), append(d.env(), "RECORD="+f.Name())...)
	argv := []string{program, "exec", "--lend-heap", "--", cProgram(t, "revoked")}
	writes := d.begin(env, append(argv, "a")...)
	takes := d.begin(env, append(argv, "b", fmt.Sprint(*directRevocations))...)
	takes.succeed(patience + time.Duration(*directRevocations)*20*time.Millisecond)
	writes.succeed(patience)
	b, err := os.ReadFile(f.Name())
	if err != nil {
		t.Fatal(err)
	}
	told := func(i int) uint64 { return binary.NativeEndian.Uint64(b[8*i:]) }
	rounds, busy, landed, ended := told(0), told(1), told(2), told(3)
	direct, _ := top.counter("direct_writes")
	all, _ := top.counter("writes")
	atomics, _ := top.counter("direct_atomics")
	t.Logf("%d times; %d in the midst of a request, %d behind one; %d ended the connection; "+
		"%v of %v Writes, and %v atomic operations, were direct", rounds, busy, landed, ended, direct,
		all, atomics)
	if rounds != uint64(*directRevocations) || busy < rounds/20 || direct < all/2 || atomics == 0 {
		t.Error("these are too few")
	}
}
