package verbs

import (
	"fmt"
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
