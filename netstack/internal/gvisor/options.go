package gvisor

import (
	"fmt"
	"time"

	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/stack"
	"gvisor.dev/gvisor/pkg/tcpip/transport/tcp"

	"github.com/vrnic/vrnic/netstack/internal/gvconv"
)

// The options are public; what they do to a connection here is nothing that gVisor promises.
//
//	no RACK          with it, gVisor stops for good when single frames are lost: see Sender, which
//	                 replaces it. Upstream: transport/tcp/rack.go
//	Reno             until a Sender has another congestion control. gVisor's CUBIC leaves slow start
//	                 (HyStart) when ACKs come in a train, and the window stays small
//	                 (TestWindowGrows). Upstream: transport/tcp/protocol.go, NewProtocol
//	buffers          gVisor changes the size of a send buffer that nobody has set, also to less.
//	                 tcp.Conn relies on a size that never shrinks, and lets it grow itself where a
//	                 path takes more: see MaxBuffer. "Moderate" has the window scale allow for that;
//	                 gVisor does nothing else about it, as nobody calls ModerateRecvBuf. Upstream:
//	                 transport/tcp/endpoint.go, computeTCPSendBufferSize and its callers,
//	                 rcvWndScaleForHandshake
//	short RTOs       see MaxRTO. Upstream: transport/tcp/snd.go, retransmitTimerExpired
//	no SYN cookies   without window scaling and SACK the peer's window is an odd number, and
//	                 super-frames are cut at it in the middle of the user's frames
//	                 (TestListenBacklog). Upstream: transport/tcp/accept.go, handleListenSegment,
//	                 useSynCookies
//
// What is not set is as gVisor has it: SACK recovery, a minimum RTO of 200 ms
// (kernel peers delay ACKs by up to 40 ms, so a much lower one would retransmit for nothing),
// TIME-WAIT of 60 s.

// MaxBuffer is how large a connection's buffers become, in octets, on a long and fast path: a
// window is half of a receive buffer, and 1 Gbit/s at a round trip of 50 ms has 6 MB under way.
const MaxBuffer = 16 << 20

// GrowSendBuffer lets ep take twice as many octets, up to MaxBuffer. ep is not locked.
func GrowSendBuffer(ep tcpip.Endpoint) {
	o := ep.SocketOptions()
	if n := o.GetSendBufferSize(); n < MaxBuffer {
		o.SetSendBufferSize(min(2*n, MaxBuffer), true)
	}
}

// GrowReceiveBuffer does so for what is received.
func GrowReceiveBuffer(ep tcpip.Endpoint) {
	o := ep.SocketOptions()
	if n := o.GetReceiveBufferSize(); n < MaxBuffer {
		o.SetReceiveBufferSize(min(2*n, MaxBuffer), true)
	}
}

// MaxRTO bounds the retransmission timeout: after a time without a network a connection notices as
// soon that there is one again, be there nothing else that tells. One packet in two seconds does no
// harm: docs/decisions.md#N2.
const MaxRTO = 2 * time.Second

// maxRetries is how often a segment is sent before the connection is given up: with 200, 400, 800,
// 1600 and then 2000 ms, for 15 minutes, as Linux does with 15 and a timeout of up to 120 s.
const maxRetries = 460

// TuneTCP sets the options of st's TCP. sendBuffer and receiveBuffer are in octets, for each
// connection.
func TuneTCP(st *stack.Stack, sendBuffer, receiveBuffer int) error {
	sack := tcpip.TCPSACKEnabled(true)
	recovery := tcpip.TCPRecovery(0)
	delay := tcpip.TCPDelayEnabled(false)
	maxRTO, maxRetries := tcpip.TCPMaxRTOOption(MaxRTO), tcpip.TCPMaxRetriesOption(maxRetries)
	moderate := tcpip.TCPModerateReceiveBufferOption(true)
	snd := tcpip.TCPSendBufferSizeRangeOption{
		Min: tcp.MinBufferSize, Default: sendBuffer, Max: max(sendBuffer, MaxBuffer)}
	rcv := tcpip.TCPReceiveBufferSizeRangeOption{
		Min: tcp.MinBufferSize, Default: receiveBuffer, Max: max(receiveBuffer, MaxBuffer)}
	for _, o := range []tcpip.SettableTransportProtocolOption{
		&sack, &recovery, &delay, &maxRTO, &maxRetries, &moderate, &snd, &rcv,
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
