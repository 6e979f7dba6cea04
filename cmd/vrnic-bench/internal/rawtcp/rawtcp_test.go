package rawtcp

import (
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
		if c, err = net.Dial("tcp", l.Addr().String()); err != nil {
			t.Fatal(err)
		}
		r, err = Echoes(c, 64, 10*time.Millisecond)
		if err != nil || r.Messages == 0 || r.P50 == 0 {
			t.Errorf("echo: %+v, %v", r, err)
		}
	}
	l.Close()
	<-done
}
