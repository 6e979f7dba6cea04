package iwarp

import (
	"encoding/binary"
	"fmt"
	"strings"

	"github.com/vrnic/vrnic/lab/rawpeer"
	"github.com/vrnic/vrnic/lab/torture"
)

// A row is a case, and what its peer does.
type row struct {
	name string
	ids  []string
	want string
	run  func(a *attempt) error
}

// Suite is all of them, with connections of dial.
func Suite(dial Dialer) torture.Suite {
	s := torture.Suite{Transport: "iwarp", ComesUp: tried(dial, comesUp)}
	for _, r := range rows() {
		s.Cases = append(s.Cases, torture.Case{Name: r.name, IDs: r.ids, Want: r.want,
			Try: tried(dial, r.run)})
	}
	return s
}

func rows() []row {
	var cs []row
	for _, s := range BadStarts() {
		cs = append(cs, row{"request/" + s.Name, s.IDs, "the connection is closed without a word",
			s.run})
	}
	for _, q := range goodRequests() {
		cs = append(cs, row{"request/" + q.name, q.ids, "a Reply that fits, and a connection that works",
			q.run})
	}
	cs = append(cs, framing()...)
	for _, l := range Lies() {
		want := words(l.Terminate()) + ", and a FIN"
		if l.Silent {
			want = "a FIN without a Terminate"
		}
		cs = append(cs, row{l.Name, l.IDs, want, l.run})
	}
	for _, x := range Terminates() {
		cs = append(cs, row{"terminate/comes " + x.Name, x.IDs, "nothing but a FIN", x.run})
	}
	for _, o := range oddities() {
		cs = append(cs, row{"odd/" + o.name, o.ids, "it is taken, and the connection goes on", o.run})
	}
	cs = append(cs, ends()...)
	for _, x := range Answers() {
		want := "a Send: rping -s goes on"
		if !x.Right() {
			want = fmt.Sprintf("Terminate %d/%d/%02x, and a FIN", x.Layer, x.Type, x.Code)
		}
		cs = append(cs, row{"read response/" + x.Name, x.IDs, want, x.run})
	}
	return cs
}

func (s BadStart) run(a *attempt) error {
	p, err := a.dial()
	if err != nil {
		return err
	}
	if err := p.Write(s.Octets); err != nil {
		return err
	}
	if s.FIN {
		if err := p.C.CloseWrite(); err != nil {
			return err
		}
	}
	return a.closed(p)
}

func (l Lie) run(a *attempt) error {
	p, err := a.ready()
	if err == nil {
		err = p.Put(l.Bad...)
	}
	if err != nil {
		return err
	}
	return a.refused(p, l.Terminate(), l.Silent)
}

func (x Terminated) run(a *attempt) error {
	p, err := a.ready()
	if err == nil {
		err = p.PutTogether(x.Send...)
	}
	if err != nil {
		return err
	}
	got, err := p.Next()
	switch e := rawpeer.EndingOf(err); {
	case err == nil:
		return fmt.Errorf("%s came", words(got))
	case e == rawpeer.EndFIN:
		return nil
	case e == rawpeer.EndReset:
		return torture.Differf("a RST, not a FIN")
	}
	return ended(err)
}

// run has rping's server Read what the peer has, and answers that.
func (x Answer) run(a *attempt) error {
	p, err := a.ready()
	if err != nil {
		return err
	}
	const stag, to = 0x1234, 0x1122334455667700
	b := binary.BigEndian.AppendUint64(nil, to)
	b = binary.BigEndian.AppendUint32(binary.BigEndian.AppendUint32(b, stag), ReadSize)
	if err := p.Put(rawpeer.Send(1, 0, b)); err != nil {
		return err
	}
	s, err := p.Next()
	r, ok := s.Read()
	if err != nil || !ok || r.Size != ReadSize || r.SrcSTag != stag || r.SrcTO != to {
		return torture.Skipf("no Read Request for what was offered: the endpoint is no rping -s")
	}
	segs := x.Answer(r)
	if err := p.Put(segs...); err != nil {
		return err
	}
	if !x.Right() {
		if x.Name == "twice" { // what is right may be answered before what is not
			p.Skip = func(s rawpeer.Seg) bool { return s.Op() == rawpeer.OpSend }
		}
		return a.refused(p, rawpeer.Terminate(x.Layer, x.Type, x.Code, ddp, segs[len(segs)-1]), false)
	}
	if s, err = p.Next(); err != nil {
		return fmt.Errorf("no Send: %w", ended(err))
	}
	if s.Op() != rawpeer.OpSend {
		return fmt.Errorf("%s, not a Send", words(s))
	}
	return nil
}

