package netstack_test

import (
	"encoding/binary"
	"sync"
	"testing"
	"time"

	"github.com/vrnic/vrnic/netstack/ethswitch"
	"github.com/vrnic/vrnic/netstack/frame"
	"github.com/vrnic/vrnic/netstack/frame/frametest"
	"github.com/vrnic/vrnic/netstack/netstacktest"
	"github.com/vrnic/vrnic/netstack/port/porttest"
)

// Fragments that come while a stack is closed do not keep it from that.
func TestCloseUnderFragments(t *testing.T) {
	for range 20 {
		sw := ethswitch.New(ethswitch.Config{})
		s := netstacktest.NewStack(t, sw, 1, 1500)
		in := porttest.NewPort(t, sw, "in", false)
		m := s.MAC()
		b := make([]byte, 14+20+8)
		copy(b, m[:])
		copy(b[6:],
			"\x02\x00\x00\x00\x00\x09\x08\x00\x45\x00\x00\x1c\x00\x00\x20\x00"+
				"\x40\x11\x00\x00\x0a\x4d\x00\x09\x0a\x4d\x00\x01")
		begun, stop := make(chan struct{}), make(chan struct{})
		var wg sync.WaitGroup
		wg.Go(func() {
			for id := 0; ; id++ {
				if id == 100 {
					close(begun)
				}
				select {
				case <-stop:
					return
				default:
				}
				binary.BigEndian.PutUint16(b[18:], uint16(id))
				b[24], b[25] = 0, 0
				binary.BigEndian.PutUint16(b[24:], frametest.InetChecksum(b[14:34]))
				in.Send(b, frame.Offload{}) // until it is closed
			}
		})
		<-begun
		closed := make(chan struct{})
		go func() { s.Close(); close(closed) }()
		select {
		case <-closed:
		case <-time.After(time.Minute):
			t.Fatal("Close hangs")
		}
		close(stop)
		wg.Wait()
	}
}
