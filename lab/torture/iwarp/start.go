package iwarp

import "github.com/vrnic/vrnic/lab/rawpeer"

// A BadStart is what comes in place of a Request that can be taken. The connection is closed, and
// nothing is said.
type BadStart struct {
	Name   string
	IDs    []string
	Octets []byte
	FIN    bool // behind them: more could come otherwise
}

// Plain is the Request of a peer with CRCs, in the peer-to-peer model with every RTR.
func Plain(ird, ord uint16) rawpeer.Start {
	return rawpeer.Request(rawpeer.FlagC).Enhanced(rawpeer.WordA|rawpeer.WordB|ird,
		rawpeer.WordC|rawpeer.WordD|ord)
}

// Octets is a pattern of n octets.
func Octets(n int, seed byte) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(i)*5 + byte(i>>8) + seed
	}
	return b
}

// BadStarts are all of them.
func BadStarts() []BadStart {
	change := func(s rawpeer.Start, f func(*rawpeer.Start)) []byte { f(&s); return s.Append(nil) }
	flip := func(i int) []byte {
		return change(Plain(1, 1), func(s *rawpeer.Start) {
			k := []byte(s.Key)
			k[i] ^= 1
			s.Key = string(k)
		})
	}
	claim := func(s rawpeer.Start, n int) []byte {
		return change(s, func(s *rawpeer.Start) { s.Claim = n })
	}
	rev := func(s rawpeer.Start, n byte) []byte {
		return change(s, func(s *rawpeer.Start) { s.Rev = n })
	}
	short := func(n int) []byte {
		return rawpeer.Start{Key: rawpeer.KeyRequest, Flags: rawpeer.FlagC | rawpeer.FlagS, Rev: 2,
			Claim: -1, Data: Octets(n, 0)}.Append(nil)
	}
	key, length, revision, words := []string{"MPA-059"}, []string{"MPA-072"}, []string{"MPA-068"},
		[]string{"EMPA-010"}
	f := rawpeer.Framer{CRC: true}
	early := Plain(1, 1)
	early.Behind = f.Append(nil, rawpeer.Write(0, 0, nil).ULPDU(), rawpeer.Lie{})
	return []BadStart{
		{"Key differs in its first octet", key, flip(0), false},
		{"Key differs in its last octet", key, flip(15), false},
		{"a Reply", key, change(Plain(1, 1), func(s *rawpeer.Start) { s.Key = rawpeer.KeyReply }), false},
		{"text", key, []byte("GET / HTTP/1.1\r\nHost: vrnic\r\n\r\n"), false},
		{"PD_Length 513", length, rawpeer.Request(rawpeer.FlagC, Octets(513, 0)...).Append(nil), false},
		{"PD_Length 600", length, claim(rawpeer.Request(rawpeer.FlagC), 600), false},
		{"PD_Length 65535", length, claim(Plain(1, 1), 65535), false},
		{"PD_Length 10 and 4 octets", length,
			claim(rawpeer.Request(rawpeer.FlagC, 1, 2, 3, 4), 10), true},
		{"PD_Length 4 and 8 octets", []string{"MPA-081"},
			claim(rawpeer.Request(rawpeer.FlagC, Octets(8, 1)...), 4), false},
		{"an FPDU behind it", []string{"MPA-081"}, early.Append(nil), false},
		{"half a frame", length, []byte(rawpeer.KeyRequest[:9]), true},
		{"nothing but a FIN", []string{"MPA-081"}, nil, true},
		{"Rev 0", []string{"MPA-102"}, rev(rawpeer.Request(rawpeer.FlagC), 0), false},
		{"Rev 3", []string{"MPA-068", "EMPA-049"}, rev(Plain(1, 1), 3), false},
		{"Rev 255", revision, rev(Plain(1, 1), 255), false},
		{"S=1 and PD_Length 0", words, short(0), false},
		{"S=1 and PD_Length 1", words, short(1), false},
		{"S=1 and PD_Length 3", words, short(3), false},
	}
}

// RightReply says what is wrong with the Reply to a Request of revision 2 with these words, or with
// none: nil. It is what any choice of a Responder must keep to.
func RightReply(request, reply rawpeer.Start) []string {
	var wrong []string
	must := func(ok bool, what string) {
		if !ok {
			wrong = append(wrong, what)
		}
	}
	must(reply.Key == rawpeer.KeyReply, "it is no Reply")
	must(reply.Rev == request.Rev, "its revision is not the Request's")
	first, second, enhanced := request.Words()
	f, s, ok := reply.Words()
	must(ok == enhanced, "it has enhanced data, or none, unlike the Request")
	if !ok || !enhanced {
		return wrong
	}
	const a, b, number = rawpeer.WordA, rawpeer.WordB, 0x3fff
	offered, chosen := first&b|second>>2&0x3000, f&b|s>>2&0x3000
	peer := first&a != 0
	must(f&a == first&a, "A is not the Request's")
	must(peer || chosen == 0, "it has an RTR without A")
	must(!peer || chosen != 0, "it has no RTR with A")
	must(!peer || offered == 0 || chosen&offered != 0, "it has no RTR that was offered")
	must(first&number == number || s&number <= first&number, "its ORD is above the Request's IRD")
	return wrong
}
