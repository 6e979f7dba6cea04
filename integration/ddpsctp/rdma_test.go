package ddpsctp

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/vrnic/vrnic/iwarp"
	"github.com/vrnic/vrnic/netstack/sctp"
	"github.com/vrnic/vrnic/sctpddp"
)

// A qp is an Endpoint on a session, with the memory behind it.
type qp struct {
	t     testing.TB
	s     *sctpddp.Session
	ep    *iwarp.Endpoint
	mem   []byte
	begun [][]byte
	got   []string
	want  []string // what the other end has sent
	sink  []byte
	reads int

	aborted bool
}

func newQP(t testing.TB, s *sctpddp.Session) *qp {
	t.Helper()
	q := &qp{t: t, s: s, mem: make([]byte, 1<<20)}
	q.ep = iwarp.NewEndpoint(s.Params(), q, iwarp.Config{
		Records: true, MULPDU: s.MULPDU(),
		PlaceReceive: func(i int, off uint32, p []byte) error { copy(q.begun[i][off:], p); return nil },
	})
	if err := s.Attach(q.ep); err != nil {
		t.Fatal(err)
	}
	return q
}

func (q *qp) PlaceWrite(stag iwarp.STag, to uint64, p []byte, last bool) error {
	if len(p) > 0 && (stag != 7 || to > uint64(len(q.mem)) || uint64(len(p)) > uint64(len(q.mem))-to) {
		return &iwarp.LocalError{Cause: iwarp.TermBounds}
	}
	if len(p) > 0 {
		copy(q.mem[to:], p)
	}
	return nil
}

func (q *qp) BeginReceive() (uint32, bool) {
	q.begun = append(q.begun, make([]byte, 8000))
	return 8000, true
}
func (q *qp) PlaceReceive(off uint32, p []byte) error { copy(q.begun[0][off:], p); return nil }
func (q *qp) EndReceive(d iwarp.Received) error {
	q.got = append(q.got, string(q.begun[0][:d.Length]))
	q.begun = q.begun[1:]
	return nil
}
func (q *qp) PlaceRead(off uint32, p []byte) error { copy(q.sink[off:], p); return nil }
func (q *qp) EndRead(uint64) error                 { q.reads--; return nil }
func (q *qp) ReadSource(stag iwarp.STag, to uint64, n uint32) (iwarp.Payload, error) {
	return content(q.mem[to:][:n]), nil
}
func (q *qp) EndReadSource(iwarp.Payload)         {}
func (q *qp) Atomic(iwarp.Atomic) (uint64, error) { return 0, errors.New("no atomics") }
func (q *qp) EndAtomic(uint64, uint64) error      { return nil }
func (q *qp) Sent(uint64)                         {}

type content []byte

func (c content) CopyOut(p []byte, off uint32) error { copy(p, c[off:]); return nil }

// flush gives the session what the Endpoint has.
func (q *qp) flush() (moved bool) {
	if q.s.State() == sctpddp.StateFailed || q.aborted {
		return false
	}
	for q.ep.Pending() {
		q.ep.SetMULPDU(q.s.MULPDU())
		n, err := q.s.WriteFrom(q.ep)
		q.ep.Commit(n)
		if err != nil {
			q.t.Fatalf("WriteFrom: %v", err)
		}
		if n == 0 {
			break
		}
		moved = true
	}
	return moved
}

// qps puts an Endpoint on each session and has the nodes flush them.
func (w *world) qps(xs, ys []*sctpddp.Session) (all []*qp) {
	for i, s := range xs {
		all = append(all, newQP(w.T, s), newQP(w.T, ys[i]))
	}
	for i, n := range w.nodes {
		n.step = func() (moved bool) {
			if n.down {
				return false
			}
			for k := i; k < len(all); k += 2 {
				moved = all[k].flush() || moved
			}
			return moved
		}
	}
	return all
}

