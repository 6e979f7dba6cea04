package iwarp

import (
	"fmt"

	"github.com/vrnic/vrnic/lab/rawpeer"
)

// A Lie is a fault of a peer's on a connection: segments of which the last is wrong, and the
// Terminate about that one.
type Lie struct {
	Name string
	IDs  []string
	Bad  []rawpeer.Seg

	Layer, Type, Code byte
	Copies            rawpeer.Copies
	Silent            bool // the stream ends without a Terminate
	TooLong           bool // what comes is longer than the receive
}

// Terminate is the one that is wanted.
func (l *Lie) Terminate() rawpeer.Seg {
	return rawpeer.Terminate(l.Layer, l.Type, l.Code, l.Copies, l.Bad[len(l.Bad)-1])
}

const (
	ddp  = rawpeer.WithDDP
	bare = rawpeer.Bare
)

func seg(s ...rawpeer.Seg) []rawpeer.Seg { return s }

// nowhere is a Write of nothing: its key is not looked at.
var nowhere = rawpeer.Write(0, 0, nil)

// Lies are all of them, by their group.
func Lies() []Lie {
	var all []Lie
	for _, g := range []struct {
		name string
		lies []Lie
	}{{"ddp/tagged, ", TaggedLies()}, {"ddp/", UntaggedLies()}, {"rdmap/", RDMAPLies()},
		{"terminate/", TerminateLies()}} {
		for _, l := range g.lies {
			l.Name = g.name + l.Name
			all = append(all, l)
		}
	}
	return all
}

// TaggedLies are tagged segments that must not be placed.
func TaggedLies() []Lie {
	lies := []Lie{
		{Name: "STag 0", IDs: []string{"DDP-083", "SEC-005"},
			Bad:   seg(rawpeer.Write(0, 0, Octets(1, 1))),
			Layer: 1, Type: 1, Code: 0x00, Copies: ddp},
		{Name: "segment of 13 octets", IDs: []string{"DDP-042"}, Bad: seg(nowhere.Cut(13)),
			Layer: 2, Code: 0x03, Copies: bare},
		{Name: "segment of 1 octet", IDs: []string{"DDP-042"}, Bad: seg(nowhere.Cut(1)),
			Layer: 2, Code: 0x03, Copies: bare},
	}
	for _, dv := range []byte{0, 2, 3} {
		// Nothing of a zero-length segment is checked but its control fields.
		lies = append(lies, Lie{Name: fmt.Sprint("DV ", dv, " of nothing"), IDs: []string{"DDP-025"},
			Bad: seg(nowhere.DDPVersion(dv)), Layer: 1, Type: 1, Code: 0x04, Copies: ddp})
	}
	return lies
}

// UntaggedLies are untagged segments that fit no receive.
func UntaggedLies() []Lie {
	send := rawpeer.Send(1, 0, Octets(8, 1))
	queue := func(name string, code byte, id string, s rawpeer.Seg) Lie {
		return Lie{Name: name, IDs: []string{id}, Bad: seg(s), Layer: 1, Type: 2, Code: code, Copies: ddp}
	}
	lies := []Lie{
		queue("MSN 0", 0x03, "DDP-082", send.Sequence(0)),
		queue("MSN left out", 0x03, "DDP-082", send.Sequence(2)),
		queue("MSN far ahead", 0x03, "DDP-082", send.Sequence(1<<31)),
		queue("MO FFFFFFF0", 0x04, "DDP-080", rawpeer.Send(1, 0xfffffff0, Octets(32, 1))),
		queue("begins in the middle", 0x04, "DDP-080", rawpeer.Send(1, 4, Octets(4, 1))),
		{Name: "much too long", IDs: []string{"DDP-081"}, Bad: seg(rawpeer.Send(1, 0, Octets(1400, 1))),
			Layer: 1, Type: 2, Code: 0x05, Copies: ddp, TooLong: true},
		{Name: "segment of 17 octets", IDs: []string{"DDP-042"},
			Bad: seg(rawpeer.Send(1, 0, nil).Cut(17)), Layer: 2, Code: 0x03, Copies: bare},
	}
	for _, qn := range []uint32{4, 0xffffffff, 1 << 8, 1 << 16, 1 << 31} {
		lies = append(lies, queue(fmt.Sprint("QN ", qn), 0x01, "DDP-076",
			rawpeer.Send(1, 0, Octets(16, 1)).QueueNumber(qn)))
	}
	for _, dv := range []byte{0, 2, 3} {
		lies = append(lies, queue(fmt.Sprint("DV ", dv), 0x06, "DDP-026", send.DDPVersion(dv)))
	}
	return lies
}

