package vnic_test

import (
	"net/netip"
	"sync/atomic"
	"testing"

	"github.com/vrnic/vrnic/rdma"
	engine "github.com/vrnic/vrnic/roce"
	"github.com/vrnic/vrnic/roce/packet"
	"github.com/vrnic/vrnic/roce/udp"
	lower "github.com/vrnic/vrnic/vnic/internal/datagram"
	"github.com/vrnic/vrnic/vnic/internal/link/datagrams"
	"github.com/vrnic/vrnic/vnic/internal/link/inbox"
	"github.com/vrnic/vrnic/vnic/internal/mem"
	"github.com/vrnic/vrnic/vnic/internal/queue"
	"github.com/vrnic/vrnic/vnic/internal/stats"
	"github.com/vrnic/vrnic/vnic/internal/wqe"
)

// A queuePair is one that has nothing to send, and no receives.
type queuePair struct {
	t    *testing.T
	work wqe.Requests
	took atomic.Int64 // how many packets have looked for a receive
}

func (q *queuePair) Work() *wqe.Requests { return &q.work }
func (q *queuePair) State() rdma.QPState { return rdma.QPRTR }
func (q *queuePair) Refused(err error)   { q.t.Error(err) }

func (q *queuePair) Violation(err error) { q.t.Error(err) }
func (*queuePair) Wake()                 {}
func (*queuePair) Log(string, ...any)    {}

// Next is that of the receives: it is called with their lock held.
func (q *queuePair) Next(*rdma.RecvWR) (uint32, bool, error) {
	if q.took.Add(1); q.work.Recv.OpenedLocked() != nil {
		q.t.Error("a packet is taken while others may copy into the same receive")
	}
	return 0, false, nil
}
func (*queuePair) Starve(bool)  {}
func (*queuePair) Pending() int { return 0 }

type noSends struct{}

func (noSends) Next(*rdma.SendWR) (bool, error) { return false, nil }
func (noSends) Retire(int)                      {}

// A packet is taken while nobody copies, also one that begins to wait while others are looked for.
func TestTakenAlone(t *testing.T) {
	keys, err := mem.NewKeys()
	if err != nil {
		t.Fatal(err)
	}
	s := new(mem.Space)
	s.Init(mem.Config{Keys: keys, Limits: mem.Limits{PD: 1}})
	pd, err := s.NewPD()
	if err != nil {
		t.Fatal(err)
	}
	q := &queuePair{t: t}
	q.work.Init(q, &queue.PairConfig{Send: noSends{}, Recv: q, QPConfig: rdma.QPConfig{MaxSendWR: 1,
		MaxRecvWR: 1, MaxSendSGE: 1, MaxRecvSGE: 1}}, pd, true)
	l := datagrams.New(q, datagrams.Config{
		PKey: packet.DefaultPKey, MTU: 1024, Stats: new(stats.Packets),
		Find:  func(netip.Addr) func(uint32) *datagrams.Link { return nil },
		Inbox: inbox.New(inbox.Config{Packets: 8, Octets: 1 << 20, Heads: true}),
	})
	from := engine.UD{PKey: packet.DefaultPKey, MTU: 1024}
	b, _, err := from.Append(nil, &engine.Datagram{})
	if err != nil {
		t.Fatal(err)
	}
	b = append(b, make([]byte, packet.ICRCLen)...)
	p := lower.Packet{Packet: udp.Packet{Header: append([]byte{0x45}, make([]byte, 19)...),
		Datagram: b}}
	var done atomic.Bool
	finished := make(chan struct{})
	go func() {
		defer close(finished)
		for !done.Load() {
			l.Put(&p)
		}
	}()
	for q.took.Load() < 20_000 && !t.Failed() {
		l.Step()
	}
	done.Store(true)
	<-finished
}