// Sends, Writes and Reads on several sessions of one association, over a network that loses,
// doubles, delays and spoils packets; then every session is closed, and the association shuts
// itself down.
//
// SDDP-010, 012, 063, 068, 069, 088, 090, 091.
func TestRDMA(t *testing.T) {
	for seed := range uint64(8) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			rng := rand.New(rand.NewPCG(9260, seed))
			w, a, b := newWorld(t, 0)
			lost, spoilt := 0, 0
			if seed > 0 {
				w.Fate = func(d *sctp.Datagram) (times []time.Duration) {
					switch x := rng.IntN(100); {
					case x < int(seed): // lost
						lost++
						return nil
					case x < 2*int(seed): // doubled
						times = append(times, time.Duration(rng.IntN(5000))*time.Microsecond)
					case x < 3*int(seed): // spoilt: the copy behind it is good
						bad := *d
						bad.Data = bytes.Clone(d.Data)
						bad.Data[rng.IntN(len(bad.Data))] ^= 1 << rng.IntN(8)
						w.Arrive(&bad, 0)
						spoilt++
					}
					return append(times, time.Millisecond+time.Duration(
						rng.IntN(1+300*int(seed)))*time.Microsecond)
				}
			}
			connect(t, w)
			xs, ys := w.open(5)
			all := w.qps(xs, ys)
			for round := range 40 {
				for i, q := range all {
					other := all[i^1]
					n := rng.IntN(7000)
					switch rng.IntN(4) {
					case 0, 1:
						text := bytes.Repeat([]byte{byte(round)}, n)
						if q.ep.PostSend(0, iwarp.OpSend, 0, content(text), uint32(n)) == nil {
							other.want = append(other.want, string(text))
						}
					case 2:
						to := round * 8000
						q.ep.PostWrite(0, 7, uint64(to), content(bytes.Repeat([]byte{byte(round + 1)}, n)), uint32(n))
					default:
						if q.reads == 0 {
							q.sink, q.reads = make([]byte, n), 1
							copy(other.mem[900_000:], bytes.Repeat([]byte("source"), 2000))
							q.ep.PostRead(0, 0x99, 0, uint32(n), 7, 900_000)
						}
					}
				}
				a.pump()
				b.pump()
				w.Run(time.Duration(rng.IntN(20)) * time.Millisecond)
			}
			w.Until("all to arrive", 10*time.Minute, func() bool {
				for _, q := range all {
					if q.ep.Err() != nil || q.s.Err() != nil {
						t.Fatalf("%v, %v", q.ep.Err(), q.s.Err())
					}
					if !q.ep.Idle() || len(q.got) != len(q.want) {
						return false
					}
				}
				return true
			})
			ahead := uint64(0)
			for i, q := range all {
				if fmt.Sprint(q.got) != fmt.Sprint(q.want) {
					t.Errorf("QP %d: Sends differ", i)
				}
				if want := bytes.Repeat([]byte("source"), 2000)[:len(q.sink)]; !bytes.Equal(q.sink, want) {
					t.Errorf("QP %d: a Read differs", i)
				}
				for k := range 40 {
					area := bytes.TrimRight(q.mem[k*8000:][:8000], "\x00")
					if !bytes.Equal(area, bytes.Repeat([]byte{byte(k + 1)}, len(area))) {
						t.Errorf("QP %d: Write %d differs", i, k)
					}
				}
				ahead += q.ep.Stats().Ahead
				if st := q.s.Stats(); st.Illegal+st.Ignored+st.Ordered+st.Overflow > 0 {
					t.Errorf("QP %d: %+v", i, st)
				}
			}
			if seed > 2 && (lost == 0 || spoilt == 0 || ahead == 0) {
				t.Errorf("%d lost, %d spoilt, %d placed ahead", lost, spoilt, ahead)
			}
			for _, c := range w.dataChunks(nil) {
				if c.Flags()&^8 != 7 || c.PPID() != sctpddp.PPIDSegment && c.PPID() != sctpddp.PPIDControl {
					t.Fatalf("DATA with flags %#x, PPID %d", c.Flags(), c.PPID())
				}
			}
			for i, q := range all {
				if err := q.s.Close(); err != nil {
					t.Error(err)
				}
				w.nodes[i&1].pump()
			}
			w.Until("sessions to end", time.Minute, func() bool {
				for _, q := range all {
					if q.s.State() != sctpddp.StateOver {
						return false
					}
				}
				return true
			})
			for i, q := range all {
				w.nodes[i&1].mux.Release(w.Now, q.s)
			}
			w.Run(100 * time.Millisecond)
			if seed == 0 && (a.down || b.down) {
				t.Error("shut down before the grace time")
			}
			w.Until("the shutdown", time.Minute, func() bool { return a.down && b.down })
			if a.err != nil || b.err != nil {
				t.Errorf("%v, %v", a.err, b.err)
			}
		})
	}
}
