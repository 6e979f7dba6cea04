package gvisor

import (
	"reflect"
	"time"
	"unsafe"

	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/seqnum"
	"gvisor.dev/gvisor/pkg/tcpip/stack"
	"gvisor.dev/gvisor/pkg/tcpip/transport/tcp"
)

// What is lost, and how much may be under way, is found out by netstack/tcp/recovery. gVisor's own
// loss recovery takes each reordered segment for a loss, cannot see that a retransmission is lost,
// and its RACK stops for good: it marks super-frames as arrived of which a part has, looks at the
// first of several SACK blocks only (snd.go, walkSACK), and has what DupThresh does not call lost
// count against the window (snd.go, SetPipe). So a Sender takes gVisor's congestion control out,
// puts another in, and sends again what it is told to. Without this connections are slow on paths
// that lose or reorder.
//
// Upstream: transport/tcp/snd.go: sender and its fields TCPSenderState, cc, rtt, writeList,
// writeNext, firstRetransmittedSegXmitTime, zeroWindowProbing and unackZeroWindowProbes, and the
// lastRcvdAckTime of receiver, found by reflection; sendData,
// sendSegment, splitSeg, updateWriteNext and updateRTO; handleRcvdSegment, which calls cc.Update
// between taking what is acknowledged off the list and sendData, takes an ACK without SACK blocks
// for no duplicate where SACK is in use, and retransmitTimerExpired, which calls
// cc.HandleRTOExpired, then has all sent again. segment.go: the fields of segment. TestSender says
// what has changed; the program does not start if a field has.

// A CongestionControl is gVisor's interface of that name: it is called with the endpoint locked.
type CongestionControl interface {
	HandleLossDetected()
	HandleRTOExpired()
	Update(packetsAcked int, rtt time.Duration)
	PostRecovery()
}

var (
	senderType  = reflect.TypeFor[tcp.Endpoint]().Field(sndField).Type.Elem()
	listType    = fieldOf(senderType, "writeList", reflect.Struct).Type
	headsType   = fieldOf(listType, "writeList", reflect.Struct).Type
	segmentType = fieldOf(headsType, "head", reflect.Pointer).Type.Elem()

	atState     = fieldOf(senderType, "TCPSenderState", reflect.Struct).Offset
	atControl   = fieldOf(senderType, "cc", reflect.Interface)
	atWriteNext = fieldOf(senderType, "writeNext", reflect.Pointer).Offset
	atProbing   = fieldOf(senderType, "zeroWindowProbing", reflect.Bool).Offset
	atFirst     = fieldOf(senderType, "firstRetransmittedSegXmitTime", reflect.Struct).Offset
	atRTT       = fieldOf(senderType, "rtt", reflect.Struct).Offset +
		fieldOf(fieldOf(senderType, "rtt", reflect.Struct).Type, "TCPRTTState", reflect.Struct).Offset
	atFront = fieldOf(senderType, "writeList", reflect.Struct).Offset +
		fieldOf(listType, "writeList", reflect.Struct).Offset +
		fieldOf(headsType, "head", reflect.Pointer).Offset

	atNext = fieldOf(segmentType, "segmentEntry", reflect.Struct).Offset +
		fieldOf(fieldOf(segmentType, "segmentEntry", reflect.Struct).Type, "next", reflect.Pointer).Offset
	atUnanswered = fieldOf(senderType, "unackZeroWindowProbes", reflect.Uint32).Offset
	receiver     = fieldOf(reflect.TypeFor[tcp.Endpoint](), "rcv", reflect.Pointer)
	atReceiver   = fieldOf(receiver.Type.Elem(), "TCPReceiverState", reflect.Struct).Offset
	atLast       = fieldOf(receiver.Type.Elem(), "lastRcvdAckTime", reflect.Struct).Offset

	atSeq   = fieldOf(segmentType, "sequenceNumber", reflect.Uint32).Offset
	atPkt   = fieldOf(segmentType, "pkt", reflect.Pointer).Offset
	atCount = fieldOf(segmentType, "xmitCount", reflect.Uint32).Offset
)

