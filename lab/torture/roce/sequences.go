package roce

import (
	"cmp"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"

	"github.com/vrnic/vrnic/lab/rawroce"
	"github.com/vrnic/vrnic/lab/torture"
)

// sequences are requests that come out of order, early, again or long after.
func sequences() []row {
	on := func(name string, ids []string, want string, body func(a *attempt) error) row {
		return row{"psn/" + name, ids, want, func(a *attempt) error {
			if err := a.connected(); err != nil {
				return err
			}
			return body(a)
		}}
	}
	var rows []row
	for _, n := range []uint32{1, 1000, 1<<23 - 1} {
		rows = append(rows, on(fmt.Sprint(n, " ahead"), []string{"ROCE-111", "ROCE-112"},
			"NAK 0x60 of the PSN that is due, and the connection goes on", func(a *attempt) error {
				err := a.ahead(n)
				if err == nil {
					err = a.alive()
				}
				return err
			}))
	}
	return append(rows,
		on("a gap, and more behind it", []string{"ROCE-112", "ROCE-113"},
			"one NAK for each gap", func(a *attempt) error {
				for range 2 {
					if err := a.ahead(1); err != nil {
						return err
					}
					for n := uint32(2); n < 5; n++ {
						if err := a.Put(a.later(n)); err != nil {
							return err
						}
					}
					if err := a.alive(); err != nil {
						return fmt.Errorf("behind a gap of four: %w", err)
					}
				}
				return nil
			}),
		on("ahead, with a wrong ICRC", []string{"ROCE-036"},
			"nothing, and a NAK for the gap that is one", func(a *attempt) error {
				b := a.later(1).Bytes()
				b[len(b)-2] ^= 4
				err := a.Octets(b)
				if err == nil {
					err = a.ahead(1)
				}
				if err == nil {
					err = a.alive()
				}
				return err
			}),
		on("a Write again", []string{"ROCE-114", "ROCE-116", "ROCE-042"},
			"an ACK of the newest request, or nothing", func(a *attempt) error {
				for range 3 {
					if err := a.alive(); err != nil {
						return err
					}
				}
				return a.again(a.earlier(a.Write(), 2))
			}),
		on("from before the first", []string{"ROCE-124"},
			"an ACK of the PSN before the first, or nothing", func(a *attempt) error {
				return a.again(a.earlier(a.Write(), 1<<22))
			}),
		on("a Read again", []string{"ROCE-117"}, "the same answer again", func(a *attempt) error {
			read := a.read()
			for range 2 {
				if err := a.answered(read); err != nil {
					return err
				}
			}
			a.done()
			return a.alive()
		}),
		on("a Read again, of more", []string{"ROCE-118"}, nothing, func(a *attempt) error {
			read := a.read()
			if err := a.answered(read); err != nil {
				return err
			}
			a.done()
			read.Ext = rawroce.RETH(64, 0xdeadbeef, 64)
			return a.ignored(read.Bytes())
		}),
		on("a Write again, as a Read", []string{"ROCE-118"}, nothing, func(a *attempt) error {
			if err := a.alive(); err != nil {
				return err
			}
			read := a.earlier(a.read(), 1)
			read.Ext = rawroce.RETH(64, 0xdeadbeef, 64)
			return a.ignored(read.Bytes())
		}),
		on("a Read again, as an atomic", []string{"ROCE-121"}, nothing, func(a *attempt) error {
			if err := a.answered(a.read()); err != nil {
				return err
			}
			a.done()
			return a.ignored(a.To(rawroce.Packet{Opcode: rawroce.FetchAdd, PSN: a.PSN - 1,
				Ext: rawroce.AtomicETH(64, 0xdeadbeef, 1, 0)}).Bytes())
		}),
		on("guesses", []string{"ROCE-200", "ROCE-201"}, "an answer at most to each of 200",
			(*attempt).guesses),
		on("no AckReq", []string{"ROCE-126"}, "an ACK for the two, or one for each",
			func(a *attempt) error {
				q := a.Write()
				q.Ack = 0
				if err := a.Put(q); err != nil {
					return err
				}
				a.done()
				if err := a.Put(a.Write()); err != nil {
					return err
				}
				got, err := a.Next(a.Soon())
				if err == nil && isACK(got) && got.PSN == q.PSN {
					got, err = a.Next(a.Soon())
				}
				if err != nil {
					return unanswered(err)
				}
				if !isACK(got) || got.PSN != a.PSN {
					return fmt.Errorf("%s, not an ACK of PSN %#x", words(got), a.PSN)
				}
				a.done()
				return a.alive()
			}),
		on("eight Reads of nothing at once", []string{"ROCE-125"},
			"all are answered, or NAK 0x61", (*attempt).manyReads))
}

