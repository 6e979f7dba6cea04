package netstacktest

import (
	"fmt"
	"io"
	"testing"

	"github.com/vrnic/vrnic/netstack/tcp"
)

// Exchange sends n octets each way at once and checks them; then both ends see the end.
func Exchange(t *testing.T, a, b *tcp.Conn, n int64) {
	t.Helper()
	errc := make(chan error, 4)
	run := func(c *tcp.Conn) {
		// One goroutine owns a connection: it writes and reads in turn.
		errc <- Both(c, NewBell(c), n)
	}
	go run(a)
	go run(b)
	for range 2 {
		if err := <-errc; err != nil {
			t.Error(err)
		}
	}
}

// Both writes and reads n octets on c, half-closes and reads the end.
func Both(c *tcp.Conn, bell Bell, n int64) error {
	w, r := NewSource(n), NewSink(n)
	ended := false
	for w.Len() > 0 || !ended {
		progress := false
		if w.Len() > 0 {
			m, err := c.WriteFrom(w)
			if err != nil {
				return fmt.Errorf("write: %w", err)
			}
			progress = m > 0
			if w.Len() == 0 {
				if err := c.CloseWrite(); err != nil {
					return fmt.Errorf("close write: %w", err)
				}
			}
		}
		m, err := c.ReadInto(r)
		if r.Err != nil {
			return r.Err
		}
		if err == io.EOF {
			if r.Len() != n {
				return fmt.Errorf("end after %d of %d octets", r.Len(), n)
			}
			ended = true
		} else if err != nil {
			return fmt.Errorf("read: %w", err)
		}
		if !progress && m == 0 && !ended {
			<-bell
		} else if ended && !progress && w.Len() > 0 {
			<-bell
		}
	}
	return nil
}

// Chunk is how many octets Write gives at once at most.
const Chunk = 1 << 20

// Zeros is a Source that costs nothing.
type Zeros int

func (z *Zeros) Len() int { return int(*z) }

func (z *Zeros) Read(b []byte) (int, error) {
	n := min(len(b), int(*z))
	*z -= Zeros(n)
	return n, nil
}

// Count is a Writer that takes what it is given.
type Count int64

func (c *Count) Write(b []byte) (int, error) {
	*c += Count(len(b))
	return len(b), nil
}

// Write sends n zero octets over c, which rings bell; its peer takes them elsewhere.
func Write(c *tcp.Conn, bell Bell, n int64) error {
	for n > 0 {
		z := Zeros(min(n, Chunk))
		m, err := c.WriteFrom(&z)
		if err != nil {
			return err
		}
		if m == 0 {
			<-bell
		}
		n -= int64(m)
	}
	return nil
}

// Read takes n octets from c, which rings bell, and looks at none.
func Read(c *tcp.Conn, bell Bell, n int64) error {
	var got Count
	for int64(got) < n {
		m, err := c.ReadInto(&got)
		if err != nil {
			return err
		}
		if m == 0 {
			<-bell
		}
	}
	return nil
}
