package roce

import (
	"fmt"

	"github.com/vrnic/vrnic/lab/rawroce"
)

// NAKs: table 3.1 of the syndrome.
const (
	invalid     = 0x61
	access      = 0x62
	operational = 0x63
)

// requests are those that must be refused, with the next PSN.
func requests() []row {
	const mtu = rawroce.MTU
	var rows []row
	add := func(name string, ids []string, orDropped bool, q rawroce.Packet, syndromes ...uint8) {
		want := naks(syndromes)
		if orDropped {
			want += ", or nothing"
		} else {
			want += ", and no answer to more"
		}
		rows = append(rows, row{"request/" + name, ids, want, func(a *attempt) error {
			if err := a.connected(); err != nil {
				return err
			}
			q := q
			q.PSN, q.Ack = a.PSN, rawroce.AckReq
			return a.refused(q, orDropped, syndromes...)
		}})
	}
	send := func(op uint8, n int, ext ...byte) rawroce.Packet {
		return rawroce.Packet{Opcode: op, Ext: ext, Payload: make([]byte, n)}
	}
	key := func(op uint8, va uint64, length uint32, n int) rawroce.Packet {
		return rawroce.Packet{Opcode: op, Ext: rawroce.RETH(va, 0xdeadbeef, length),
			Payload: make([]byte, n)}
	}
	for _, x := range []struct {
		name string
		op   uint8
		ext  int
		n    int
	}{{"Send Middle", 0x01, 0, mtu}, {"Send Last", 0x02, 0, 8}, {"Send Last with Immediate", 0x03, 4,
		8}, {"Send Last with Invalidate", 0x16, 4, 8}, {"Write Middle", 0x07, 0, mtu}, {"Write Last",
		0x08, 0, 8}, {"Write Last with Immediate", 0x09, 4, 8}} {
		add(x.name+" of no message", []string{"ROCE-152"}, false, send(x.op, x.n,
			make([]byte, x.ext)...), invalid)
	}
	add("Send First of 16 octets", []string{"ROCE-044"}, false, send(rawroce.SendFirst, 16), invalid)
	padded := send(rawroce.SendFirst, 15)
	padded.Pad = []byte{0}
	add("Send First with padding", []string{"ROCE-026"}, true, padded, invalid)
	add("Send longer than the receive", []string{"ROCE-134"}, false, send(rawroce.SendOnly, 200),
		invalid)
	add("Send above the path MTU", []string{"ROCE-048"}, false, send(rawroce.SendOnly, mtu+4), invalid)
	add("Send with Invalidate of no key", []string{"ROCE-156"}, false,
		send(0x17, 8, 0xde, 0xad, 0xbe, 0xef), access, operational)
	add("padding beyond what there is", []string{"ROCE-026"}, true, rawroce.Packet{
		Opcode: rawroce.WriteOnly, Ext: rawroce.RETH(0, 0, 0), Flags: 0x30}, invalid)

	add("Write of a key that there is not", []string{"ROCE-157", "ROCE-158"}, false,
		key(rawroce.WriteOnly, 64, 8, 8), access)
	add("Write First of a key that there is not", []string{"ROCE-137"}, false,
		key(rawroce.WriteFirst, 64, 4*mtu, mtu), access)
	add("Write around the end of all addresses", []string{"ROCE-159"}, false,
		key(rawroce.WriteOnly, 1<<64-16, 32, 32), access)
	add("Read of a key that there is not", []string{"ROCE-157", "ROCE-158"}, false,
		key(rawroce.ReadReq, 64, 8, 0), access)
	add("Read around the end of all addresses", []string{"ROCE-159"}, false,
		key(rawroce.ReadReq, 1<<64-16, 32, 0), access)
	for _, n := range []uint32{0xffffffff, 1<<31 + 1, 1 << 31} {
		add(fmt.Sprintf("Write First of %#x octets", n), []string{"ROCE-221"}, false,
			key(rawroce.WriteFirst, 64, n, mtu), access, invalid)
		add(fmt.Sprintf("Read of %#x octets", n), []string{"ROCE-221"}, false,
			key(rawroce.ReadReq, 64, n, 0), access, invalid)
	}
	add("Read with octets behind it", []string{"ROCE-147"}, true, rawroce.Packet{
		Opcode: rawroce.ReadReq, Ext: rawroce.RETH(0, 0, 0), Payload: make([]byte, 4)}, invalid)
	for _, x := range []struct {
		name string
		op   uint8
	}{{"Compare & Swap", 0x13}, {"Fetch & Add", rawroce.FetchAdd}} {
		add(x.name+" of a key that there is not", []string{"ROCE-150"}, false, rawroce.Packet{
			Opcode: x.op, Ext: rawroce.AtomicETH(64, 0xdeadbeef, 1, 1)}, access, invalid)
		add(x.name+" of an address that is odd", []string{"ROCE-150"}, false, rawroce.Packet{
			Opcode: x.op, Ext: rawroce.AtomicETH(65, 0xdeadbeef, 1, 1)}, invalid)
	}
	return rows
}