// A goodRequest is one that a Responder must take, whatever it chooses.
type goodRequest struct {
	name string
	ids  []string
	req  rawpeer.Start
}

func goodRequests() []goodRequest {
	const c = rawpeer.FlagC
	rev2 := rawpeer.Request(c, Octets(6, 1)...)
	rev2.Rev = 2
	noise := Plain(4, 4)
	noise.Flags |= 0x0f
	long := rawpeer.Request(c, Octets(508, 1)...).Enhanced(rawpeer.WordA|4, rawpeer.WordC|4)
	qs := []goodRequest{
		{"revision 1", []string{"MPA-074"}, rawpeer.Request(c)},
		{"revision 1 with 512 octets", []string{"MPA-070"}, rawpeer.Request(c, Octets(512, 1)...)},
		{"revision 1, reserved bits", []string{"MPA-066"}, rawpeer.Request(c | 0x0f)},
		{"revision 2 without S", []string{"EMPA-012"}, rev2},
		{"revision 2, reserved bits", []string{"MPA-066"}, noise},
		{"revision 2 with 508 octets", []string{"EMPA-011"}, long},
	}
	for flags := range uint16(16) {
		name := "words"
		for i, f := range "ABCD" {
			if flags&(8>>i) != 0 {
				name += " " + string(f)
			}
		}
		qs = append(qs, goodRequest{name, []string{"EMPA-033", "EMPA-036"},
			rawpeer.Request(c).Enhanced(flags>>2<<14|4, flags<<14|4)})
	}
	return qs
}

func (q goodRequest) run(a *attempt) error {
	p, err := a.start(q.req)
	if err != nil {
		return err
	}
	// A peer that leaves before its RTR is another matter.
	wrong := RightReply(q.req, p.Got)
	if err := a.rtr(p); err != nil {
		return err
	}
	err = a.alive(p, 1)
	if len(wrong) > 0 {
		err = torture.Differf("of the Reply: %s", strings.Join(wrong, ", "))
	}
	return err
}

// framing are FPDUs that are none, and one that comes octet by octet.
func framing() []row {
	terminate := func(code byte) rawpeer.Seg {
		return rawpeer.Terminate(2, 0, code, bare, rawpeer.Seg{})
	}
	send := func(put func(p *rawpeer.Peer) error, code byte) func(a *attempt) error {
		return func(a *attempt) error {
			p, err := a.ready()
			if err != nil {
				return err
			}
			if !p.Out.CRC {
				return torture.Skipf("no CRCs are agreed on")
			}
			if err := put(p); err != nil {
				return err
			}
			return a.refused(p, terminate(code), false)
		}
	}
	want := func(code byte) string { return words(terminate(code)) + ", and a FIN" }
	wrong := func(p *rawpeer.Peer) error {
		return p.PutLie(nowhere, rawpeer.Lie{CRC: func(c uint32) uint32 { return ^c }})
	}
	cs := []row{
		{"fpdu/wrong CRC", []string{"MPA-090"}, want(2), send(wrong, 2)},
		{"fpdu/CRC of 0", []string{"MPA-090"}, want(2), send(func(p *rawpeer.Peer) error {
			return p.PutLie(nowhere, rawpeer.Lie{CRC: func(uint32) uint32 { return 0 }})
		}, 2)},
		{"fpdu/octet by octet", []string{"MPA-046"}, "it is taken", func(a *attempt) error {
			p, err := a.ready()
			if err == nil {
				err = p.PutCut(1, nowhere, rawpeer.ReadRequest(1, rawpeer.Read{SinkSTag: 5, SinkTO: 6}))
			}
			if err != nil {
				return err
			}
			return a.want(p, rawpeer.ReadResponse(5, 6, nil))
		}},
		{"fpdu/first is wrong", []string{"MPA-090"}, "the end of the stream", func(a *attempt) error {
			p, err := a.start(Plain(4, 4))
			if err != nil {
				return err
			}
			a.settle()
			if !p.Out.CRC {
				return torture.Skipf("no CRCs are agreed on")
			}
			if err := wrong(p); err != nil {
				return err
			}
			// With a Terminate or without one: docs/decisions.md, M12.
			err = a.refused(p, terminate(2), true)
			if torture.Differing(err) {
				return nil
			}
			return err
		}},
	}
	for _, n := range []uint16{1, 18, 1000} {
		cs = append(cs, row{fmt.Sprint("fpdu/ULPDU_Length ", n, " of 14"), []string{"MPA-047"}, want(2),
			send(func(p *rawpeer.Peer) error {
				err := p.PutLie(nowhere, rawpeer.Lie{Length: func(uint16) uint16 { return n }})
				if err == nil {
					err = p.Put(rawpeer.Send(1, 0, make([]byte, 1000)))
				}
				return err
			}, 2)})
	}
	return cs
}