// later is the Write of nothing, n PSNs further; earlier is q, n PSNs before.
func (a *attempt) later(n uint32) rawroce.Packet {
	q := a.Write()
	q.PSN = (q.PSN + n) & 0xffffff
	return q
}

func (a *attempt) earlier(q rawroce.Packet, n uint32) rawroce.Packet {
	q.PSN = (q.PSN - n) & 0xffffff
	return q
}

// ahead sends a request of n PSNs further, and wants the NAK of the one that is due.
func (a *attempt) ahead(n uint32) error {
	if err := a.Put(a.later(n)); err != nil {
		return err
	}
	q, err := a.Next(a.Soon())
	switch {
	case errors.Is(err, os.ErrDeadlineExceeded):
		return fmt.Errorf("no NAK of a gap in %v", a.Patience)
	case err != nil:
		return err
	case !isNAK(q):
		return fmt.Errorf("%s, not NAK 0x60", words(q))
	case q.Syndrome() != 0x60 || q.PSN != a.PSN:
		return torture.Differf("%s, not NAK 0x60 of PSN %#x", words(q), a.PSN)
	}
	return nil
}

// again sends a request that was there, or could have been: of it comes an ACK of the newest, or
// nothing.
func (a *attempt) again(q rawroce.Packet) error {
	if err := a.put(q, a.Write()); err != nil { // the answer to the one behind shows where it ends
		return err
	}
	got, err := a.Next(a.Soon())
	var differs error
	if err == nil && isACK(got) && got.PSN != a.PSN {
		if newest := (a.PSN - 1) & 0xffffff; got.PSN != newest || msn(got) != a.MSN {
			differs = torture.Differf("an ACK of PSN %#x with MSN %d, not of %#x with %d", got.PSN, msn(got),
				newest, a.MSN)
		}
		got, err = a.Next(a.Soon())
	}
	if err != nil {
		return unanswered(err)
	}
	return cmp.Or(a.acknowledges(got), differs)
}

// read is a Read of nothing with the next PSN.
func (a *attempt) read() rawroce.Packet {
	return a.To(rawroce.Packet{Opcode: rawroce.ReadReq, PSN: a.PSN, Ack: rawroce.AckReq,
		Ext: rawroce.RETH(0, 0, 0)})
}

// answered sends a Read of nothing and wants its answer.
func (a *attempt) answered(read rawroce.Packet) error {
	if err := a.Put(read); err != nil {
		return err
	}
	q, err := a.Next(a.Soon())
	if err != nil {
		return unanswered(err)
	}
	if q.Opcode != rawroce.ReadOnly || q.PSN != read.PSN || len(q.Payload) != 0 ||
		q.Syndrome()>>5 != 0 {
		return fmt.Errorf("%s, not the answer to a Read of nothing", words(q))
	}
	return nil
}

// guesses are PSNs of somebody who does not know which is due.
func (a *attempt) guesses() error {
	const n = 200
	rnd := rand.New(rand.NewPCG(1, 2))
	for range n {
		if err := a.Put(a.later(1 + rnd.Uint32N(1<<24-1))); err != nil {
			return err
		}
	}
	if err := a.Put(a.Write()); err != nil {
		return err
	}
	for range n + 1 {
		q, err := a.Next(a.Soon())
		if err != nil {
			return unanswered(err)
		}
		switch due := a.PSN; {
		case q.Opcode == rawroce.Ack && q.PSN == due && q.Syndrome()>>5 == 0:
			a.done()
			return a.alive()
		case isACK(q), isNAK(q) && q.Syndrome() == 0x60:
		default:
			return fmt.Errorf("a guess has drawn %s", words(q))
		}
	}
	return fmt.Errorf("more than %d answers to %d guesses", n, n)
}

// manyReads are more Reads than can be outstanding.
func (a *attempt) manyReads() error {
	const n = 8
	first := a.PSN
	for i := range uint32(n) {
		read := a.read()
		read.PSN = (first + i) & 0xffffff
		if err := a.Put(read); err != nil {
			return err
		}
	}
	for range n {
		q, err := a.Next(a.Soon())
		if err != nil {
			return unanswered(err)
		}
		if isNAK(q) && q.Syndrome() == 0x61 {
			return a.dead()
		}
		if q.Opcode != rawroce.ReadOnly || q.PSN != a.PSN {
			return fmt.Errorf("%s, not the answer to a Read of nothing", words(q))
		}
		a.done()
	}
	return a.alive()
}
