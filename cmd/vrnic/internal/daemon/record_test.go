package daemon_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/vrnic/vrnic/cmd/vrnic/internal/daemon"
	"github.com/vrnic/vrnic/cmd/vrnic/internal/daemon/daemontest"
	"github.com/vrnic/vrnic/internal/needtest"
	"github.com/vrnic/vrnic/rdma"
	"github.com/vrnic/vrnic/shm"
	"github.com/vrnic/vrnic/vnic/record"
)

// recorded is the recording of devices while f runs; of all if none is named.
func recorded(t *testing.T, c *shm.Client, f func(), devices ...string) []byte {
	t.Helper()
	conn, err := c.Record(context.Background(), devices)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if err := conn.SetDeadline(time.Now().Add(time.Minute)); err != nil {
		t.Fatal(err)
	}
	var b bytes.Buffer
	done := make(chan error, 1)
	go func() {
		_, why, err := record.Copy(&b, conn, 1<<30)
		if err == nil && !strings.Contains(why, "has ended it") {
			err = errors.New(why)
		}
		done <- err
	}()
	f()
	if err := conn.CloseWrite(); err != nil {
		t.Fatal(err)
	}
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// withRoCE adds two devices of RoCE, roce0 and roce1, to a daemon's.
func withRoCE(t *testing.T) func(c *daemon.Config) {
	return func(c *daemon.Config) {
		for _, s := range []string{"roce0,addr=10.77.0.4/24,transport=roce",
			"roce1,addr=10.77.0.5/24,transport=roce"} {
			spec, err := daemon.ParseDevice(s)
			if err != nil {
				t.Fatal(err)
			}
			c.Devices = append(c.Devices, spec)
		}
	}
}

// What connections of a daemon do, over each transport, is played again without a difference, with
// what became of requests and what programs have called.
func TestRecord(t *testing.T) {
	d := daemontest.Start(t, withRoCE(t))
	c := d.Dial()
	overSCTP := map[string]int{record.SCTPEndpoint: 8, record.DDPStreams: 5, record.DDPSession: 8}
	for _, tt := range []struct {
		name, from, to string
		sctp           bool
		setUp          map[string]int // the kinds of the engines that set it up, and calls at least
	}{
		{"tcp", "vrnic0", "vrnic1", false, map[string]int{record.StartUp: 8}},
		{"sctp", "vrnic0", "vrnic1", true, overSCTP},
		{"sctp once more", "vrnic1", "vrnic0", true, overSCTP},
		{"roce", "roce0", "roce1", false, map[string]int{record.ConnManager: 8}},
		{"within", "vrnic0", "vrnic0", false, map[string]int{record.StartUp: 8}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			b := recorded(t, c, func() {
				x := daemontest.NewEnd(t, daemontest.Open(t, d.Dial(), tt.from), 1<<16)
				y := daemontest.NewEnd(t, daemontest.Open(t, d.Dial(), tt.to), 1<<16)
				daemontest.Connect(t, x, y, daemontest.Addr(t, y.Dev, false, 0),
					func(p *rdma.ConnParam) { p.SCTP = tt.sctp })
				y.Recv(1, 0, 60000)
				x.Send(100, 0, 60000)
				x.Write(101, 0, 5000, y, 0)
				x.Read(102, 0, 50000, y, 0)
				x.WantOK("a Send", 100, rdma.WCSend)
				x.WantOK("a Write", 101, rdma.WCWrite)
				x.WantOK("a Read", 102, rdma.WCRead)
				y.WantOK("the Send", 1, rdma.WCRecv)
			})
			in, err := record.NewReader(bytes.NewReader(b))
			if err != nil {
				t.Fatal(err)
			}
			p := record.NewPlayer(in.Meta)
			var sessions []*record.Subject
			conns, played, setUp, things := 0, 0, make(map[string]int), make(map[record.Op]int)
			for {
				rec, err := in.Next()
				if errors.Is(err, io.EOF) {
					break
				}
				if err != nil {
					t.Fatal(err)
				}
				did, diff, err := p.Take(&rec)
				if err != nil || diff != nil || rec.Lost {
					t.Fatalf("%v, %v, lost %v", err, diff, rec.Lost)
				}
				switch {
				case did && tt.setUp[rec.Subject.Kind] > 0:
					setUp[rec.Subject.Kind]++
				case did:
					played++
				case rec.Opened && rec.Subject.Kind == record.Connection:
					conns++
				case rec.Opened && rec.Subject.Kind == record.DDPSession:
					sessions = append(sessions, rec.Subject)
				}
				for i := range rec.Steps {
					things[rec.Steps[i].Op]++
				}
			}
			if conns != 2 || played < 10*conns {
				t.Errorf("%d calls of %d connections are played, want those of 2", played, conns)
			}
			for _, s := range sessions {
				if s.QPN == 0 {
					t.Errorf("%v is of no queue pair", s)
				}
			}
			for kind, least := range tt.setUp {
				if setUp[kind] < least {
					t.Errorf("%d calls of engines of kind %s are played", setUp[kind], kind)
				}
			}
			if things[record.OpTaken] != 3 || things[record.OpCompleted] != 3 ||
				things[record.OpReceived] != 1 || things[record.OpCall] < 6 ||
				things[record.OpReply] != things[record.OpCall] {
				t.Errorf("things that have happened: %v", things)
			}
		})
	}
}

// Who records the wrong thing, or as the second one, is told so, and a recording ends with the
// daemon as one that is whole.
func TestRecordEnds(t *testing.T) {
	d := daemontest.Start(t)
	ctx, c := context.Background(), d.Dial()
	refused := func(what, want string, devices ...string) {
		t.Helper()
		conn, err := c.Record(ctx, devices)
		if err == nil {
			conn.Close()
		}
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", what, err, want)
		}
	}
	refused("a device that is not there", "there is no device vrnic7", "vrnic0", "vrnic7")
	conn, err := c.Record(ctx, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	refused("a second recording", "one recording is made at a time", "vrnic1")
	ended := make(chan string, 1)
	go func() {
		_, why, err := record.Copy(io.Discard, conn, 1<<30)
		if err != nil {
			why = err.Error()
		}
		ended <- why
	}()
	if err := d.Close(); err != nil {
		t.Error(err)
	}
	if why := <-ended; why != "the daemon ends" {
		t.Errorf("the recording ends: %s", why)
	}
}

// Who records and goes takes nothing with it, and the next one may.
func TestRecordGoes(t *testing.T) {
	d := daemontest.Start(t)
	c := d.Dial()
	conn, err := c.Record(context.Background(), []string{"vrnic0"})
	if err != nil {
		t.Fatal(err)
	}
	conn.Close()
	needtest.Eventually(t, "another recording", func() bool {
		conn, err := c.Record(context.Background(), []string{"vrnic0", "vrnic1"})
		if err == nil {
			conn.Close()
		}
		return err == nil
	})
}
