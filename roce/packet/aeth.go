package packet

import (
	"fmt"
	"time"
)

// A Syndrome is the first octet of an AETH: what a responder says to a request. The upper three
// bits are its kind.
type Syndrome uint8

const (
	syndromeKind  = 0xe0
	syndromeValue = 0x1f
	rnrNAK        = 0x20
	nak           = 0x60
)

// Syndromes. All from 0 to Unlimited are ACKs, with a credit code in the lower five bits.
const (
	// Unlimited is an ACK that sets no limit of credits.
	Unlimited Syndrome = 0x1f

	NAKSequence    Syndrome = nak     // a PSN is missing
	NAKInvalid     Syndrome = nak + 1 // the request is not valid
	NAKAccess      Syndrome = nak + 2 // the memory is not the requester's to touch
	NAKOperational Syndrome = nak + 3 // the responder cannot, for a reason of its own
)

// IsACK reports whether s acknowledges.
func (s Syndrome) IsACK() bool { return s&syndromeKind == 0 }

// IsRNR reports whether s says that there was no receive; RNRTimer says for how long to wait.
func (s Syndrome) IsRNR() bool { return s&syndromeKind == rnrNAK }

// IsNAK reports whether s refuses a request for good, or NAKSequence: codes that are reserved too.
func (s Syndrome) IsNAK() bool { return s&syndromeKind == nak }

// RNR is the RNR NAK with a timer code, of which the lower five bits count.
func RNR(code uint8) Syndrome { return rnrNAK | Syndrome(code)&syndromeValue }

// credits are the numbers of messages that the credit codes below 31 stand for.
var credits = [...]uint32{0, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512,
	768, 1024, 1536, 2048, 3072, 4096, 6144, 8192, 12288, 16384, 24576, 32768}

// Credits is how many messages behind the AETH's MSN there are receives for; ok is false if s sets
// no limit, or is no ACK.
func (s Syndrome) Credits() (n uint32, ok bool) {
	if !s.IsACK() || s == Unlimited {
		return 0, false
	}
	return credits[s], true
}

// CreditsFor is the ACK whose limit is as large as can be with n receives posted.
func CreditsFor(n uint32) Syndrome {
	s := Syndrome(len(credits) - 1)
	for credits[s] > n {
		s--
	}
	return s
}

// rnrTimers are in units of 10 us.
var rnrTimers = [...]uint32{65536, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384,
	512, 768, 1024, 1536, 2048, 3072, 4096, 6144, 8192, 12288, 16384, 24576, 32768, 49152}

// RNRTimer is how long a requester waits at least, after an RNR NAK with a timer code of which the
// lower five bits count.
func RNRTimer(code uint8) time.Duration {
	return time.Duration(rnrTimers[code&syndromeValue]) * 10 * time.Microsecond
}

// RNRTimer is how long s, an RNR NAK, asks to wait at least.
func (s Syndrome) RNRTimer() time.Duration { return RNRTimer(uint8(s)) }

// ACKTimeout is the time that a local ACK timeout stands for, of which the lower five bits count:
// 4.096 us * 2^code, and 0 for code 0, which is no timeout.
func ACKTimeout(code uint8) time.Duration {
	if code &= 0x1f; code == 0 {
		return 0
	}
	return 4096 * time.Nanosecond << code
}

// String is s in words.
func (s Syndrome) String() string {
	switch n, limited := s.Credits(); {
	case limited:
		return fmt.Sprintf("ACK with %d credits", n)
	case s.IsACK():
		return "ACK"
	case s.IsRNR():
		return fmt.Sprintf("RNR NAK for %v", s.RNRTimer())
	case s == NAKSequence:
		return "NAK: PSN sequence error"
	case s == NAKInvalid:
		return "NAK: invalid request"
	case s == NAKAccess:
		return "NAK: remote access error"
	case s == NAKOperational:
		return "NAK: remote operational error"
	}
	return fmt.Sprintf("syndrome %#02x", uint8(s))
}