// RDMAPLies are what RDMAP refuses.
func RDMAPLies() []Lie {
	var lies []Lie
	add := func(name string, code byte, id string, s rawpeer.Seg) {
		lies = append(lies, Lie{Name: name, IDs: []string{id}, Bad: seg(s), Layer: 0, Type: 2, Code: code,
			Copies: ddp})
	}
	send := rawpeer.Send(1, 0, Octets(8, 1))
	read := rawpeer.ReadRequest(1, rawpeer.Read{SinkSTag: 0xdeadbeef, SinkTO: 1, Size: 0})
	for _, rv := range []byte{0, 2, 3} {
		add(fmt.Sprint("RV ", rv, ", untagged"), 0x05, "RDMAP-118", send.RDMAPVersion(rv))
		add(fmt.Sprint("RV ", rv, ", tagged, of nothing"), 0x05, "RDMAP-118", nowhere.RDMAPVersion(rv))
	}
	for op := byte(8); op < 16; op++ {
		add(fmt.Sprintf("opcode %X", op), 0x06, "RDMAP-117", send.Opcode(op))
		add(fmt.Sprintf("opcode %X, tagged, of nothing", op), 0x06, "RDMAP-117", nowhere.Opcode(op))
	}
	add("Atomic Request", 0x06, "EXT-003", rawpeer.AtomicRequest(1,
		rawpeer.Atomic{Op: rawpeer.FetchAdd, ID: 7, Data: 1}))
	add("Atomic Response", 0x06, "EXT-003", rawpeer.AtomicResponse(1, 1, 1))
	add("Immediate Data", 0x06, "EXT-003", rawpeer.Immediate(1, Octets(8, 1)))
	for op := byte(rawpeer.OpSend); op <= rawpeer.OpTerminate; op++ {
		add(fmt.Sprintf("opcode %X with T=1, of nothing", op), 0x06, "RDMAP-021", nowhere.Opcode(op))
	}
	add("Read Request with T=1, of nothing", 0x06, "RDMAP-021", nowhere.Opcode(rawpeer.OpReadRequest))
	for _, op := range []byte{rawpeer.OpWrite, rawpeer.OpReadResponse} {
		add(fmt.Sprintf("opcode %X with T=0", op), 0x06, "RDMAP-021", send.Opcode(op))
	}
	for _, qn := range []uint32{1, 2} {
		add(fmt.Sprint("Send on QN ", qn), 0x06, "RDMAP-023", send.QueueNumber(qn))
	}
	for _, qn := range []uint32{0, 2} {
		add(fmt.Sprint("Read Request on QN ", qn), 0x06, "RDMAP-023", read.QueueNumber(qn))
	}
	add("empty Read Response for nothing", 0x06, "RDMAP-068", rawpeer.ReadResponse(0, 0, nil))
	for _, n := range []int{0, 4, 27} {
		add(fmt.Sprintf("Read Request of %d octets", n), 0xff, "RDMAP-068", read.Cut(18+n))
	}
	for _, n := range []int{1, 4, 1000} {
		add(fmt.Sprintf("Read Request of %d octets", 28+n), 0xff, "RDMAP-068",
			read.Longer(Octets(n, 0)...))
	}
	return append(lies,
		Lie{Name: "Read Request with MSN 2", IDs: []string{"DDP-082"}, Bad: seg(read.Sequence(2)),
			Layer: 1, Type: 2, Code: 0x03, Copies: ddp},
		Lie{Name: "Read Request on QN 4", IDs: []string{"DDP-076"}, Bad: seg(read.QueueNumber(4)),
			Layer: 1, Type: 2, Code: 0x01, Copies: ddp})
}