// An oddity is what a peer may do and few do.
type oddity struct {
	name   string
	ids    []string
	send   []rawpeer.Seg
	answer []rawpeer.Seg
}

func oddities() []oddity {
	read := rawpeer.Read{SinkSTag: 0xdeadbeef, SinkTO: 1<<64 - 1, SrcTO: 1<<64 - 1}
	answer := rawpeer.ReadResponse(read.SinkSTag, read.SinkTO, nil)
	var writes, reads, reserved, answers []rawpeer.Seg
	for i, stag := range []uint32{0, 0xffffffff, 0x00c0ffee} {
		writes = append(writes, rawpeer.Write(stag, 1<<64-1, nil), rawpeer.Write(stag, 0, nil))
		r := read
		r.SrcSTag = stag
		reads = append(reads, rawpeer.ReadRequest(uint32(i+1), r))
		answers = append(answers, answer)
	}
	for i := range byte(16) {
		reserved = append(reserved, nowhere.DDPReserved(i))
	}
	r1 := rawpeer.ReadRequest(1, read)
	return []oddity{
		{"empty Writes to nowhere", []string{"DDP-053"}, writes, nil},
		{"empty Reads from nowhere", []string{"RDMAP-054", "RDMAP-056"}, reads, answers},
		{"reserved bits of DDP", []string{"DDP-023"}, reserved, nil},
		{"reserved bits of RDMAP", []string{"RDMAP-025"},
			seg(nowhere.RDMAPReserved(2), r1.RDMAPReserved(3)), seg(answer)},
		{"an STag where none belongs", []string{"RDMAP-026"}, seg(r1.Reserved(0xaaaaaaaa)),
			seg(answer)},
		{"empty segments within a Write", []string{"DDP-053"}, seg(nowhere.More(), nowhere.More(),
			nowhere), nil},
		{"a Read Request in two segments", []string{"DDP-048"}, r1.Split(20), seg(answer)},
		{"a Read Request octet by octet", []string{"DDP-048"}, r1.Split(1), seg(answer)},
	}
}

func (o oddity) run(a *attempt) error {
	p, err := a.ready()
	if err == nil {
		err = p.PutTogether(o.send...)
	}
	for _, s := range o.answer {
		if err == nil {
			err = a.want(p, s)
		}
	}
	if err != nil {
		return err
	}
	return a.alive(p, uint32(len(o.answer)+1))
}

// ends are the ways in which a peer leaves; the endpoint closes, and others still come to it.
func ends() []row {
	half := func(p *rawpeer.Peer) error {
		b := p.Out.Append(nil, rawpeer.Send(1, 0, Octets(100, 1)).ULPDU(), rawpeer.Lie{})
		return p.Write(b[:50])
	}
	leave := func(before, how func(p *rawpeer.Peer) error, reset bool) func(a *attempt) error {
		return func(a *attempt) error {
			p, err := a.ready()
			if err == nil {
				err = before(p)
			}
			if err == nil {
				err = how(p)
			}
			if err == nil && !reset {
				err = a.over(p)
			}
			if err != nil {
				return err
			}
			return comesUp(a)
		}
	}
	nothing := func(*rawpeer.Peer) error { return nil }
	fin := func(p *rawpeer.Peer) error { return p.C.CloseWrite() }
	rst := func(p *rawpeer.Peer) error { return p.C.Reset() }
	const want = "the endpoint closes, and takes another connection"
	return []row{
		{"end/a FIN", []string{"DDP-069"}, want, leave(nothing, fin, false)},
		{"end/a FIN within an FPDU", []string{"MPA-089"}, want, leave(half, fin, false)},
		{"end/a RST", []string{"MPA-088"}, want, leave(nothing, rst, true)},
		{"end/a RST within an FPDU", []string{"MPA-088"}, want, leave(half, rst, true)},
	}
}
