// Package rawtcp measures a TCP connection, of any stack, as a baseline: how much goes one way,
// and how long an echo takes.
//
// The client begins with a mode and how many MiB of memory the server is to go through as it
// reads, one octet each. Then it sends, and half-closes: of Sink the server reads all and answers
// with the count as 8 octets, big-endian; of Echo it sends back what comes. Of PolledEcho it does
// so, and looks for it again and again where Echo sleeps.
//
// Both ends go through as much memory as RDMA's messages outstanding take, for the caches' sake.
package rawtcp

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"time"

	"github.com/vrnic/vrnic/cmd/vrnic-bench/internal/hist"
)

// The modes.
const (
	Sink       byte = 'S'
	Echo       byte = 'E'
	PolledEcho byte = 'P'
)

// chunk is what is written and read at once.
const chunk = 1 << 20

// Serve serves connections of l until it is closed.
func Serve(l net.Listener) error {
	for {
		c, err := l.Accept()
		if err != nil {
			return err
		}
		go func() {
			defer c.Close()
			_ = serve(c) // the client sees how it ended
		}()
	}
}

func serve(c net.Conn) error {
	var head [2]byte
	if _, err := io.ReadFull(c, head[:]); err != nil {
		return err
	}
	var total uint64
	mode := head[0]
	memory := make([]byte, max(int(head[1]), 1)*chunk)
	var in io.Reader = c
	if mode == PolledEcho {
		p, err := poller(c)
		if err != nil {
			return err
		}
		in, mode = p, Echo
	}
	off := 0
	for {
		b := memory[off : off+chunk]
		n, err := in.Read(b)
		if mode == Sink {
			if off += n; off+chunk > len(memory) {
				off = 0
			}
		}
		total += uint64(n)
		if mode == Echo && n > 0 {
			if _, err := c.Write(b[:n]); err != nil {
				return err
			}
		}
		switch {
		case err == nil:
		case errors.Is(err, io.EOF) && mode == Sink:
			_, err = c.Write(binary.BigEndian.AppendUint64(nil, total))
			return err
		default:
			return err
		}
	}
}

// A Result is what a connection has come to.
type Result struct {
	Octets   uint64 // one way
	Elapsed  time.Duration
	Messages uint64
	// Of an echo, there and back. Other programs than ours tell no more than the mean.
	Mean, P50, P99, P999 time.Duration
}

// BitsPerSecond is the bandwidth one way.
func (r Result) BitsPerSecond() float64 { return float64(r.Octets) * 8 / r.Elapsed.Seconds() }

// Throughput sends over c for d, in writes of size octets from one of slots pieces of memory after
// the other, and closes it. The clock stops when the server has all.
func Throughput(c net.Conn, size, slots int, d time.Duration) (r Result, err error) {
	defer c.Close()
	memory := make([]byte, size*slots)
	for i := range memory { // pages of its own for each
		memory[i] = byte(i)
	}
	if _, err := c.Write([]byte{Sink, byte(min(max(len(memory)/chunk, 1), 255))}); err != nil {
		return r, err
	}
	start := time.Now()
	for slot := 0; time.Since(start) < d; slot = (slot + 1) % slots {
		n, err := c.Write(memory[slot*size : (slot+1)*size])
		r.Octets += uint64(n)
		if err != nil {
			return r, err
		}
		r.Messages++
	}
	half, ok := c.(interface{ CloseWrite() error })
	if !ok {
		return r, errors.New("no half-close on this connection")
	}
	if err := half.CloseWrite(); err != nil {
		return r, err
	}
	var count [8]byte
	if _, err := io.ReadFull(c, count[:]); err != nil {
		return r, fmt.Errorf("the server's count: %w", err)
	}
	r.Elapsed = time.Since(start)
	if got := binary.BigEndian.Uint64(count[:]); got != r.Octets {
		return r, fmt.Errorf("%d octets arrived of %d", got, r.Octets)
	}
	return r, nil
}

// Echoes has size octets echoed over c one time after the other for d, and closes it. With poll
// both ends look for them again and again, where c is the kernel's.
func Echoes(c net.Conn, size int, d time.Duration, poll bool) (r Result, err error) {
	defer c.Close()
	mode, from := Echo, io.Reader(c)
	if poll {
		mode = PolledEcho
		if from, err = poller(c); err != nil {
			return r, err
		}
	}
	if _, err := c.Write([]byte{mode, 1}); err != nil {
		return r, err
	}
	in := make([]byte, size)
	return RoundTrips(size, d, func(out []byte) ([]byte, error) {
		if _, err := c.Write(out); err != nil {
			return nil, err
		}
		_, err := io.ReadFull(from, in)
		return in, err
	})
}

// RoundTrips has messages of size octets make the trip for d, one after the other, each with its
// number in front: trip sends one and returns what came back.
func RoundTrips(size int, d time.Duration, trip func(out []byte) (in []byte, err error)) (r Result,
	err error) {
	h := hist.New()
	out := make([]byte, size)
	start := time.Now()
	for now := start; now.Sub(start) < d; {
		binary.BigEndian.PutUint64(out, r.Messages)
		in, err := trip(out)
		if err != nil {
			return r, fmt.Errorf("echo %d: %w", r.Messages, err)
		}
		if len(in) != size || binary.BigEndian.Uint64(in) != r.Messages {
			return r, fmt.Errorf("echo %d came back changed", r.Messages)
		}
		r.Messages++
		r.Octets += uint64(size)
		then := now
		now = time.Now()
		h.Add(now.Sub(then))
		r.Elapsed = now.Sub(start)
	}
	r.Mean, r.P50, r.P99, r.P999 = h.Mean(), h.Quantile(0.5), h.Quantile(0.99), h.Quantile(0.999)
	return r, nil
}
