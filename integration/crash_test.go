package integration

import (
	"math/rand/v2"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/vrnic/vrnic/integration/proctest"
	"github.com/vrnic/vrnic/internal/needtest"
)

func (d *daemon) holding() proctest.Holding {
	d.T.Helper()
	return proctest.HoldingOf(d.T, d.PID(), d.show)
}

// atRest is what the daemon holds once nothing is being cleaned up any more: of each kind the least
// that is seen in a while, since a session that has just ended can only add to it.
func (d *daemon) atRest() proctest.Holding {
	d.T.Helper()
	least := d.holding()
	for range 10 {
		time.Sleep(20 * time.Millisecond) // before it looks again
		least = least.Least(d.holding())
	}
	return least
}

// settle waits until the daemon holds what it held before.
func (d *daemon) settle(want proctest.Holding) {
	d.T.Helper()
	var got proctest.Holding
	if !needtest.Within(patience, func() bool { got = d.holding(); return got == want }) {
		d.T.Fatalf("the daemon holds %+v, held %+v before", got, want)
	}
}

// clientEnded begins what a ping server says at the end of each client: that it has disconnected,
// or, in the middle of a round, that the connection was reset.
const clientEnded = "server: client "

// A client is killed at some point of its life, early and late. Its peer learns of it within a
// second, and nothing of it is left in the daemon.
func TestClientKilled(t *testing.T) {
	a, b := linked(t)
	server := a.serve()
	b.ping(addrsA[0], 1, 64) // whatever is made once is made now
	before, serverBefore := b.atRest(), a.atRest()

	served := 1
	for round := range 8 {
		err := needtest.Soon(time.Second, func() time.Duration {
			client := b.start("ping", "-c", "-a", addrsA[0], "-S", "16384", "-v")
			client.WaitOutput("ping data: ", 1+10*round)
			killed := time.Now()
			client.Signal(syscall.SIGKILL)
			served++
			server.WaitOutput(clientEnded, served)
			took := time.Since(killed)
			b.settle(before)
			a.settle(serverBefore)
			return took
		})
		if err != nil {
			t.Errorf("round %d: the client's death: %v", round, err)
		}
	}
	// At any moment: also while it dials the daemon, registers, connects.
	for range 12 {
		client := b.start("ping", "-c", "-a", addrsA[0], "-S", "65535")
		time.Sleep(time.Duration(rand.IntN(60)) * time.Millisecond) // the point of the kill is random
		client.Signal(syscall.SIGKILL)
		_ = client.Wait(patience) // by a signal, as asked
	}
	b.settle(before)
	a.settle(serverBefore)
	b.ping(addrsA[0], 3, 4096) // and everything still works
}

// A daemon is killed: its clients fail with a message, they do not hang.
func TestDaemonKilled(t *testing.T) {
	a, b := linked(t)
	server := a.serve()
	busy := b.start("ping", "-c", "-a", addrsA[0], "-v")
	busy.WaitOutput("ping data: ", 3)
	idle := b.serve("-a", addrsB[0])
	for _, tt := range []struct {
		d       *daemon
		clients []*process
	}{{b, []*process{busy, idle}}, {a, []*process{server}}} {
		tt.d.Signal(syscall.SIGKILL)
		for _, c := range tt.clients {
			if err := c.Wait(patience); err == nil {
				t.Errorf("%s succeeded without its daemon", c)
			}
			if out := c.Output(); !strings.Contains(out, "vrnic: ") {
				t.Errorf("%s says nothing of the loss:\n%s", c, out)
			}
		}
	}
}

// An interrupted daemon ends its connections before it goes: the peer learns of it.
func TestDaemonTerminated(t *testing.T) {
	a, b := linked(t)
	server := a.serve()
	client := b.start("ping", "-c", "-a", addrsA[0], "-v")
	client.WaitOutput("ping data: ", 3)
	b.stop()
	server.WaitOutput(clientEnded, 1)
	if err := client.Wait(patience); err == nil {
		t.Error("the client succeeded without its daemon")
	}
	a.stop()
}
