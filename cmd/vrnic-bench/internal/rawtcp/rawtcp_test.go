package rawtcp

import (
	"errors"
	"io"
	"net"
	"testing"
	"time"
)

func TestOverKernelLoopback(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan error)
	go func() { done <- Serve(l) }()
	for range 2 {
		c, err := net.Dial("tcp", l.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		r, err := Throughput(c, 1<<16, 40, 10*time.Millisecond)
		if err != nil || r.Octets == 0 || r.BitsPerSecond() == 0 {
			t.Errorf("throughput: %+v, %v", r, err)
		}
		for _, poll := range []bool{false, true} {
			if c, err = net.Dial("tcp", l.Addr().String()); err != nil {
				t.Fatal(err)
			}
			r, err = Echoes(c, 64, 10*time.Millisecond, poll)
			if err != nil || r.Messages == 0 || r.P50 == 0 || r.P999 < r.P50 {
				t.Errorf("echo, poll %v: %+v, %v", poll, r, err)
			}
		}
	}
	l.Close()
	<-done
}

// Who polls sees all that comes, and the end.
func TestPolled(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	there, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	here, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	p, err := poller(here)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := there.Write([]byte("octets")); err != nil {
		t.Fatal(err)
	}
	there.Close()
	if b, err := io.ReadAll(p); string(b) != "octets" || err != nil {
		t.Errorf("%q, %v", b, err)
	}
	here.Close()
	if n, err := p.Read(make([]byte, 1)); n != 0 || !errors.Is(err, net.ErrClosed) {
		t.Errorf("behind Close: %d, %v", n, err)
	}
	a, b := net.Pipe()
	defer b.Close()
	if _, err := Echoes(a, 64, time.Millisecond, true); err == nil {
		t.Error("what is no socket is polled")
	}
}

// Close ends a poll that is under way.
func TestPolledClose(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	c, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	p, err := poller(c)
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan error)
	go func() {
		_, err := p.Read(make([]byte, 1))
		ended <- err
	}()
	c.Close()
	if err := <-ended; !errors.Is(err, net.ErrClosed) {
		t.Errorf("%v", err)
	}
}
