package record

import (
	"strings"

	"github.com/vrnic/vrnic/sctpddp"
)

// An Op says what a Step is.
type Op uint8

// The Ops. Numbers are those of files: they stay.
const (
	opNone Op = iota

	// Of any engine.
	opReturn // a call is over, with these results
	opEnded  // the engine has failed, and says why

	// Calls of an iwarp.Endpoint.
	opWrite
	opSegment
	opAhead
	opNotice
	opLookout
	opLook
	opResume
	opFail
	opLen
	opRead
	opCommit
	opSetEMSS
	opSetMULPDU
	opPostSend
	opPostWrite
	opPostRead
	opPostAtomic
	opPostImmediate
	opClose

	// Calls of its Host, and of Payloads.
	opPlaceWrite
	opBeginReceive
	opPlaceReceive
	opEndReceive
	opPlaceRead
	opEndRead
	opReadSource
	opEndReadSource
	opAtomic
	opEndAtomic
	opSent
	opCopyOut

	// Calls of a roce.Engine.
	opPost
	opAppend
	opReceive
	opExpire
	opStart
	opUpdate
	opDrain
	opResumeSends
	opHold
	opPass
	opPassed
	opRefuse
	opRecover

	// Calls of its Host.
	opDone
	opPlaceAnswer
	opPlaceOriginal
	opTakeReceive
	opFillReceive
	opFinishReceive
	opFailReceive
	opKeepReceive
	opReceives
	opBeginWrite
	opFillWrite
	opFindSource
	opCarryOut

	// Things that are only looked at.
	OpTaken     // a send request was taken from its ring
	OpCompleted // it has ended
	OpReceived  // a receive has
	OpCall      // a program asked the daemon for something
	OpReply     // and got that answer
	OpBelongs   // from here on it is known of which queue pair a subject is

	// Calls of an iwarp.Initiator or iwarp.Responder.
	opTakeFrame
	opGiveFrame
	opFrameGone
	opReconfigure
	opAcceptStart
	opRejectStart
	opStarted // what has come of it

	// Calls of a roce.UD.
	opSetQKey
	opSetPSN
	opAppendDatagram
	opReceiveDatagram

	// Calls of a cm.Manager, in the order of cm.CallKind from opManager on.
	opRestore
	opManager
	_
	_
	_
	_
	_
	_
	_
	_
	_
	_
	_
	_
	_
	// What it has asked for, and what has come of them.
	opDrew
	opMTU
	opSentMAD
	opTold

	// Calls of an sctp.Endpoint, in the order of sctp.CallKind.
	opSCTP
	_
	_
	_
	_
	_
	_
	_
	_
	_
	_
	_
	_
	_
	_
	// What it has asked for, and what has come of them.
	opDrewOctets
	opLinkMTU
	opAdmitted
	opSCTPPacket
	opSCTPEvent

	// Calls of a sctpddp.Mux and of its Sessions, in the order of sctpddp.CallKind.
	opDDP
	_
	_
	_
	_
	_
	_
	_
	_
	_
	_
	_
	_
	_
	_
	_
	_
	_
	_
	_
	_
	_
	_
	// What they have asked for, and what has come of them.
	opAdaptation
	opStreams
	opGiven
	opSourceLen
	opSource
	opDDPSend
	opDDPDrop
	opDDPAcked
	opMaxPayload
	opDDPShutdown
	opTake
	opScarce
	opAsked
	opDDPAhead
	opDDPSegment
	opDDPFail
	opDDPEvent
	opDDPState
	opAgreed

	numOps
)

// An opInfo is the form of a Step. Arguments whose names end in ! are shown in hexadecimal.
type opInfo struct {
	name   string
	args   []string
	octets bool
	text   bool
	calls  bool // it is a call of an engine
	of     engineKind
}

// An engineKind says whose calls an Op's are.
type engineKind uint8

const (
	anyEngine engineKind = iota
	iwarpEngine
	roceEngine
	startEngine
	managerEngine
	sctpEngine
	ddpEngine
)

