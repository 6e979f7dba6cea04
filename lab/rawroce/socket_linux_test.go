package rawroce

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"os"
	"syscall"
	"testing"
	"time"

	"github.com/vrnic/vrnic/internal/needtest"
)

// The kernel makes the headers that a Packet has, over IPv4 and IPv6: what a socket sends to itself
// comes as it was, its ICRC included, from any port. There is one socket at an address.
func TestSocket(t *testing.T) {
	for _, a := range []netip.Addr{netip.AddrFrom4([4]byte{127, byte(100 + rand.IntN(100)),
		byte(rand.IntN(256)), 7}), netip.IPv6Loopback()} {
		s, err := NewSocket(a, a)
		if errors.Is(err, syscall.EADDRINUSE) || errors.Is(err, syscall.EADDRNOTAVAIL) {
			needtest.Skip(t, fmt.Sprintf("%v is not for this test alone: %v", a, err))
		} else if err != nil {
			t.Fatal(err)
		}
		defer s.Close()
		if _, err := NewSocket(a, a); !errors.Is(err, syscall.EADDRINUSE) {
			t.Errorf("a second socket at %v: %v", a, err)
		}
		for i, port := range []uint16{Port, 0xc123, Port} {
			b := Packet{Src: a, Dst: a, SrcPort: port, Opcode: SendOnly, QPN: 17, PSN: uint32(i),
				Payload: []byte("five.")}.Bytes()
			if err := s.Send(b); err != nil {
				t.Fatal(err)
			}
			got, err := s.Receive(time.Now().Add(time.Minute))
			if err != nil || !bytes.Equal(got, b) {
				t.Errorf("from port %d: % x, %v, not % x", port, got, err, b)
			}
			if _, err := Read(got); err != nil {
				t.Error(err)
			}
		}
		if b, err := s.Receive(time.Now()); !errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("% x, %v, where there is nothing", b, err)
		}
	}
}
