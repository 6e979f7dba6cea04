package tcp

import (
	"testing"

	"gvisor.dev/gvisor/pkg/tcpip/header"
	"gvisor.dev/gvisor/pkg/tcpip/seqnum"
	"gvisor.dev/gvisor/pkg/tcpip/transport/tcp"
)

// TestOpens: somebody looks at the window for segments only of which gVisor does not tell, wherever
// in the sequence space the connection is, and however long ago the window was looked at last.
func TestOpens(t *testing.T) {
	for _, una := range []seqnum.Value{0, 1 << 20, 3 << 30, 1<<32 - 100} {
		for _, last := range []uint32{0, uint32(una) + 1<<30, uint32(una) - 1<<30} {
			l := &lossControl{c: &Conn{host: new(Host)}}
			l.number.Store(last)
			l.una.Store(uint32(una))
			st := &tcp.TCPSenderState{SndUna: una, SndNxt: una.Add(500), SndWnd: 1000}
			if n := l.withinWindow(st, 20, 100); n != 5 || !l.bound.Load() {
				t.Fatalf("at %d: %d segments fit", una, n)
			}
			opens := func(number seqnum.Value, window uint16) bool {
				h := header.TCP(make([]byte, header.TCPMinimumSize))
				h.Encode(&header.TCPFields{AckNum: uint32(number), Flags: header.TCPFlagAck,
					WindowSize: window, DataOffset: header.TCPMinimumSize})
				return l.opens(h)
			}
			if opens(una.Add(200), 1000) {
				t.Errorf("at %d, behind %d: gVisor tells of an ACK of new octets", una, last)
			}
			if !opens(una.Add(200), 1100) {
				t.Errorf("at %d, behind %d: gVisor does not tell of a window alone", una, last)
			}
			if opens(una.Add(200), 100) {
				t.Errorf("at %d, behind %d: the window has not opened", una, last)
			}
		}
	}
}