// fieldOf is t's field of that name and kind.
func fieldOf(t reflect.Type, name string, k reflect.Kind) reflect.StructField {
	f, ok := t.FieldByName(name)
	if !ok || f.Type.Kind() != k || len(f.Index) != 1 {
		panic("netstack: gVisor's " + t.String() + " has changed: " + name)
	}
	return f
}

//go:linkname sendData gvisor.dev/gvisor/pkg/tcpip/transport/tcp.(*sender).sendData
func sendData(s unsafe.Pointer)

//go:linkname sendSegment gvisor.dev/gvisor/pkg/tcpip/transport/tcp.(*sender).sendSegment
func sendSegment(s, seg unsafe.Pointer) tcpip.Error

//go:linkname splitSegment gvisor.dev/gvisor/pkg/tcpip/transport/tcp.(*sender).splitSeg
func splitSegment(s, seg unsafe.Pointer, size int)

//go:linkname updateWriteNext gvisor.dev/gvisor/pkg/tcpip/transport/tcp.(*sender).updateWriteNext
func updateWriteNext(s, seg unsafe.Pointer)

//go:linkname sendAck gvisor.dev/gvisor/pkg/tcpip/transport/tcp.(*sender).sendAck
func sendAck(s unsafe.Pointer)

//go:linkname timestampNow gvisor.dev/gvisor/pkg/tcpip/transport/tcp.(*Endpoint).tsValNow
func timestampNow(ep *tcp.Endpoint) uint32

// A Sender is the sending half of an endpoint that is established. Its methods need the endpoint
// locked.
type Sender struct {
	s    unsafe.Pointer
	rcv  *tcp.TCPReceiverState
	last *tcpip.MonotonicTime // when something has come from the peer
	at   unsafe.Pointer       // the segment that Resend has sent last, until Sender.Rewind
	done seqnum.Value         // where that ends

	cuts      int          // that were not between two packets; see Sender.mayCut
	cutsUntil seqnum.Value // they count until this is acknowledged
}

// maxCuts bounds how often what was sent is cut anywhere else than between two packets. What an
// honest peer has got ends where a packet did, unless something on the path packs segments anew. A
// peer that says to have every other octet would have each segment cut to pieces of an octet, which
// take some hundred octets each and stay until they are acknowledged.
const maxCuts = 512

// mayCut reports whether one more cut is within the bound, and counts it. The count begins anew
// when all is acknowledged that was sent before the first cut: at most 2*maxCuts are left at once.
func (s *Sender) mayCut() bool {
	st := s.State()
	if s.cuts == 0 || s.cutsUntil.LessThanEq(st.SndUna) {
		s.cuts, s.cutsUntil = 0, st.SndNxt
	}
	if s.cuts >= maxCuts {
		return false
	}
	s.cuts++
	return true
}

// SenderOf is ep's, or one that is not there.
func SenderOf(ep *tcp.Endpoint) Sender {
	e := reflect.ValueOf(ep).Elem()
	s := Sender{s: e.Field(sndField).UnsafePointer()}
	if r := e.FieldByIndex(receiver.Index).UnsafePointer(); r != nil {
		s.last = (*tcpip.MonotonicTime)(unsafe.Add(r, atLast))
		s.rcv = (*tcp.TCPReceiverState)(unsafe.Add(r, atReceiver))
	}
	return s
}

// Exists reports whether there is one.
func (s *Sender) Exists() bool { return s.s != nil }

// SetControl has cc be the congestion control.
func (s *Sender) SetControl(cc CongestionControl) {
	reflect.NewAt(atControl.Type, unsafe.Add(s.s, atControl.Offset)).Elem().Set(reflect.ValueOf(cc))
}

// State is gVisor's, to be read and written.
func (s *Sender) State() *tcp.TCPSenderState {
	return (*tcp.TCPSenderState)(unsafe.Add(s.s, atState))
}

