package vnic_test

import (
	"bytes"
	"errors"
	"io"
	"testing"
	"testing/synctest"
	"time"

	"github.com/vrnic/vrnic/rdma"
	"github.com/vrnic/vrnic/vnic"
	recording "github.com/vrnic/vrnic/vnic/record"
	"github.com/vrnic/vrnic/vnic/vnictest"
)

// recorded is the recording of what f does to devices.
func recorded(t *testing.T, f func(), devices ...*vnic.Device) []byte {
	t.Helper()
	r := recording.New(recording.Meta{Version: "test"})
	var b bytes.Buffer
	done := make(chan error, 1)
	go func() { done <- r.Write(&b) }()
	defer r.End("the test has failed")
	for _, d := range devices {
		stop, err := d.Record(r)
		if err != nil {
			t.Fatal(err)
		}
		defer stop()
	}
	f()
	r.End("the test is over")
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// replay plays a recording, of which nothing may differ, and returns how many calls each connection
// has, and how many things happened beside.
func replay(t *testing.T, b []byte) (calls map[uint64]int, beside int) {
	t.Helper()
	in, err := recording.NewReader(bytes.NewReader(b))
	if err != nil {
		t.Fatal(err)
	}
	p := recording.NewPlayer(in.Meta)
	calls = make(map[uint64]int)
	for {
		rec, err := in.Next()
		if errors.Is(err, io.EOF) {
			return calls, beside
		}
		if err != nil {
			t.Fatal(err)
		}
		played, d, err := p.Take(&rec)
		if err != nil || d != nil {
			t.Fatalf("%v, %+v", err, d)
		}
		switch {
		case rec.Lost:
			t.Errorf("%v: there was no room", rec.Subject)
		case played:
			calls[rec.Subject.ID]++
		case len(rec.Steps) > 0:
			beside++
		}
	}
}

// What a connection does, over whatever, is played again without a difference, from its beginning
// to its end.
func TestRecord(t *testing.T) {
	use := func(x, y *vnictest.Peer) {
		fill(x.Buf, 3)
		for i := range uint64(3) {
			y.Recv(i, 0, 8000)
		}
		x.Send(1, 100, 7000)
		x.Write(2, 8192, 30000, y, 40000-8192)
		x.Read(3, 20000, 30000, y, 1000)
		x.Post(rdma.SendWR{ID: 4, Op: rdma.OpSend, Flags: rdma.Signaled | rdma.Solicited}, 0, 10)
		x.WantSend("a Send, a Write, a Read and another Send", want{ID: 1}, want{ID: 2}, want{ID: 3},
			want{ID: 4})
		y.WantRecv("two Sends", want{ID: 0}, want{ID: 1})
		y.Write(5, 0, 100, x, 1<<30) // beyond the buffer: the peer refuses
		synctest.Wait()
		time.Sleep(time.Second)
	}
	check := func(t *testing.T, b []byte, conns, calls int) {
		t.Helper()
		got, beside := replay(t, b)
		if len(got) != conns || beside < 10 {
			t.Errorf("%d connections are played, want %d; %d events of requests", len(got), conns, beside)
		}
		for id, n := range got {
			if n < calls {
				t.Errorf("connection %d has %d calls", id, n)
			}
		}
	}
	onPaths(t, func(t *testing.T, e *env) {
		devices := []*vnic.Device{e.a.Device()}
		if b := e.b.Device(); b != devices[0] {
			devices = append(devices, b)
		}
		check(t, recorded(t, func() { // within a device, too, it is a connection of the network
			var c vnictest.PeerConfig
			c.Param.SCTP = e.sctp
			x, y := vnictest.NewQPs(t, e.a, e.b, c, vnictest.PeerConfig{})
			use(x, y)
		}, devices...), 2, 10)
	})
	for _, roce := range []vnictest.RoCELink{{}, {Delay: 10 * time.Microsecond, Loss: 0.05,
		Duplicate: 0.05, Reorder: 0.05, Seed: 1}} {
		t.Run("roce", func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				n := vnictest.NewNet()
				n.RoCE = roce
				a, b := n.Pair(t, vnictest.RoCE)
				check(t, recorded(t, func() {
					x := vnictest.NewPeer(t, vnictest.Open(t, a, vnic.ContextConfig{}), vnictest.PeerConfig{})
					y := vnictest.NewPeer(t, vnictest.Open(t, b, vnic.ContextConfig{}), vnictest.PeerConfig{})
					vnictest.ConnectByNumber(t, x, y, nil)
					use(x, y)
				}, a, b), 2, 10)
			})
		})
	}
}
