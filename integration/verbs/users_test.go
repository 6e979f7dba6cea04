package verbs

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/vrnic/vrnic/internal/needtest"
)

// Two users on the daemon of root: their programs connect with each other by what the connection
// allows, and can neither see nor name each other's objects.
func TestTwoUsers(t *testing.T) {
	need(t, "rping")
	needtest.Root(t) // to be two users
	const alice, bob = 64001, 64002
	d := up(t, nil, "--device", deviceA, "--socket-mode", "0666")
	as := func(uid int) *daemon { x := *d; x.uid = uid; return &x }

	// Their programs reach each other as any two do.
	port := fmt.Sprint(nextPort.Add(1))
	server := as(alice).start("rping", "-s", "-a", addrsA[0], "-p", port, "-C", "5", "-v", "-V")
	d.listens(server, 0, 1)
	as(bob).start("rping", "-c", "-a", addrsA[0], "-p", port, "-C", "5", "-v", "-V").succeed(patience,
		"ping data: rdma-ping-4", "!mismatch")
	server.succeed(patience, "server ping data: rdma-ping-4")
	d.settle()

	// One holds everything there is; the other guesses all keys, numbers and handles that the first
	// one has.
	top := &topology{"two users", &place{as(alice), "", addrsA}, &place{as(alice), "", addrsA}}
	owner := top.startVictim(t)
	path := cProgram(t, "thief")
	env := []string{"VT_SERVER=" + addrsA[0], "VT_CLIENT=" + addrsA[0]}
	as(bob).startEnv(env, path).succeed(cLimit, "^all done$")
	owner.in.Close()
	owner.succeed(patience, "^ok victim$")
	d.settle()
}

// Programs of an ordinary user on a daemon of root do all that root's do: every kind of memory, of
// request and of fault, with the heap lent and without. What a kernel's driver would need they do
// without: the user may lock no memory, and a TAP is the daemon's.
func TestOrdinaryUser(t *testing.T) {
	need(t, "rping", "prlimit")
	needtest.Root(t) // to be another user
	const alice = 64001
	as := func(top *topology) *topology {
		server, client := *top.server.daemon, *top.client.daemon
		server.uid, client.uid = alice, alice
		return &topology{top.name, &place{&server, top.server.dev, top.server.addrs},
			&place{&client, top.client.dev, top.client.addrs}}
	}
	limited := []string{"prlimit", "--memlock=0:0", "--nice=0:0", "--rtprio=0:0"}
	root := up(t, nil, "--device", deviceA, "--device", deviceB1, "--socket-mode", "0666")
	two := as(&topology{"two devices", &place{root, "vrnic0", addrsA}, &place{root, "vrnic1", addrsB}})
	env := []string{"VT_SERVER=" + addrsA[0], "VT_CLIENT=" + addrsB[0]}
	for _, tt := range []struct{ lend, program, cases string }{
		{"0", "transfer", "sends writes_and_reads gather inlined immediate atomics mixed"},
		{"0", "transfer", "shared_receives"},
		{"0", "memory", "kinds many shared threads"},
		{"0", "extended", "wr_calls windows windows1"},
		{"0", "errors", "local_key local_unmapped_large read_sink moved_to_error"},
		{"0", "events", "solicited nonblocking undelivered"},
		{"0", "objects", "attributes capacities busy destroy_orders modify_connected"},
		{"1", "transfer", "sends writes_and_reads mixed"}, {"1", "memory", "kinds many shared threads"},
	} {
		for _, c := range strings.Fields(tt.cases) {
			t.Run(fmt.Sprintf("%s %s, VRNIC_LEND_HEAP=%s", tt.program, c, tt.lend), func(t *testing.T) {
				t.Setenv("VRNIC_LEND_HEAP", tt.lend)
				two.server.in(t).startEnv(env, slices.Concat(limited, []string{cProgram(t, tt.program),
					c})...).succeed(cLimit, "^all done$")
			})
		}
	}
	root.settle()

	t.Run("TAP", func(t *testing.T) {
		top := as(overTAP(t, "--socket-mode", "0666"))
		for i := range addrsA { // IPv4 and IPv6
			port := fmt.Sprint(nextPort.Add(1))
			server := top.server.start(slices.Concat(limited, []string{"rping", "-s", "-a", addrsA[i],
				"-p", port, "-C", "5", "-v", "-V"})...)
			top.server.listens(server, 0, 1)
			top.client.start(slices.Concat(limited, []string{"rping", "-c", "-a", addrsA[i], "-p", port,
				"-C", "5", "-v", "-V"})...).succeed(patience, "ping data: rdma-ping-4", "!mismatch")
			server.succeed(patience, "server ping data: rdma-ping-4")
		}
		top.settle()
	})
}

// The program of a third user's daemon has no device: it would give that daemon its memory.
func TestForeignDaemon(t *testing.T) {
	need(t, "rping")
	needtest.Root(t) // to be two users
	const alice, bob = 64001, 64002
	d := upAs(t, nil, alice, "--device", deviceA, "--socket-mode", "0666")
	d.uid = bob
	p := d.start("rping", "-s", "-a", addrsA[0])
	p.fail(patience, "vrnic")
}
