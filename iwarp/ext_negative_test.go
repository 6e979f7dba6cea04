package iwarp_test

import (
	"errors"
	"fmt"

	. "github.com/vrnic/vrnic/iwarp"
)

// atomReq is the segment of an Atomic Request.
func atomReq(msn MSN, id uint32, a Atomic) []byte {
	return AppendAtomicRequest(AppendUntagged(nil, true, OpAtomicRequest, 0, msn, 0), id, a)
}

func atomResp(msn MSN, id uint32, old uint64) []byte {
	return AppendAtomicResponse(AppendUntagged(nil, true, OpAtomicResponse, 0, msn, 0), id, old)
}

func immSeg(op Opcode, msn MSN, data uint64) []byte {
	seg := AppendUntagged(nil, true, op, 0, msn, 0)
	for i := range 8 {
		seg = append(seg, byte(data>>(56-8*i)))
	}
	return seg
}

// notLast is seg without the L bit.
func notLast(seg []byte) []byte { return with(seg, 0, seg[0]&^0x40) }

// cutSeg cuts an untagged message of one segment at the given octets behind its header.
func cutSeg(seg []byte, at ...int) (segs [][]byte) {
	op, msn, body := Opcode(seg[1]&15), UntaggedHeader(seg).MSN(), seg[18:]
	from := 0
	for _, to := range append(at, len(body)) {
		segs = append(segs, append(AppendUntagged(nil, to == len(body), op, 0, msn, uint32(from)),
			body[from:to]...))
		from = to
	}
	return segs
}

// post is a setup that posts receive buffers.
func post(sizes ...int) func(*raw) {
	return func(r *raw) {
		for _, n := range sizes {
			r.h.posted = append(r.h.posted, make([]byte, n))
		}
	}
}

// requests is a setup with requests of ours that are out: 'a' is an atomic, 'r' a Read of 8 octets
// into (0x99, 5). Their tokens count from 7.
func requests(kinds string) func(*raw) {
	return func(r *raw) {
		for i, k := range kinds {
			token := uint64(7 + i)
			r.h.order = append(r.h.order, token)
			var err error
			if k == 'a' {
				err = r.PostAtomic(token, Atomic{STag: 0x10, Data: 1})
			} else {
				r.h.sinks[token] = make([]byte, 8)
				err = r.PostRead(token, 0x99, 5, 8, 0x10, 0)
			}
			if err != nil {
				panic(err)
			}
		}
		for r.Pending() {
			drain(r)
		}
	}
}

