package daemon_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/vrnic/vrnic/cmd/vrnic/internal/capture"
	"github.com/vrnic/vrnic/cmd/vrnic/internal/daemon/daemontest"
	"github.com/vrnic/vrnic/cmd/vrnic/internal/trace"
	"github.com/vrnic/vrnic/rdma"
	"github.com/vrnic/vrnic/shm"
)

// traced is what is shown of a queue pair of dev while f runs.
func traced(t *testing.T, c *shm.Client, dev rdma.Device, qpn uint32, f func()) (
	lines []trace.Line) {
	t.Helper()
	conn, err := c.Trace(context.Background(), fmt.Sprintf("%s,qp=%d", dev.Name(), qpn))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if err := conn.SetDeadline(time.Now().Add(time.Minute)); err != nil {
		t.Fatal(err)
	}
	addrs := make(map[string][]netip.Addr)
	for _, p := range dev.Attr().Addrs {
		addrs[dev.Name()] = append(addrs[dev.Name()], p.Addr())
	}
	table := capture.NewTable(addrs, func() ([]json.RawMessage, error) { return c.List("qp") },
		time.Now)
	tracer := trace.New(dev.Name(), qpn, table, func(l *trace.Line) error {
		lines = append(lines, *l)
		return nil
	})
	f()
	if err := conn.CloseWrite(); err != nil {
		t.Fatal(err)
	}
	in, err := capture.NewReader(conn)
	for err == nil {
		var p capture.Packet
		if p, err = in.Next(); err == nil {
			err = tracer.Take(&p)
		}
	}
	if !errors.Is(err, io.EOF) || in.Dropped != 0 {
		t.Fatalf("%v, %d dropped", err, in.Dropped)
	}
	return lines
}

// idsOf are the numbers of requests that lines of one kind are of, each once.
func idsOf(lines []trace.Line, event string) (ids []uint64) {
	for _, l := range lines {
		if l.Event == event && l.WRID != nil && !slices.Contains(ids, *l.WRID) {
			ids = append(ids, *l.WRID)
		}
	}
	return ids
}

// A trace shows each request when it is posted and when it completes, and the messages on the wire
// with the request that each is of, whatever carries them; within a device those that there would
// be.
func TestTrace(t *testing.T) {
	for _, tt := range []struct {
		name, from, to string
		sctp           bool
	}{
		{"tcp", "vrnic0", "vrnic1", false}, {"sctp", "vrnic0", "vrnic1", true},
		{"roce", "roce0", "roce1", false}, {"loop", "vrnic0", "vrnic0", false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			d := daemontest.Start(t, withRoCE(t))
			c := d.Dial()
			a := daemontest.NewEnd(t, daemontest.Open(t, d.Dial(), tt.from), 1<<16)
			b := daemontest.NewEnd(t, daemontest.Open(t, d.Dial(), tt.to), 1<<16)
			daemontest.Connect(t, a, b, daemontest.Addr(t, b.Dev, false, 0), func(p *rdma.ConnParam) {
				p.SCTP = tt.sctp
			})
			lines := traced(t, c, a.Dev, a.QP.Num(), func() {
				b.Recv(1, 0, 64)
				b.Recv(2, 0, 64)
				a.Send(100, 0, 64)
				a.Write(101, 0, 5000, b, 0)
				a.Read(102, 0, 5000, b, 0)
				a.Send(103, 0, 64)
				a.WantOK("a Send", 100, rdma.WCSend)
				a.WantOK("a Write", 101, rdma.WCWrite)
				a.WantOK("a Read", 102, rdma.WCRead)
				a.WantOK("a Send", 103, rdma.WCSend)
				a.Recv(104, 0, 64)
				b.WantOK("the first", 1, rdma.WCRecv)
				b.WantOK("the second", 2, rdma.WCRecv)
				b.Send(3, 0, 16)
				b.WantOK("a Send back", 3, rdma.WCSend)
				a.WantOK("the Send back", 104, rdma.WCRecv)
			})
			all := []uint64{100, 101, 102, 103}
			for event, want := range map[string][]uint64{capture.Post: all, capture.Complete: all,
				capture.Receive: {104}} {
				if got := idsOf(lines, event); !slices.Equal(got, want) {
					t.Errorf("%s: requests %v, want %v", event, got, want)
				}
			}
			out, in := idsOf(lines, trace.Out), idsOf(lines, trace.In)
			if !slices.Equal(out, all) || !slices.Contains(in, 102) {
				t.Errorf("out are %v, want %v; in are %v, want 102 among them", out, all, in)
			}
			for _, l := range lines {
				if l.Event == trace.Note || l.Event == trace.Lost ||
					l.Event == capture.Complete && l.Took <= 0 {
					t.Errorf("%s", &l)
				}
				if l.Event == trace.Out && strings.Contains(strings.ToUpper(l.Text), "READ REQUEST") &&
					*l.WRID != 102 {
					t.Errorf("%s", &l)
				}
			}
			if t.Failed() {
				for i := range lines {
					t.Log(&lines[i])
				}
			}
		})
	}
}

// What cannot be traced is told in words.
func TestTraceRefused(t *testing.T) {
	c := daemontest.Start(t).Dial()
	for of, want := range map[string]string{"vrnic0": "one queue pair", "vrnic9,qp=1": "no device",
		"vrnic0,qp=9": "no queue pair 9"} {
		if _, err := c.Trace(context.Background(), of); err == nil ||
			!strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", of, err, want)
		}
	}
}