// TerminateLies are Terminates that are none.
func TerminateLies() []Lie {
	good := rawpeer.Terminate(0, 0, 0xff, bare, rawpeer.Seg{})
	lie := func(name string, layer, etype, code byte, s rawpeer.Seg) Lie {
		return Lie{Name: name, IDs: []string{"RDMAP-077"}, Bad: seg(s), Layer: layer, Type: etype,
			Code: code, Copies: ddp}
	}
	quiet := func(name string, s rawpeer.Seg) Lie {
		l := lie(name, 0, 2, 0xff, s)
		l.Silent = true
		return l
	}
	return []Lie{
		lie("QN 0", 0, 2, 0x06, good.QueueNumber(0)),
		lie("QN 1", 0, 2, 0x06, good.QueueNumber(1)),
		lie("QN 5", 1, 2, 0x01, good.QueueNumber(5)),
		lie("MSN 0", 1, 2, 0x03, good.Sequence(0)),
		lie("MSN 2", 1, 2, 0x03, good.Sequence(2)),
		lie("MO 4", 1, 2, 0x04, good.Offset(4)),
		lie("MO FFFFFFFF", 1, 2, 0x04, good.Offset(0xffffffff)),
		quiet("no octets", good.Cut(18)),
		quiet("3 octets", good.Cut(21)),
		quiet("1000 octets", good.Longer(Octets(1000, 1)...)),
	}
}

// A Terminated is a Terminate of the peer, in one of its forms: the endpoint says no more and
// closes.
type Terminated struct {
	Name              string
	IDs               []string
	Send              []rawpeer.Seg
	Layer, Type, Code byte
}

// Terminates are those that come on a connection.
func Terminates() []Terminated {
	about := rawpeer.Write(0x00bad0ff, 0x4000, Octets(32, 0))
	swapped := rawpeer.Terminate(1, 2, 0x02, bare, rawpeer.Seg{})
	swapped.Body = append([]byte{0x21, 0x02, 0x03, 0x00, 0x00, 0x20},
		rawpeer.Send(1, 0, nil).ULPDU()...)
	noise := rawpeer.Terminate(1, 1, 0x01, ddp, about)
	noise.Body[2] |= 0x1f
	noise.Body[3] = 0xff
	far := rawpeer.Terminate(1, 1, 0x01, ddp, about)
	ids := []string{"RDMAP-080"}
	return []Terminated{
		{"bare", ids, seg(rawpeer.Terminate(0, 0, 0xff, bare, rawpeer.Seg{})), 0, 0, 0xff},
		{"with the DDP header", ids, seg(rawpeer.Terminate(1, 1, 0x00, ddp, about)), 1, 1, 0x00},
		{"with an untagged header", ids, seg(rawpeer.Terminate(1, 2, 0x02, ddp,
			rawpeer.Send(1, 0, nil))), 1, 2, 0x02},
		{"with a Read Request", ids, seg(rawpeer.Terminate(0, 1, 0x00, rawpeer.WithRead,
			rawpeer.ReadRequest(1, rawpeer.Read{}))), 0, 1, 0x00},
		{"reserved bits", ids, seg(noise), 1, 1, 0x01},
		{"siw's octets", ids, seg(swapped), 1, 2, 0x02},
		{"of the LLP", ids, seg(rawpeer.Terminate(2, 0, 0x02, bare, rawpeer.Seg{})), 2, 0, 0x02},
		{"in three segments", ids, far.Split(9), 1, 1, 0x01},
		{"within a Send", ids, seg(rawpeer.Send(1, 0, Octets(5, 1)).More(), far), 1, 1, 0x01},
		{"within a Write", ids, seg(nowhere.More(), far), 1, 1, 0x01},
		{"and then more", ids, seg(far, rawpeer.Send(1, 0, Octets(5, 1)), far), 1, 1, 0x01},
	}
}