// RTT is what the retransmission timeout is made of, to be read and written.
func (s *Sender) RTT() *tcp.TCPRTTState { return (*tcp.TCPRTTState)(unsafe.Add(s.s, atRTT)) }

// ZeroWindow reports whether the peer has closed its window and is asked whether it has opened it.
func (s *Sender) ZeroWindow() bool { return *(*bool)(unsafe.Add(s.s, atProbing)) }

// Unsent reports whether there is anything to send that was not sent, or is to be sent again.
func (s *Sender) Unsent() bool {
	return *(*unsafe.Pointer)(unsafe.Add(s.s, atWriteNext)) != nil
}

// Heard has the user timeout begin anew: the peer has acknowledged something. gVisor does so only
// when all is acknowledged, and would give up a busy connection for two timeouts a minute apart.
func (s *Sender) Heard() {
	*(*tcpip.MonotonicTime)(unsafe.Add(s.s, atFirst)) = tcpip.MonotonicTime{}
}

// WindowShut has the user timeout count from when the peer was heard of last: who answers when it
// is asked whether its window is open may keep it shut for as long as it likes (RFC 9293, section
// 3.8.6.1). For gVisor the time begins with the first question.
func (s *Sender) WindowShut() {
	first := (*tcpip.MonotonicTime)(unsafe.Add(s.s, atFirst))
	if first.Before(*s.last) {
		*first = *s.last
		*(*uint32)(unsafe.Add(s.s, atUnanswered)) = 0
	}
}

// Timestamp is what ep puts into the timestamp option now.
func Timestamp(ep *tcp.Endpoint) uint32 { return timestampNow(ep) }

// SendData sends what the windows allow.
func (s *Sender) SendData() { sendData(s.s) }

// SendAck sends an ACK.
func (s *Sender) SendAck() { sendAck(s.s) }

// Receiver is what gVisor knows of the other half, which is there if the Sender is, to be read. An
// ACK follows what has come only if State().MaxSentAck is not Receiver().RcvNxt.
func (s *Sender) Receiver() *tcp.TCPReceiverState { return s.rcv }

func (s *Sender) front() unsafe.Pointer { return *(*unsafe.Pointer)(unsafe.Add(s.s, atFront)) }

func next(seg unsafe.Pointer) unsafe.Pointer { return *(*unsafe.Pointer)(unsafe.Add(seg, atNext)) }
func sequence(seg unsafe.Pointer) seqnum.Value {
	return *(*seqnum.Value)(unsafe.Add(seg, atSeq))
}
func sent(seg unsafe.Pointer) bool { return *(*uint32)(unsafe.Add(seg, atCount)) != 0 }
func size(seg unsafe.Pointer) int {
	return (*(**stack.PacketBuffer)(unsafe.Add(seg, atPkt))).Data().Size()
}

// packets is how many packets gVisor counts n octets as.
func packets(n, segment int) int { return max((n+segment-1)/segment, 1) }

// split cuts n octets off the front of seg.
func (s *Sender) split(seg unsafe.Pointer, n int) {
	st := s.State()
	all := size(seg)
	splitSegment(s.s, seg, n)
	st.Outstanding += packets(n, st.MaxPayloadSize) + packets(all-n, st.MaxPayloadSize) -
		packets(all, st.MaxPayloadSize)
}

// Rewind has Resend look from the beginning: the list may have changed since.
func (s *Sender) Rewind() { s.at = nil }

// Whole is how many octets from start on, most at most, are whole packets as they were sent, but
// one packet at least: so much is sent again without a cut that was not there before. 0: they were
// not sent.
func (s *Sender) Whole(start uint32, most int) (n int) {
	from, packet := seqnum.Value(start), s.State().MaxPayloadSize
	for seg := s.find(from); seg != nil && sent(seg); seg = next(seg) {
		left := int(sequence(seg).Add(seqnum.Size(size(seg))) - from)
		if left == 0 && n == 0 { // a FIN
			return 1
		}
		for left > 0 {
			one := packet - int(from-sequence(seg))%packet
			if one = min(one, left); n > 0 && n+one > most {
				return n
			}
			n, left, from = n+one, left-one, from.Add(seqnum.Size(one))
		}
	}
	return n
}

