package roce_test

import (
	. "github.com/vrnic/vrnic/roce"
	"github.com/vrnic/vrnic/roce/packet"
)

// A difference is a packet that our end does not say as rxe has: change makes it what our end
// says, nil: it is silent.
type difference struct {
	packet int // of the recording's RC packets, from 0
	change func(h *packet.Header)
	why    string
}

// A script is what there is to know of a recording beside its packets.
type script struct {
	differences []difference
	// lost are packets that are in the recording, as they went out, and did not arrive.
	lost []int
	// late are answers that were recorded before requests that their receiver had sent already.
	late map[int]int // behind which packet it came
	with func(c *Config)
	// badReceive has receives whose memory cannot be written.
	badReceive bool
	// ends is how the requester ends if nobody has told it to.
	ends Status
}

// tooLong is what our end says of a Send that is longer than its receive.
func tooLong(i int) difference {
	return difference{i, func(h *packet.Header) { h.Syndrome = packet.NAKInvalid },
		"a Send that is too long is an invalid request (ROCE-134); rxe says operational error"}
}

// twice is a NAK that rxe says behind an RNR NAK.
func twice(i int) difference {
	return difference{i, nil,
		"what is behind a request that found no receive is dropped in silence (ROCE-133)"}
}

// afresh is the answer to a Read that was repeated from the middle on.
func afresh(i int, op packet.Opcode) difference {
	return difference{i, func(h *packet.Header) {
		h.Opcode, h.Syndrome, h.MSN = op, packet.Unlimited, 1
	}, "the answer to a Read Request, repeated ones too, begins with First or Only (ROCE-071)"}
}

// asks is a packet in mid-message that asks for an answer.
func asks(i int) difference {
	return difference{i, func(h *packet.Header) { h.AckReq = true },
		"behind a silence the window is small, and so answers are asked for more often"}
}

var scripts = map[string]script{
	"atomics":         {},
	"both-ways":       {},
	"cm-lost-rep":     {},
	"cm-lost-req":     {},
	"depth-1":         {},
	"dscp":            {},
	"duplicate":       {},
	"fence":           {},
	"gather":          {},
	"imm":             {},
	"lost-ack":        {lost: []int{1}},
	"lost-atomic":     {lost: []int{0}},
	"lost-atomic-ack": {lost: []int{1}},
	"lost-last":       {lost: []int{4}, differences: []difference{asks(8)}},
	"lost-read-last": {lost: []int{5},
		differences: []difference{afresh(7, packet.ReadResponseOnly)}},
	"lost-read-request":   {lost: []int{0}},
	"lost-send":           {lost: []int{3}},
	"lost-write":          {lost: []int{0}, late: map[int]int{2: 3}},
	"mtu-256":             {},
	"nak-atomic-access":   {},
	"nak-read-access":     {},
	"nak-read-bounds":     {},
	"nak-read-rkey":       {},
	"nak-recv-lkey":       {badReceive: true},
	"nak-send-long-multi": {late: map[int]int{3: 4}, differences: []difference{tooLong(3)}},
	"nak-write-access":    {},
	"nak-write-bounds":    {},
	"nak-write-mid":       {},
	"nak-write-rkey":      {},
	"psn-wrap":            {},
	"rnr":                 {},
	"rnr-write-imm":       {},
	"rping":               {},
	"rping-ipv6":          {},
	"rtr-data":            {},
	"send-inv":            {},
	"solicited":           {},
	"timeout": {lost: []int{1, 3, 5, 7, 10, 11, 14, 15}, ends: RetryExceeded,
		with:        func(c *Config) { c.Retries = 3 },
		differences: []difference{twice(3), twice(7), twice(11), twice(15)}},
	"zero-length":   {},
	"nak-send-long": {differences: []difference{tooLong(4)}},
	"lost-read-response": {lost: []int{4},
		differences: []difference{afresh(7, packet.ReadResponseFirst)}},
	"rnr-exceeded": {ends: RNRRetryExceeded, with: func(c *Config) { c.RNRRetries = 2 },
		differences: []difference{twice(3), twice(7), twice(11)}},
}
