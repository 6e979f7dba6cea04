package roce

import (
	"fmt"
	"slices"

	"github.com/vrnic/vrnic/lab/rawroce"
	"github.com/vrnic/vrnic/lab/torture"
)

const nothing = "nothing, and the connection goes on"

// packets are those that are none, or not for the queue pair, and those that are odd and right.
func packets() []row {
	var rows []row
	dropped := func(name string, ids []string, bad func(a *attempt) [][]byte) {
		rows = append(rows, row{"packet/" + name, ids, nothing, func(a *attempt) error {
			if err := a.connected(); err != nil {
				return err
			}
			return a.ignored(bad(a)...)
		}})
	}
	// field changes the Write of nothing, octets its octets, and fixed has a right ICRC again.
	field := func(name, id string, f func(q *rawroce.Packet)) {
		dropped(name, []string{id}, func(a *attempt) [][]byte {
			q := a.Write()
			f(&q)
			return [][]byte{q.Bytes()}
		})
	}
	octets := func(name, id string, f func(b, bth []byte) []byte) {
		dropped(name, []string{id}, func(a *attempt) [][]byte {
			b := a.Write().Bytes()
			return [][]byte{f(b, b[rawroce.HeadLen(b)+8:])}
		})
	}
	fixed := func(name, id string, f func(bth []byte)) {
		octets(name, id, func(b, bth []byte) []byte {
			f(bth)
			rawroce.FixICRC(b)
			return b
		})
	}
	crc := func(name string, f func(crc []byte)) {
		octets("ICRC "+name, "ROCE-033", func(b, _ []byte) []byte { f(b[len(b)-4:]); return b })
	}
	after := func(name string, at int) {
		octets(name+" after the ICRC", "ROCE-035", func(b, bth []byte) []byte {
			bth[at] ^= 1
			return b
		})
	}

	crc("with a wrong bit", func(c []byte) { c[3] ^= 1 })
	crc("complemented", func(c []byte) {
		for i := range c {
			c[i] ^= 0xff
		}
	})
	crc("in the other order", slices.Reverse[[]byte])
	crc("of 0", func(c []byte) { clear(c) })
	after("the PSN changes", 11)
	after("reserved bits change", 8)
	after("the P_Key changes", 3)
	after("the length changes", 27)
	for _, v := range []byte{1, 15} {
		fixed(fmt.Sprint("version ", v), "ROCE-017", func(bth []byte) { bth[1] |= v })
	}
	for _, op := range []byte{0x15, 0x18, 0x1f, 0x24, 0x2a, 0x44, 0x64, 0xa4, 0xc0, 0xff} {
		fixed(fmt.Sprintf("opcode %#02x", op), "ROCE-018", func(bth []byte) { bth[0] = op })
	}
	for _, n := range []uint32{0, 2, 0xfffffe, 0xffffff} {
		id := "ROCE-019"
		if n == 0xffffff {
			id = "ROCE-020"
		}
		fixed(fmt.Sprintf("QP %#x", n), id, func(bth []byte) {
			bth[5], bth[6], bth[7] = byte(n>>16), byte(n>>8), byte(n)
		})
	}
	for _, k := range []uint16{0x8001, 1, 0x8000} {
		field(fmt.Sprintf("P_Key %#04x", k), "ROCE-021", func(q *rawroce.Packet) { q.PKey = k })
	}
	fixed("P_Key 0", "ROCE-021", func(bth []byte) { bth[2], bth[3] = 0, 0 })
	dropped("cut anywhere", []string{"ROCE-217", "ROCE-219"}, func(a *attempt) (all [][]byte) {
		b := a.Write().Bytes()
		head := rawroce.HeadLen(b) + 8
		for n := head; n < len(b)-4; n++ {
			cut := slices.Clone(b[:n])
			if n >= head+16 {
				shorten(cut)
			}
			all = append(all, cut)
		}
		return all
	})
	dropped("a header that is cut", []string{"ROCE-219"}, func(a *attempt) (all [][]byte) {
		for _, op := range []byte{rawroce.ReadReq, rawroce.FetchAdd, rawroce.WriteImm, 0x17, 0x05} {
			all = append(all, a.To(rawroce.Packet{Opcode: op, PSN: a.PSN, Ack: rawroce.AckReq}).Bytes())
		}
		return all
	})
	dropped("CNP", []string{"ROCE-227"}, func(a *attempt) [][]byte {
		return [][]byte{a.To(rawroce.Packet{Opcode: rawroce.CNP, Bits: 0x40,
			Payload: make([]byte, 16)}).Bytes()}
	})
	dropped("CNP to nobody", []string{"ROCE-227"}, func(a *attempt) [][]byte {
		return [][]byte{a.To(rawroce.Packet{Opcode: rawroce.CNP, Bits: 0x40, QPN: 0xabcdef,
			Payload: make([]byte, 16)}).Bytes()}
	})
	dropped("answers to nothing", []string{"ROCE-154", "ROCE-202", "ROCE-212"},
		func(a *attempt) (all [][]byte) {
			for s := range 256 {
				for _, psn := range []uint32{a.First, a.First - 1, a.First + 1000} {
					all = append(all, a.To(rawroce.Packet{Opcode: rawroce.Ack, PSN: psn,
						Ext: rawroce.AETH(uint8(s), 1)}).Bytes())
				}
			}
			return all
		})
	dropped("data of no Read", []string{"ROCE-154", "ROCE-205"}, func(a *attempt) (all [][]byte) {
		for _, op := range []uint8{0x0d, 0x0e, 0x0f, 0x10, 0x12} {
			q := rawroce.Packet{Opcode: op, PSN: a.First, Ext: rawroce.AETH(0x1f, 1),
				Payload: make([]byte, 64)}
			switch op {
			case 0x0e:
				q.Ext = nil
			case 0x12:
				q.Ext, q.Payload = append(q.Ext, make([]byte, 8)...), nil
			}
			all = append(all, a.To(q).Bytes())
		}
		return all
	})

	taken := func(name, id string, f func(q *rawroce.Packet)) {
		rows = append(rows, row{"packet/" + name, []string{id}, "it is taken: an ACK",
			func(a *attempt) error {
				err := a.connected()
				if err == nil {
					q := a.Write()
					f(&q)
					err = a.Octets(q.Bytes())
				}
				if err == nil {
					err = a.acknowledged()
				}
				if err == nil {
					err = a.alive()
				}
				return err
			}})
	}
	taken("solicited event", "ROCE-022", func(q *rawroce.Packet) { q.Flags = rawroce.Solicited })
	taken("M", "ROCE-022", func(q *rawroce.Packet) { q.Flags = rawroce.Migrated })
	taken("FECN and BECN", "ROCE-022", func(q *rawroce.Packet) { q.Bits = 0xc0 })
	taken("reserved bits with them", "ROCE-022", func(q *rawroce.Packet) { q.Bits = 0x3f })
	taken("reserved bits beside AckReq", "ROCE-022", func(q *rawroce.Packet) { q.Ack = 0xff })
	taken("P_Key 0x7fff", "ROCE-021", func(q *rawroce.Packet) { q.PKey = 0x7fff })
	for _, port := range []uint16{5555, 65535} {
		rows = append(rows, row{fmt.Sprint("packet/from port ", port), []string{"ROCE-002", "ROCE-003"},
			"an ACK, to port 4791", func(a *attempt) error {
				err := a.connected()
				if err != nil {
					return err
				}
				q := a.Write()
				q.SrcPort = port
				if err := a.Put(q); err != nil {
					return torture.Skipf("this host's: %w", err)
				}
				if err = a.acknowledged(); err == nil {
					err = a.alive()
				}
				return err
			}})
	}
	taken("a key and an address of nothing", "ROCE-142", func(q *rawroce.Packet) {
		q.Ext = rawroce.RETH(1<<64-1, 0xdeadbeef, 0)
	})
	return append(rows, row{"packet/padding that is not 0", []string{"ROCE-027"},
		"it is taken: an ACK", func(a *attempt) error {
			err := a.connected()
			if err == nil {
				err = a.Put(rawroce.Packet{Opcode: rawroce.SendOnly, PSN: a.PSN, Ack: rawroce.AckReq,
					Payload: make([]byte, 13), Pad: []byte{255, 255, 255}})
			}
			if err == nil {
				err = a.acknowledged()
			}
			return err
		}})
}

// shorten has the lengths of a packet be those of what is left of it, and its ICRC right.
func shorten(b []byte) {
	head, n := rawroce.HeadLen(b), len(b)
	if head == 20 {
		b[2], b[3] = byte(n>>8), byte(n)
		rawroce.FixIPv4(b)
	} else {
		b[4], b[5] = byte((n-40)>>8), byte(n-40)
	}
	b[head+4], b[head+5] = byte((n-head)>>8), byte(n-head)
	rawroce.FixICRC(b)
}
