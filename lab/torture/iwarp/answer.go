package iwarp

import "github.com/vrnic/vrnic/lab/rawpeer"

// ReadSize is how much the endpoint's Read asks for that an Answer is about.
const ReadSize = 64

// An Answer is what a peer says to a Read Request for ReadSize octets.
type Answer struct {
	Name              string
	IDs               []string
	Answer            func(r rawpeer.Read) []rawpeer.Seg
	Layer, Type, Code byte // of the Terminate about the last segment; Layer, Type 0, 0: it is right
	Placed            int  // octets of the Read that may have been placed
}

// Right says whether the answer is the one to the Read.
func (a *Answer) Right() bool { return a.Layer == 0 && a.Type == 0 }

// Answers are right ones and wrong ones.
func Answers() []Answer {
	whole := Octets(ReadSize, 1)
	one := func(f func(r rawpeer.Read) rawpeer.Seg) func(r rawpeer.Read) []rawpeer.Seg {
		return func(r rawpeer.Read) []rawpeer.Seg { return seg(f(r)) }
	}
	begin := func(r rawpeer.Read, n int) rawpeer.Seg {
		return rawpeer.ReadResponse(r.SinkSTag, r.SinkTO, whole[:n])
	}
	right, wrong := []string{"RDMAP-049"}, []string{"RDMAP-062"}
	return []Answer{
		{"as asked for", right, one(func(r rawpeer.Read) rawpeer.Seg {
			return begin(r, ReadSize)
		}), 0, 0, 0, ReadSize},
		{"in pieces", right, func(r rawpeer.Read) []rawpeer.Seg {
			return begin(r, ReadSize).Split(1)
		}, 0, 0, 0, ReadSize},
		{"another STag", wrong, one(func(r rawpeer.Read) rawpeer.Seg {
			return rawpeer.ReadResponse(r.SinkSTag^1, r.SinkTO, whole)
		}), 1, 1, 0x00, 0},
		{"an octet further", wrong, one(func(r rawpeer.Read) rawpeer.Seg {
			return rawpeer.ReadResponse(r.SinkSTag, r.SinkTO+1, whole[:63])
		}), 1, 1, 0x01, 0},
		{"TO far away", wrong, one(func(r rawpeer.Read) rawpeer.Seg {
			return rawpeer.ReadResponse(r.SinkSTag, 1<<64-8, whole)
		}), 1, 1, 0x01, 0},
		{"too long", wrong, one(func(r rawpeer.Read) rawpeer.Seg {
			return rawpeer.ReadResponse(r.SinkSTag, r.SinkTO, Octets(ReadSize+1, 1))
		}), 1, 1, 0x01, 0},
		{"too short", wrong, one(func(r rawpeer.Read) rawpeer.Seg {
			return begin(r, ReadSize-1)
		}), 1, 1, 0x01, 0},
		{"nothing", wrong, one(func(r rawpeer.Read) rawpeer.Seg { return begin(r, 0) }), 1, 1, 0x01, 0},
		{"a gap", []string{"DDP-054"}, func(r rawpeer.Read) []rawpeer.Seg {
			return seg(begin(r, 10).More(),
				rawpeer.ReadResponse(r.SinkSTag, r.SinkTO+11, Octets(53, 1)))
		}, 1, 1, 0x01, 10},
		{"another STag in the second segment", wrong, func(r rawpeer.Read) []rawpeer.Seg {
			return seg(begin(r, 10).More(), rawpeer.ReadResponse(0, r.SinkTO+10, Octets(54, 1)))
		}, 1, 1, 0x00, 10},
		{"twice", []string{"RDMAP-049", "RDMAP-068"}, func(r rawpeer.Read) []rawpeer.Seg {
			return seg(begin(r, ReadSize), begin(r, ReadSize))
		}, 0, 2, 0x06, ReadSize},
	}
}
