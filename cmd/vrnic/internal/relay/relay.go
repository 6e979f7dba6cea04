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
	port    Port
	end     context.CancelFunc
	done    chan struct{}
}

// longest is the most octets of a datagram: they go in one packet of IP.
const longest = 65535

// patience is how long the way to a destination is looked for. What else the program sends waits.
const patience = time.Second

// Start begins to carry. open opens the port, and says whom to give what comes there; it is called
// before Start returns. The packets are the Relay's if there is no error.
func Start(packets *osmem.Packets, open func(receive func(from netip.AddrPort, data []byte)) (Port,
	error)) (*Relay, error) {
	// What comes may come from several goroutines.
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
	r := &Relay{packets: packets, port: port, end: end, done: make(chan struct{})}
	go r.run(ctx)
	return r, nil
}

// run sends what the program wants sent, until it has closed its end, or Close is called.
func (r *Relay) run(ctx context.Context) {
	defer close(r.done)
	defer r.packets.Close()
	defer r.port.Close() // which is all that can be done
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
		few, cancel := context.WithTimeout(ctx, patience)
		r.port.Send(few, to, data)
		cancel()
	}
}

// Close ends it, and returns when the port is free. It may be called several times, from any
// goroutine.
func (r *Relay) Close() {
	r.end()
	r.packets.Close()
	<-r.done
}