// extFatals are the rows of RFC 7306's messages: EXT-005, 006, 008, 011, 014, 019, 020, 023, 030,
// 040, 045..048; A7, A10, A12, A13, A14, A16, A17, A21, A24.
func extFatals() (tt []fatal) {
	add := func(ids, name, control string, bad []byte, good ...[]byte) *fatal {
		tt = append(tt, fatal{name: name, ids: ids, good: good, bad: bad, control: control, mdr: "d",
			only: "on"})
		return &tt[len(tt)-1]
	}
	refuse := func(err error) func(*raw) {
		return func(r *raw) {
			r.h.broken = func(op string) error {
				if op == "Atomic" || op == "EndAtomic" || op == "EndReceive" {
					return err
				}
				return nil
			}
			r.h.posted = [][]byte{make([]byte, 8)}
		}
	}
	fetch := Atomic{STag: 0x10, TO: 8, Data: 1}
	ops := map[Opcode][]byte{
		OpImmediate: immSeg(OpImmediate, 1, 1), OpImmediateSE: immSeg(OpImmediateSE, 1, 1),
		OpAtomicRequest: atomReq(1, 1, fetch), OpAtomicResponse: atomResp(1, 1, 1),
	}

	// control fields and queues
	for op := OpImmediate; op <= OpAtomicResponse; op++ {
		seg := ops[op]
		for rv := range byte(4) {
			if rv != 1 {
				add("EXT-005", fmt.Sprintf("%v with RV %d", op, rv), "0205c000", with(seg, 1, rv<<6|byte(op)))
			}
		}
		for _, dv := range []byte{0, 2, 3} {
			add("EXT-046", fmt.Sprintf("%v with DV %d", op, dv), "1206c000", with(seg, 0, 0x40|dv))
		}
		add("EXT-006", fmt.Sprintf("%v with T=1", op), "0206c000",
			with(writeSeg(OpWrite, true, 0x10, 0, 8), 1, 0x40|byte(op)))
		for qn := range uint32(5) {
			row := map[Opcode]uint32{OpImmediate: 0, OpImmediateSE: 0, OpAtomicRequest: 1,
				OpAtomicResponse: 3}
			switch {
			case qn == row[op]:
			case qn == 4:
				add("EXT-006", fmt.Sprintf("%v on QN 4", op), "1201c000", withQN(seg, qn))
			default:
				add("EXT-006", fmt.Sprintf("%v on QN %d", op, qn), "0206c000", withQN(seg, qn))
			}
		}
	}
	for _, op := range []Opcode{OpSend, OpReadRequest, OpTerminate} {
		add("EXT-006", fmt.Sprintf("%v on QN 3", op), "0206c000", withQN(sendSeg(op, true, 1, 0, 28), 3))
	}

	// sizes
	for _, n := range []int{0, 4, 7, 9, 16} {
		seg := append(AppendUntagged(nil, true, OpImmediate, 0, 1, 0), make([]byte, n)...)
		add("EXT-008, EXT-040, A16", fmt.Sprintf("Immediate Data of %d octets", n), "02ffc000",
			seg).setup = post(4)
	}
	nine := cutSeg(append(ops[OpImmediateSE], 0), 4)
	add("EXT-040", "Immediate Data of 4 and 5 octets", "02ffc000", nine[1], nine[0]).setup = post(100)
	eight := cutSeg(ops[OpImmediate], 4)
	add("A10", "Immediate Data with a gap", "1204c000", eight[1]).setup = post(100)
	add("A10", "Immediate Data with octets again", "1204c000", eight[1], eight[0], eight[0]).setup =
		post(100)
	add("DDP-080", "Immediate Data with MO 9", "1204c000",
		append(AppendUntagged(nil, true, OpImmediate, 0, 1, 9), 1)).setup = post(100)
	for _, n := range []int{0, 51} {
		add("EXT-008, A16", fmt.Sprintf("Atomic Request of %d octets", n), "02ffc000",
			ops[OpAtomicRequest][:18+n])
	}
	add("EXT-008, A16", "Atomic Request of 53 octets", "02ffc000", append(atomReq(1, 1, fetch), 0))
	add("EXT-008, A24", "Atomic Request of 30 and 23 octets", "02ffc000",
		append(AppendUntagged(nil, true, OpAtomicRequest, 0, 1, 30), make([]byte, 23)...),
		cutSeg(ops[OpAtomicRequest], 30)[0])
	for _, n := range []int{0, 11} {
		add("EXT-008, EXT-030", fmt.Sprintf("Atomic Response of %d octets", n), "02ffc000",
			ops[OpAtomicResponse][:18+n]).setup = requests("a")
	}
	add("EXT-008, EXT-030", "Atomic Response of 13 octets", "02ffc000", append(atomResp(1, 1, 1),
		0)).setup = requests("a")

	// Immediate Data shares QN 0 with Sends
	add("EXT-037, DDP-082", "Immediate Data with MSN 0", "1203c000", immSeg(OpImmediate, 0, 1)).setup =
		post(100)
	add("EXT-037, DDP-082", "Immediate Data with the MSN of a Send", "1203c000",
		immSeg(OpImmediate, 1, 1), sendSeg(OpSend, true, 1, 0, 5)).setup = post(100, 100)
	add("EXT-037, DDP-082", "Send with the MSN of Immediate Data", "1203c000", sendSeg(OpSend, true, 1,
		0, 5), immSeg(OpImmediate, 1, 1)).setup = post(100, 100)
	add("A7", "Immediate Data within a Send", "0206c000", immSeg(OpImmediate, 1, 1),
		sendSeg(OpSend, false, 1, 0, 5)).setup = post(100, 100)
	add("A7", "Send within Immediate Data", "0206c000", sendSeg(OpSend, true, 1, 4, 5),
		eight[0]).setup = post(100, 100)
	add("A7", "Immediate Data of both kinds", "0206c000", with(eight[1], 1, 0x49), eight[0]).setup =
		post(100, 100)
	add("A23", "Immediate Data cannot be delivered", "10000000", ops[OpImmediate]).setup = refuse(
		errors.New("gone"))
	tt[len(tt)-1].mdr = ""

	// Atomic Requests share QN 1 with Reads
	for code, c := range []TermCode{TermReadInvalidSTag, TermReadBounds, TermReadAccess,
		TermReadNotAssociated, TermReadTOWrap} {
		add("EXT-045, EXT-048, A12, A14", "atomic: "+c.String(), fmt.Sprintf("01%02xc000", code),
			ops[OpAtomicRequest]).setup = refuse(&LocalError{Cause: c})
	}
	add("EXT-048", "atomic on an unknown STag", "0100c000", atomReq(1, 1, Atomic{STag: 0xbad}))
	add("EXT-048", "atomic out of bounds", "0101c000", atomReq(1, 1, Atomic{STag: 0x10, TO: 57}))
	add("EXT-048", "atomic with a TO that wraps", "0104c000",
		atomReq(1, 1, Atomic{STag: 0x10, TO: ^uint64(7)}))
	for to := range uint64(8) {
		if to > 0 {
			add("EXT-014, EXT-047", fmt.Sprintf("atomic at %d", to), "0207c000",
				atomReq(1, 1, Atomic{STag: 0x10, TO: to, Data: 1}))
		}
	}
	add("EXT-014", "atomic at TO 8 of an odd base", "0207c000", atomReq(1, 1, fetch)).setup =
		func(r *raw) { r.h.base = 4 }
	for op := range AtomicOp(16) {
		if op != AtomicFetchAdd && op != AtomicCompareSwap {
			add("EXT-019, A13", op.String(), "0206c000", atomReq(1, 1, Atomic{Op: op, STag: 0x10}))
		}
	}
	add("EXT-019", "AOpCode before the target", "0206c000",
		atomReq(1, 1, Atomic{Op: 1, STag: 0xbad, TO: 1}))
	add("RDMAP-112", "target lost", "00ff0000", ops[OpAtomicRequest]).setup = refuse(
		errors.New("gone"))
	tt[len(tt)-1].mdr = ""
	add("EXT-017, DDP-082", "atomic with the MSN of a Read", "1203c000", ops[OpAtomicRequest],
		readReq(1, 8, 0x10, 0))
	add("EXT-017, DDP-082", "Read with the MSN of an atomic", "1203c000", readReq(1, 8, 0x10, 0),
		ops[OpAtomicRequest])
	add("EXT-023, A5, A17", "more atomics and Reads than IRD", "1202c000", atomReq(3, 1, fetch),
		readReq(1, 8, 0x10, 0), atomReq(2, 1, fetch))
	add("EXT-023, A5, A17", "more Reads and atomics than IRD", "1202c000", readReq(3, 8, 0x10, 0),
		atomReq(1, 1, fetch), atomReq(2, 1, fetch))
	add("A7", "atomic within a Send", "0206c000", ops[OpAtomicRequest], sendSeg(OpSend, false, 1, 0,
		5)).setup = post(100)
	add("A7", "atomic within a Read Request", "0206c000", ops[OpAtomicRequest],
		cutSeg(readReq(1, 8, 0x10, 0), 20)[0])
	add("A7", "two atomics behind an unfinished Write", "0206c000", atomReq(2, 1, fetch),
		writeSeg(OpWrite, false, 0x10, 16, 8), ops[OpAtomicRequest])

	// Atomic Responses
	add("EXT-030", "unsolicited Atomic Response", "1202c000", ops[OpAtomicResponse])
	add("EXT-030", "Atomic Response to a Read", "1202c000", ops[OpAtomicResponse]).setup =
		requests("r")
	add("EXT-030", "Atomic Response to a request that is not out", "1202c000",
		ops[OpAtomicResponse]).setup = func(r *raw) {
		if err := r.PostAtomic(7, Atomic{STag: 0x10}); err != nil {
			panic(err)
		}
	}
	add("EXT-030", "second Atomic Response", "1202c000", atomResp(2, 2, 1),
		ops[OpAtomicResponse]).setup = requests("a")
	add("EXT-026", "Atomic Response before that to an earlier Read", "0206c000",
		atomResp(1, 2, 1)).setup = requests("ra")
	add("EXT-026", "Read Response before that to an earlier atomic", "0206c000",
		writeSeg(OpReadResponse, true, 0x99, 5, 8)).setup = requests("ar")
	for _, msn := range []MSN{0, 2, 0xffffffff} {
		add("EXT-011, EXT-030, A21", fmt.Sprintf("Atomic Response with MSN %d", msn), "1203c000",
			atomResp(msn, 1, 1)).setup = requests("a")
	}
	add("A21", "Atomic Response: MSN before buffer", "1203c000", atomResp(2, 1, 1))
	for _, id := range []uint32{0, 2, 0xffffffff} {
		add("EXT-020, EXT-030", fmt.Sprintf("Atomic Response with identifier %#x", id), "02ffc000",
			atomResp(1, id, 1)).setup = requests("aa")
	}
	add("EXT-020", "Atomic Responses in the wrong order", "02ffc000", atomResp(1, 2, 1)).setup =
		requests("aa")
	add("A7", "Atomic Response within a Read Response", "0206c000", atomResp(1, 2, 1),
		writeSeg(OpReadResponse, false, 0x99, 5, 4)).setup = requests("ra")
	add("A10", "Atomic Response with a gap", "1204c000", cutSeg(ops[OpAtomicResponse], 4)[1]).setup =
		requests("a")
	add("A23", "Atomic Response cannot be delivered", "10000000", ops[OpAtomicResponse]).setup =
		func(r *raw) {
			requests("a")(r)
			r.h.broken = func(string) error { return errors.New("gone") }
		}
	tt[len(tt)-1].mdr = ""
	return tt
}
