package ringtest

import (
	"fmt"
	"testing"

	"github.com/vrnic/vrnic/verbs/internal/ctest"
)

// docs/abi.md#waking: what the library does keeps the order that it rests on. Where nothing holds
// the processor it does not, which is seen only if two run at once: how often is printed.
//
// Under QEMU the threads run on the host's processors, with loads and stores in at least the order
// of those. On amd64 that shows what is wrong about fences behind stores, and in what the compiler
// does for arm64, but no load that goes ahead of a load, and no store that goes ahead of a store:
// for these there is the search in shm/ring.
func TestLitmus(t *testing.T) {
	const source, times = "testdata/litmus/litmus.c", 300000
	ctest.Need(t)
	if _, err := ctest.Sources(source, "../core/*.h", "../*.h"); err != nil {
		t.Fatal(err)
	}
	program, err := ctest.CC("litmus", "-std=c11", "-O2", "-Wextra", "-pthread", source)
	if err != nil {
		t.Fatal(err)
	}
	bad := func(name string) (n int) {
		t.Helper()
		out := run(t, program, name, fmt.Sprint(times))
		if _, err := fmt.Sscan(out, &n); err != nil {
			t.Fatalf("%s: %q", name, out)
		}
		return n
	}
	for _, name := range []string{"message_passing", "store_buffering", "hand_over"} {
		if n := bad(name); n != 0 {
			t.Errorf("%s: the order was not kept %d times", name, n)
		}
	}
	for _, name := range []string{"store_buffering_unfenced", "hand_over_unfenced"} {
		t.Logf("%s: %d of %d", name, bad(name), times)
	}
}

// What pair/pair.c does, with a sender, a receiver and a daemon that run freely, while the
// direction changes hands. Little is seen of an order that is not kept: a sender that says only
// behind its look at DirOpen that it looks loses a message in some millions, on two processors that
// others use, too.
func TestLitmusPair(t *testing.T) {
	const source, times = "testdata/litmus/pair.c", 200000
	ctest.Need(t)
	if _, err := ctest.Sources(source, "../core/*.h", "../pair/*.[ch]", "../*.h"); err != nil {
		t.Fatal(err)
	}
	program, err := ctest.CC("litmus-pair", "-std=c11", "-O2", "-Wextra", "-pthread", source,
		"../pair/pair.c")
	if err != nil {
		t.Fatal(err)
	}
	var bad, changes int
	out := run(t, program, fmt.Sprint(times))
	if _, err := fmt.Sscan(out, &bad, &changes); err != nil {
		t.Fatalf("%q", out)
	}
	if bad != 0 || changes == 0 {
		t.Errorf("%d of %d messages are wrong, and the direction changed hands %d times", bad, times,
			changes)
	}
	t.Logf("%d messages, the direction changed hands %d times", times, changes)
}