var opInfos = func() (t [numOps]opInfo) {
	def := func(op Op, name, args, has string, of engineKind) {
		t[op] = opInfo{name: name, args: strings.Fields(args), octets: strings.Contains(has, "o"),
			text: strings.Contains(has, "t"), calls: strings.Contains(has, "c"), of: of}
	}
	def(opReturn, "returns", "n err!", "ot", anyEngine)
	def(opEnded, "has failed", "", "t", anyEngine)

	const i = iwarpEngine
	def(opWrite, "Write", "", "oc", i)
	def(opSegment, "Segment", "size", "oc", i)
	def(opAhead, "Ahead", "", "oc", i)
	def(opNotice, "Notice", "", "oc", i)
	def(opLookout, "Lookout", "", "c", i)
	def(opLook, "Look", "", "oc", i)
	def(opResume, "Resume", "", "c", i)
	def(opFail, "Fail", "cause!", "tc", i)
	def(opLen, "Len", "", "c", i)
	def(opRead, "Read", "room", "c", i)
	def(opCommit, "Commit", "octets", "c", i)
	def(opSetEMSS, "SetEMSS", "octets", "c", i)
	def(opSetMULPDU, "SetMULPDU", "octets", "c", i)
	def(opPostSend, "PostSend", "token opcode stag! payload length", "c", i)
	def(opPostWrite, "PostWrite", "token stag! to! payload length", "c", i)
	def(opPostRead, "PostRead", "token sink-stag! sink-to! length stag! to!", "c", i)
	def(opPostAtomic, "PostAtomic", "token op stag! to! data! mask! compare! compare-mask!", "c", i)
	def(opPostImmediate, "PostImmediate", "token solicited data!", "c", i)
	def(opClose, "Close", "", "c", i)

	def(opPlaceWrite, "PlaceWrite", "stag! to! last err!", "ot", i)
	def(opBeginReceive, "BeginReceive", "size ok", "", i)
	def(opPlaceReceive, "PlaceReceive", "offset err!", "ot", i)
	def(opEndReceive, "EndReceive",
		"length solicited invalidate stag! immediate data! err!", "t", i)
	def(opPlaceRead, "PlaceRead", "offset err!", "ot", i)
	def(opEndRead, "EndRead", "token err!", "t", i)
	def(opReadSource, "ReadSource", "stag! to! length payload err!", "t", i)
	def(opEndReadSource, "EndReadSource", "payload", "", anyEngine)
	def(opAtomic, "Atomic", "op stag! to! data! mask! compare! compare-mask! old! err!", "t", i)
	def(opEndAtomic, "EndAtomic", "token old! err!", "t", i)
	def(opSent, "Sent", "token", "", i)
	def(opCopyOut, "CopyOut", "payload offset length err!", "ot", anyEngine)

	const r = roceEngine
	def(opPost, "Post", "token op solicited fence length payload addr! rkey! imm! swap! compare!", "c",
		r)
	def(opAppend, "Append", "now", "c", r)
	def(opReceive, "Receive", "now", "oc", r)
	def(opExpire, "Expire", "now", "c", r)
	def(opStart, "Start", "", "tc", r)
	def(opUpdate, "Update", "", "tc", r)
	def(opDrain, "Drain", "", "c", r)
	def(opResumeSends, "Resume", "", "c", r)
	def(opHold, "Hold", "on", "c", r)
	def(opPass, "Pass", "psns", "c", r)
	def(opPassed, "Passed", "psns requests", "c", r)
	def(opRefuse, "Refuse", "syndrome!", "c", r)
	def(opRecover, "Recover", "", "c", r)

	def(opDone, "Done", "token", "", r)
	def(opPlaceAnswer, "PlaceRead", "token offset err!", "ot", r)
	def(opPlaceOriginal, "PlaceOriginal", "token original! err!", "t", r)
	def(opTakeReceive, "BeginReceive", "size ok", "", r)
	def(opFillReceive, "PlaceReceive", "offset last err!", "ot", r)
	def(opFinishReceive, "EndReceive",
		"length write solicited immediate imm! invalidate rkey! source err!", "t", r)
	def(opFailReceive, "FailReceive", "status", "", r)
	def(opKeepReceive, "KeepReceive", "", "", r)
	def(opReceives, "Receives", "n ok", "", r)
	def(opBeginWrite, "BeginWrite", "rkey! addr! length err!", "t", r)
	def(opFillWrite, "PlaceWrite", "offset last err!", "ot", r)
	def(opFindSource, "ReadSource", "rkey! addr! length payload err!", "t", r)
	def(opCarryOut, "Atomic", "op rkey! addr! swap! compare! original! err!", "t", r)

	def(OpTaken, "post", "wr op length flags behind imm!", "", anyEngine)
	def(OpCompleted, "complete", "wr op length status took", "", anyEngine)
	def(OpReceived, "receive", "wr op length status flags imm!", "", anyEngine)
	def(OpCall, "call", "op", "o", anyEngine)
	def(OpReply, "reply", "op errno", "ot", anyEngine)
	def(OpBelongs, "is of", "qpn", "", anyEngine)

	const s = startEngine
	def(opTakeFrame, "Write", "", "oc", s)
	def(opGiveFrame, "Read", "room", "c", s)
	def(opFrameGone, "Commit", "octets", "c", s)
	def(opReconfigure, "Reconfigure", "", "tc", s)
	def(opAcceptStart, "Accept", "ird ord", "oc", s)
	def(opRejectStart, "Reject", "", "oc", s)
	def(opStarted, "comes to", "code!", "t", s)

	def(opSetQKey, "SetQKey", "qkey!", "c", r)
	def(opSetPSN, "SetPSN", "psn", "c", r)
	def(opAppendDatagram, "Append", "dest qkey! length payload solicited immediate imm!", "c", r)
	def(opReceiveDatagram, "Receive", "ip", "oc", r)

	const m = managerEngine
	def(opRestore, "begins with", "", "oc", m)
	for kind, name := range []string{"Receive", "Expire", "Listen", "Unlisten", "Connect", "Accept",
		"Reject", "Ready", "Established", "Disconnect", "Close", "Lookup", "Cancel", "Answer"} {
		def(opManager+Op(kind), name, "now of account most", "otc", m)
	}
	def(opDrew, "Rand", "n!", "", m)
	def(opMTU, "PathMTU", "code", "", m)
	def(opSentMAD, "sends", "class answers of", "ot", m)
	def(opTold, "tells", "event conn listener query lookup resources depth rnr-retries retries "+
		"flow-control srq qpn qkey! reason status timed-out", "ot", m)

	const a = sctpEngine
	for kind, name := range []string{"NewEndpoint", "Input", "ICMP", "LinkUp", "Expire", "Output",
		"NextEvent", "Listen", "StopListening", "Dial", "Send", "Drop", "Shutdown", "Abort", "Release"} {
		def(opSCTP+Op(kind), name, "now of port x! y!", "otc", a)
	}
	def(opDrewOctets, "Rand", "", "o", a)
	def(opLinkMTU, "MTU", "octets", "", a)
	def(opAdmitted, "AdmitAdaptation", "ok", "", a)
	def(opSCTPPacket, "sends", "df encap", "ot", a)
	def(opSCTPEvent, "tells", "event association acked inbound path message stream ssn ppid tsn "+
		"unordered missing octets local remote", "t", a)

	const d = ddpEngine
	for kind, form := range [...]struct{ name, args, has string }{
		sctpddp.CallNew:      {"NewMux", "now", "tc"},
		sctpddp.CallOpen:     {"Open", "", "otc"},
		sctpddp.CallOpenOn:   {"OpenOn", "stream", "otc"},
		sctpddp.CallMuxInput: {"Input", "now stream ppid missing unordered", "oc"},
		sctpddp.CallRequest:  {"Request", "", "c"},
		sctpddp.CallRelease:  {"Release", "now number stream", "c"},
		sctpddp.CallMuxStep:  {"Step", "now", "c"},
		sctpddp.CallDown:     {"Down", "", "c"},

		sctpddp.CallInput:           {"Input", "stream ppid missing unordered", "oc"},
		sctpddp.CallWriteFrom:       {"WriteFrom", "", "c"},
		sctpddp.CallStep:            {"Step", "", "c"},
		sctpddp.CallMULPDU:          {"MULPDU", "", "c"},
		sctpddp.CallEvent:           {"Event", "", "c"},
		sctpddp.CallAttach:          {"Attach", "", "c"},
		sctpddp.CallResume:          {"Resume", "", "c"},
		sctpddp.CallAccept:          {"Accept", "", "otc"},
		sctpddp.CallReject:          {"Reject", "", "oc"},
		sctpddp.CallRefuse:          {"Refuse", "", "c"},
		sctpddp.CallFailNegotiation: {"FailNegotiation", "err!", "tc"},
		sctpddp.CallClose:           {"Close", "", "c"},
		sctpddp.CallAbort:           {"Abort", "", "c"},
		sctpddp.CallAbandon:         {"Abandon", "", "c"},
		sctpddp.CallLost:            {"Lost", "kind err!", "tc"},
	} {
		def(opDDP+Op(kind), form.name, form.args, form.has, d)
	}
	def(opAdaptation, "PeerAdaptation", "code! present", "", d)
	def(opStreams, "Streams", "out in", "", d)
	def(opGiven, "gives out", "number stream state recorded", "t", d)
	def(opSourceLen, "Len", "octets", "", d)
	def(opSource, "Read", "", "o", d)
	def(opDDPSend, "sends", "stream ppid id err!", "ot", d)
	def(opDDPDrop, "Drop", "stream n", "", d)
	def(opDDPAcked, "Acked", "id", "", d)
	def(opMaxPayload, "MaxPayload", "octets", "", d)
	def(opDDPShutdown, "Shutdown", "", "", d)
	def(opTake, "Take", "octets ok", "", d)
	def(opScarce, "Scarce", "yes", "", d)
	def(opAsked, "Asked", "n", "", d)
	def(opDDPAhead, "Ahead", "keep", "o", d)
	def(opDDPSegment, "Segment", "size err!", "ot", d)
	def(opDDPFail, "Fail", "cause!", "t", d)
	def(opDDPEvent, "tells", "event err!", "ot", d)
	def(opDDPState, "is", "state", "t", d)
	def(opAgreed, "agrees on", "", "t", d)
	return t
}()

// known reports whether there is such an Op.
func (op Op) known() bool { return op < numOps && opInfos[op].name != "" }

func (op Op) info() *opInfo { return &opInfos[op] }

func (op Op) String() string {
	if !op.known() {
		return "?"
	}
	return opInfos[op].name
}
