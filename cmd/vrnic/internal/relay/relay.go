// Package relay carries the datagrams of a UDP port of a device's network to a program and back:
// sockets of datagrams over RDMA ask each other by UDP for their queue pairs.
package relay

import (
	"context"
	"net/netip"
	"sync"
	"time"

	"github.com/vrnic/vrnic/shm/osmem"
	"github.com/vrnic/vrnic/shm/rpc"
)

// A Port is a UDP port of a network.
type Port interface {
	// Send sends a datagram, or loses it. It waits for the way to be known for as long as ctx lasts at
	// most. It is called from one goroutine.
	Send(ctx context.Context, to netip.AddrPort, data []byte)
	// Close has nothing received any more when it returns.
	Close() error
}

// A Relay is a program's port.
type Relay struct {
	packets *osmem.Packets
	end     context.CancelFunc

	mu   sync.Mutex
	port Port // nil: it is closed; +checklocks:mu
}

// longest is the most octets of a datagram: they go in one packet of IP.
const longest = 65535

// patience is how long the way to a destination is looked for. What else the program sends waits.
const patience = time.Second

// A Receiver is given what comes to a port, by several goroutines.
type Receiver = func(from netip.AddrPort, data []byte)

// Start begins to carry, on a goroutine of the program's session. open opens the port, and says
// whom to give what comes there; it is called before Start returns. The packets are the Relay's if
// there is no error.
func Start(program osmem.Runner, packets *osmem.Packets, open func(Receiver) (Port, error)) (
	*Relay, error) {
	pool := sync.Pool{New: func() any { return new([]byte) }}
	port, err := open(func(from netip.AddrPort, data []byte) {
		b := pool.Get().(*[]byte)
		*b = append(rpc.MakeSockAddr(from).Append((*b)[:0]), data...)
		packets.Send(*b) // who does not read loses it
		pool.Put(b)
	})
	if err != nil {
		return nil, err
	}
	ctx, end := context.WithCancel(context.Background())
	r := &Relay{packets: packets, port: port, end: end}
	program.Go(func() { r.run(ctx) })
	return r, nil
}

// run sends what the program wants sent, until it has closed its end, or Close is called.
func (r *Relay) run(ctx context.Context) {
	defer r.Close()
	b := make([]byte, longest)
	for {
		n, err := r.packets.Receive(b)
		if err != nil {
			return
		}
		a, data, ok := rpc.CutSockAddr(b[:n])
		to := a.AddrPort()
		if !ok || !to.IsValid() || to.Port() == 0 {
			continue
		}
		r.send(ctx, to, data)
	}
}

func (r *Relay) send(ctx context.Context, to netip.AddrPort, data []byte) {
	few, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.port != nil {
		r.port.Send(few, to, data)
	}
}

// Close ends it, and returns when the port is free. It may be called several times, from any
// goroutine. The goroutine may end later: what the program sends beside a packet can keep it.
func (r *Relay) Close() {
	r.end()
	r.packets.Close()
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.port != nil {
		_ = r.port.Close() // which is all that can be done
		r.port = nil
	}
}