// Begin is where the first packet begins that was sent from start on, or the last one if none does.
func (s *Sender) Begin(start uint32) uint32 {
	from, packet := seqnum.Value(start), s.State().MaxPayloadSize
	seg := s.find(from)
	if seg == nil {
		return start
	}
	at := int(from - sequence(seg))
	whole := at / packet * packet
	switch after := next(seg); {
	case whole == at:
	case whole+packet < size(seg):
		whole += packet
	case after != nil && sent(after) && size(after) > 0:
		return uint32(sequence(after))
	}
	return uint32(sequence(seg)) + uint32(whole)
}

// find finds the segment with the octet at from, or a FIN there.
func (s *Sender) find(from seqnum.Value) (seg unsafe.Pointer) {
	if seg = s.at; seg == nil || from.LessThan(sequence(seg)) {
		seg = s.front()
	}
	for seg != nil && sent(seg) {
		if n := size(seg); from.LessThan(sequence(seg).Add(seqnum.Size(max(n, 1)))) {
			return seg
		}
		seg = next(seg)
	}
	return nil
}

// Resend sends the octets from start up to end again, which were sent before. Between two Rewinds
// start grows, or the search begins anew. When the peer has had enough cuts what is before start
// and behind end in the same packets is sent, too, once between two Rewinds.
func (s *Sender) Resend(start, end uint32) {
	from, to := seqnum.Value(start), seqnum.Value(end)
	seg := s.at
	switch {
	case seg == nil || from.LessThan(sequence(seg)):
		seg = s.front()
	case from.LessThan(s.done):
		from = s.done
	}
	for seg != nil && sent(seg) && from.LessThan(to) {
		n := size(seg)
		after := sequence(seg).Add(seqnum.Size(n))
		if n == 0 { // a FIN
			if from == after {
				sendSegment(s.s, seg)
			}
			break
		}
		if after.LessThanEq(from) {
			seg = next(seg)
			continue
		}
		packet := s.State().MaxPayloadSize
		if before := int(from - sequence(seg)); from != sequence(seg) {
			if before%packet != 0 && !s.mayCut() {
				before -= before % packet
				from = sequence(seg).Add(seqnum.Size(before))
			}
			if before > 0 {
				s.split(seg, before)
				seg = next(seg)
				continue
			}
		}
		if most := min(int(to-from), packet); n > most {
			if most < packet && !s.mayCut() {
				most = min(n, packet)
			}
			if n > most {
				s.split(seg, most)
				n = most
			}
		}
		s.at = seg
		if st := s.State(); st.RTTMeasureSeqNum == sequence(seg) {
			st.RTTMeasureSeqNum = st.SndNxt // Karn: no round trip is taken from what was sent twice
		}
		sendSegment(s.s, seg)
		from = from.Add(seqnum.Size(n))
		s.done = from
		seg = next(seg)
	}
}

// Forward undoes what a timeout of gVisor's does to what was sent: it is under way again, and what
// comes next was not sent yet. It returns how many octets gVisor has sent again.
func (s *Sender) Forward() (again int) {
	st := s.State()
	n := 0
	next0 := *(*unsafe.Pointer)(unsafe.Add(s.s, atWriteNext))
	passed := false
	seg := s.front()
	for ; seg != nil && sent(seg); seg = next(seg) {
		if seg == next0 {
			passed = true
		}
		if !passed {
			again += size(seg)
		}
		n += packets(size(seg), st.MaxPayloadSize)
	}
	st.Outstanding = n
	updateWriteNext(s.s, seg)
	return again
}
