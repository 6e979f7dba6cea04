package daemon_test

import (
	"encoding/binary"
	"encoding/json"
	"math/rand/v2"
	"runtime"
	"testing"

	"github.com/vrnic/vrnic/cmd/vrnic/internal/daemon/daemontest"
	"github.com/vrnic/vrnic/rdma"
	"github.com/vrnic/vrnic/shm"
)

// A crowd is one program of two with many queue pairs, all of which complete on one CQ.
type crowd struct {
	*daemontest.End
	client *shm.Client
	qps    []rdma.QP
	of     map[uint32]int // which one has a number
	// of each: receives, and messages that were sent, came and ended
	posted, sent, got, over []int
	wc                      [16]rdma.WC
}

const crowdDepth = 4

func newCrowd(t *testing.T, d *daemontest.Daemon, device string, qps int) *crowd {
	t.Helper()
	c := &crowd{client: d.Dial(), of: make(map[uint32]int)}
	c.End = daemontest.NewEnd(t, daemontest.Open(t, c.client, device), 2*qps*crowdDepth*16)
	var err error
	if c.CQ, err = c.Dev.CreateCQ(1 << 15); err != nil {
		t.Fatal(err)
	}
	for _, n := range []*[]int{&c.posted, &c.sent, &c.got, &c.over} {
		*n = make([]int, qps)
	}
	for i := range qps {
		qp, err := c.PD.CreateQP(rdma.QPConfig{SendCQ: c.CQ, RecvCQ: c.CQ, MaxSendWR: crowdDepth,
			MaxRecvWR: crowdDepth})
		if err != nil {
			t.Fatal(err)
		}
		c.qps, c.of[qp.Num()] = append(c.qps, qp), i
	}
	return c
}

// at is where message n of queue pair i is received, or sent from.
func (c *crowd) at(i, n int, sent bool) int {
	at := (i*crowdDepth + n%crowdDepth) * 16
	if sent {
		at += len(c.qps) * crowdDepth * 16
	}
	return at
}

// send sends the next message of queue pair i to the peer, which posts a receive for it.
func (c *crowd) send(t *testing.T, i int, to *crowd) {
	t.Helper()
	if to.posted[i]-to.got[i] < crowdDepth {
		if err := to.qps[i].PostRecv(&rdma.RecvWR{ID: uint64(to.posted[i]),
			SGEs: []rdma.SGE{to.SGE(to.at(i, to.posted[i], false), 16)}}); err != nil {
			t.Fatal(err)
		}
		to.posted[i]++
	}
	n := c.sent[i]
	if n-c.over[i] == crowdDepth || n == to.posted[i] {
		return
	}
	at := c.at(i, n, true)
	binary.NativeEndian.PutUint64(c.Buf.Bytes()[at:], uint64(i))
	binary.NativeEndian.PutUint64(c.Buf.Bytes()[at+8:], uint64(n))
	if err := c.qps[i].PostSend(&rdma.SendWR{ID: uint64(n), Op: rdma.OpSend, Flags: rdma.Signaled,
		SGEs: []rdma.SGE{c.SGE(at, 16)}}); err != nil {
		t.Fatal(err)
	}
	c.sent[i]++
}

// poll takes up to n completions, each of which is the next of its kind.
func (c *crowd) poll(t *testing.T, n int) int {
	t.Helper()
	got, err := c.CQ.Poll(c.wc[:n])
	if err != nil {
		t.Fatal(err)
	}
	for _, wc := range c.wc[:got] {
		i, ok := c.of[wc.QPN]
		if !ok || wc.Status != rdma.WCSuccess {
			t.Fatalf("%+v", wc)
		}
		if wc.Op == rdma.WCSend {
			if wc.ID != uint64(c.over[i]) {
				t.Fatalf("%+v of queue pair %d, want %d", wc, i, c.over[i])
			}
			c.over[i]++
			continue
		}
		b := c.Buf.Bytes()[c.at(i, c.got[i], false):]
		if qp, id := binary.NativeEndian.Uint64(b), binary.NativeEndian.Uint64(b[8:]); wc.ID != uint64(
			c.got[i]) || qp != uint64(i) || id != wc.ID {
			t.Fatalf("%+v of queue pair %d, want %d: message %d of %d", wc, i, c.got[i], id, qp)
		}
		c.got[i]++
	}
	return got
}

func drainCrowds(t *testing.T, c *[2]*crowd) {
	t.Helper()
	for {
		left := false
		for k, e := range c {
			for i := range e.qps {
				left = left || e.over[i] != e.sent[i] || e.got[i] != c[1-k].sent[i]
			}
		}
		if !left {
			return
		}
		if c[0].poll(t, 16)+c[1].poll(t, 16) == 0 {
			runtime.Gosched()
		}
	}
}

// A thousand queue pairs that complete on one CQ have a direct path, all of them, and each of their
// completions comes once, of queue pairs of iWARP and of RoCE.
func TestDirectThousand(t *testing.T) {
	for _, device := range directDevices {
		t.Run(device, func(t *testing.T) { crowds(t, device, 1000) })
	}
}

func crowds(t *testing.T, device string, qps int) {
	d := daemontest.Start(t, withDirect(true))
	c := [2]*crowd{newCrowd(t, d, device, qps), newCrowd(t, d, device, qps)}
	for i := range qps {
		a, b := *c[0].End, *c[1].End
		a.QP, b.QP = c[0].qps[i], c[1].qps[i]
		daemontest.Connect(t, &a, &b, daemontest.Addr(t, b.Dev, false, 0))
	}
	for direct, tries := 0, 0; direct < 2*qps; tries++ { // each asks with some of its posts
		if tries == 20 {
			t.Fatalf("%d queue pairs of %d have a direct path", direct, 2*qps)
		}
		for k := range c {
			for i := range qps {
				c[k].send(t, i, c[1-k])
			}
		}
		drainCrowds(t, &c)
		direct = directPaths(t, c[0].client)
	}
	before := directCounts(t, d, device).DirectSends
	rnd := rand.New(rand.NewPCG(1, 1))
	const steps = 50000
	for range steps {
		k, i := rnd.IntN(2), rnd.IntN(qps)
		if rnd.IntN(3) == 0 {
			c[k].poll(t, 1+rnd.IntN(8))
		} else {
			c[k].send(t, i, c[1-k])
		}
	}
	drainCrowds(t, &c)
	if n := directCounts(t, d, device).DirectSends - before; n < steps/3 {
		t.Errorf("%d Sends were direct in %d steps", n, steps)
	}
}

// directPaths is how many queue pairs have one.
func directPaths(t *testing.T, client *shm.Client) (n int) {
	t.Helper()
	rows, err := client.List("qp")
	if err != nil {
		t.Fatal(err)
	}
	for _, raw := range rows {
		var row struct{ Path, Why string }
		if err := json.Unmarshal(raw, &row); err != nil {
			t.Fatal(err)
		}
		if row.Path == "direct" && row.Why == "" {
			n++
		}
	}
	return n
}
