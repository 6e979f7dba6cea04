package gvisor

import (
	"fmt"

	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/stack"
	"gvisor.dev/gvisor/pkg/tcpip/transport/tcp"

	"github.com/vrnic/vrnic/netstack/internal/gvconv"
)

// The options are public; what they do to a connection here is nothing that gVisor promises.
//
//	no RACK          with it, gVisor stops for good when single frames are lost (TestLossyWire of
//	                 netstack/tcp). Upstream: transport/tcp/rack.go
//	Reno, not CUBIC  CUBIC leaves slow start (HyStart) when ACKs come in a train, and the window
//	                 stays small (TestWindowGrows). Upstream: transport/tcp/protocol.go, NewProtocol
//	fixed buffers    gVisor changes the size of a send buffer that nobody has set. tcp.Conn
//	                 relies on a size that never shrinks. Upstream: transport/tcp/endpoint.go,
//	                 computeTCPSendBufferSize and its callers
//	no SYN cookies   without window scaling and SACK the peer's window is an odd number, and
//	                 super-frames are cut at it in the middle of the user's frames
//	                 (TestListenBacklog). Upstream: transport/tcp/accept.go, handleListenSegment,
//	                 useSynCookies
//
// What is not set is as gVisor has it: SACK recovery, no keep-alive, a minimum RTO of 200 ms
// (kernel peers delay ACKs by up to 40 ms, so a much lower one would retransmit for nothing),
// TIME-WAIT of 60 s.

// NewTCP makes gVisor's TCP for st.
func NewTCP(st *stack.Stack) stack.TransportProtocol { return tcp.NewProtocol(st) }

// TuneTCP sets the options of st's TCP. sendBuffer and receiveBuffer are in octets, for each
// connection.
func TuneTCP(st *stack.Stack, sendBuffer, receiveBuffer int) error {
	sack := tcpip.TCPSACKEnabled(true)
	recovery := tcpip.TCPRecovery(0)
	delay := tcpip.TCPDelayEnabled(false)
	moderate := tcpip.TCPModerateReceiveBufferOption(false)
	snd := tcpip.TCPSendBufferSizeRangeOption{
		Min: tcp.MinBufferSize, Default: sendBuffer, Max: sendBuffer}
	rcv := tcpip.TCPReceiveBufferSizeRangeOption{
		Min: tcp.MinBufferSize, Default: receiveBuffer, Max: receiveBuffer}
	for _, o := range []tcpip.SettableTransportProtocolOption{
		&sack, &recovery, &delay, &moderate, &snd, &rcv,
	} {
		if err := st.SetTransportProtocolOption(tcp.ProtocolNumber, o); err != nil {
			return fmt.Errorf("TCP option %T: %w", o, gvconv.Error(err))
		}
	}
	return nil
}

// TuneEndpoint sets what an endpoint does not have from its stack.
func TuneEndpoint(ep tcpip.Endpoint, sendBuffer int) {
	o := ep.SocketOptions()
	o.SetDelayOption(false)
	o.SetKeepAlive(false)
	// Setting the size, be it to what it is, is what keeps gVisor from changing it.
	o.SetSendBufferSize(int64(sendBuffer), true)
	o.SetV6Only(true)
}

// minBacklog is how many handshakes may be under way at a listener at least, before gVisor sends
// SYN cookies.
const minBacklog = 128

// Backlog is what a listener is told for up to n connections that wait to be accepted, or
// minBacklog if that is more. gVisor counts one less than it is told, as a socket adds one.
func Backlog(n int) int { return max(n, minBacklog) + 1 }
