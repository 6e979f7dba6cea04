package daemon_test

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/vrnic/vrnic/cmd/vrnic/internal/daemon/daemontest"
	"github.com/vrnic/vrnic/cmd/vrnic/internal/latency"
	"github.com/vrnic/vrnic/internal/needtest"
	"github.com/vrnic/vrnic/rdma"
	"github.com/vrnic/vrnic/shm"
)

// measure has the requests of what is named measured while f runs.
func measure(t *testing.T, c *shm.Client, f func(), of ...string) []latency.Row {
	t.Helper()
	conn, err := c.Latency(context.Background(), of)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if err := conn.SetDeadline(time.Now().Add(time.Minute)); err != nil {
		t.Fatal(err)
	}
	f()
	if err := conn.CloseWrite(); err != nil {
		t.Fatal(err)
	}
	var rows []latency.Row
	if err := json.NewDecoder(conn).Decode(&rows); err != nil {
		t.Fatal(err)
	}
	return rows
}

// What requests of a program take is measured for who asks, of a queue pair, a device or all, and
// only while somebody does. Who goes away without a word, or stays until the daemon ends, leaves
// nothing behind.
func TestLatency(t *testing.T) {
	d := daemontest.Start(t)
	a := daemontest.NewEnd(t, daemontest.Open(t, d.Dial(), "vrnic0"), 1<<16)
	b := daemontest.NewEnd(t, daemontest.Open(t, d.Dial(), "vrnic1"), 1<<16)
	daemontest.Connect(t, a, b, daemontest.Addr(t, b.Dev, false, 0))
	c := d.Dial()
	writes := func(n int) func() {
		return func() {
			for i := range uint64(n) {
				a.Write(i, 0, 64, b, 0)
				a.WantOK("a Write", i, rdma.WCWrite)
			}
		}
	}
	writes(3)() // of which nobody hears
	one := fmt.Sprintf("vrnic0,qp=%d", a.QP.Num())
	for _, of := range [][]string{{one}, {"vrnic0"}, {"vrnic1", "vrnic0"}, nil} {
		rows := measure(t, c, writes(10), of...)
		if len(rows) != 1 {
			t.Fatalf("of %q: %+v", of, rows)
		}
		if r := rows[0]; r.Dev != "vrnic0" || r.QPN != a.QP.Num() || r.Op != "WRITE" || r.Count != 10 ||
			r.Failed != 0 || r.P50 <= 0 || r.P50 > r.P90 || r.P90 > r.P99 || r.P99 > r.P999 ||
			r.P999 > r.Max {
			t.Errorf("of %q: %+v", of, r)
		}
	}
	if rows := measure(t, c, writes(1), "vrnic1"); len(rows) != 0 {
		t.Errorf("of the device that is written to: %+v", rows)
	}
	for of, want := range map[string]string{"vrnic2": "no device vrnic2",
		"vrnic0,qp=77777": "no queue pair 77777", "vrnic0,qp=x": "no queue pair x",
		"vrnic0\nvrnic9": "no device vrnic9"} {
		if conn, err := c.Latency(context.Background(), []string{of}); err == nil ||
			!strings.Contains(err.Error(), want) {
			t.Errorf("of %q: %v, %v, want %q", of, conn, err, want)
		}
	}
	for i := range 20 { // more than may look at once: each makes room
		if needtest.Becomes(func() bool {
			conn, err := c.Latency(context.Background(), nil)
			return err == nil && conn.Close() == nil
		}) {
			continue
		}
		t.Fatalf("onlooker %d finds no room", i)
	}
	conn, err := c.Latency(context.Background(), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if err := d.Close(); err != nil {
		t.Errorf("close the daemon that is looked at: %v", err)
	}
	if n, err := conn.Read(make([]byte, 1)); err == nil {
		t.Errorf("%d octets come from a daemon that has ended", n)
	}
}
