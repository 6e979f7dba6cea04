package vnic_test

import (
	"bytes"
	"errors"
	"io"
	"net/netip"
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
// has, how many there were of other engines, by their kinds, and how many things happened beside.
func replay(t *testing.T, b []byte) (calls map[uint64]int, others map[string]int, beside int) {
	t.Helper()
	in, err := recording.NewReader(bytes.NewReader(b))
	if err != nil {
		t.Fatal(err)
	}
	p := recording.NewPlayer(in.Meta)
	calls, others = make(map[uint64]int), make(map[string]int)
	for {
		rec, err := in.Next()
		if errors.Is(err, io.EOF) {
			return calls, others, beside
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
		case played && rec.Subject.Kind == recording.Connection:
			calls[rec.Subject.ID]++
		case played:
			others[rec.Subject.Kind]++
		case len(rec.Steps) > 0:
			beside++
		}
	}
}

// setUps are the engines that set up a connection of iWARP, over SCTP and over TCP.
var setUps = map[bool][]string{false: {recording.StartUp}}

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
	check := func(t *testing.T, b []byte, conns, calls int, kinds ...string) {
		t.Helper()
		got, others, beside := replay(t, b)
		for _, k := range kinds {
			if others[k] < 2 {
				t.Errorf("%d calls of the %s are played", others[k], k)
			}
		}
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
		}, devices...), 2, 10, setUps[e.sctp]...)
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

// What manages a device's connections, and queue pairs of datagrams, have been there before a
// recording begins, with connections that come and go over a bad network while it does: what they
// do from then on is played again without a difference.
func TestRecordUnderWay(t *testing.T) {
	managed, datagrams := 0, 0
	for seed := range uint64(40) {
		synctest.Test(t, func(t *testing.T) {
			n := vnictest.NewNet()
			n.RoCE = vnictest.RoCELink{Delay: 100 * time.Microsecond, Loss: 0.1, Duplicate: 0.1,
				Reorder: 0.1, Seed: seed}
			a, b := n.Pair(t, vnictest.RoCE)
			one := vnictest.Open(t, a, vnic.ContextConfig{})
			two := vnictest.Open(t, b, vnic.ContextConfig{})
			pair := func() (x, y *vnictest.Peer) {
				return vnictest.NewQPs(t, one, two, vnictest.PeerConfig{}, vnictest.PeerConfig{})
			}
			pair()
			x, y := pair()
			disconnect := func(p *vnictest.Peer) {
				if err := p.Conn.Disconnect(); err != nil {
					t.Fatal(err)
				}
			}
			disconnect(x)
			p := newDatagrammer(t, one, vnictest.PeerConfig{})
			q := newDatagrammer(t, two, vnictest.PeerConfig{})
			send := func(p datagrammer, q datagrammer, h rdma.AH) {
				for i := range uint64(10) {
					q.Recv(i, 0, 2000)
					p.to(h, q.QP.Num(), i, 0, 1000)
					p.WantSend("a datagram", is(i, ok))
				}
			}
			h := p.ah("10.0.0.2")
			send(p, q, h)
			time.Sleep(time.Duration(seed) * 10 * time.Millisecond)
			rec := recorded(t, func() {
				send(p, q, h)
				z, w := pair()
				disconnect(z)
				if err := y.QP.Close(); err != nil {
					t.Error(err)
				}
				r := newDatagrammer(t, one, vnictest.PeerConfig{})
				send(r, q, r.ah("10.0.0.2"))
				c := vnictest.NewPeer(t, one, vnictest.PeerConfig{})
				_, err := one.Connect(t.Context(), c.QP, netip.MustParseAddrPort("10.0.0.2:77"),
					rdma.ConnParam{PrivateData: []byte("anybody?")})
				if err == nil {
					t.Error("somebody listens there")
				}
				time.Sleep(time.Minute)
				disconnect(w)
			}, a, b)
			_, others, _ := replay(t, rec)
			managed += others[recording.ConnManager]
			datagrams += others[recording.DatagramQP]
		})
	}
	t.Logf("%d calls of connection managers, %d of queue pairs of datagrams", managed, datagrams)
	if managed < 1000 || datagrams < 1000 {
		t.Errorf("%d and %d calls are played", managed, datagrams)
	}
}
