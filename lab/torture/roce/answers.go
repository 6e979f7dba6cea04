package roce

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/vrnic/vrnic/lab/rawroce"
	"github.com/vrnic/vrnic/lab/torture"
)

const (
	readSize = 64
	firstVA  = 0x1122334455667700
	ourKey   = 0x1234
)

// answers are what the endpoint is told when it asks: rping's server Reads what the peer offers,
// and says by a Send that it has it.
func answers() []row {
	var rows []row
	const goesOn, notTaken = "a Send: rping -s goes on", "the Read is repeated or fails: no Send"
	add := func(name string, ids []string, want string, body func(a *attempt) error) {
		rows = append(rows, row{"answer/" + name, ids, want, func(a *attempt) error {
			err := a.connected()
			if err == nil {
				err = a.offer()
			}
			if err == nil {
				err = body(a)
			}
			return err
		}})
	}
	// right has packets of the peer's come, and then the right answer, which ends it well.
	right := func(name string, ids []string, before func(a *attempt) []rawroce.Packet) {
		add(name, ids, goesOn, func(a *attempt) error {
			if err := a.put(before(a)...); err != nil {
				return err
			}
			return a.goesOn()
		})
	}
	// wrong has an answer come that is not to be taken: the Read fails, or is repeated and goes on.
	wrong := func(name string, ids []string, answer func(a *attempt) []rawroce.Packet) {
		add(name, ids, notTaken, func(a *attempt) error {
			if err := a.put(answer(a)...); err != nil {
				return err
			}
			return a.notTaken()
		})
	}
	one := func(f func(a *attempt) rawroce.Packet) func(a *attempt) []rawroce.Packet {
		return func(a *attempt) []rawroce.Packet { return []rawroce.Packet{f(a)} }
	}
	ack := func(syndrome uint8, ahead uint32) func(a *attempt) []rawroce.Packet {
		return one(func(a *attempt) rawroce.Packet {
			return a.to(rawroce.Ack, ahead, rawroce.AETH(syndrome, 1), 0)
		})
	}
	data := func(op uint8, n int) func(a *attempt) []rawroce.Packet {
		return one(func(a *attempt) rawroce.Packet {
			ext := rawroce.AETH(0x1f, 1)
			if op == readMiddle {
				ext = nil
			}
			return a.to(op, 0, ext, n)
		})
	}

	right("as asked for", []string{"ROCE-065"}, func(*attempt) []rawroce.Packet { return nil })
	right("ACKs of what was not sent", []string{"ROCE-061", "ROCE-202"}, ack(0x1f, 1000))
	right("NAKs of what was not sent", []string{"ROCE-092"}, ack(invalid, 500))
	right("ACKs of long ago", []string{"ROCE-060"}, ack(0x1f, 1<<24-5))
	right("NAKs of long ago", []string{"ROCE-092"}, ack(invalid, 1<<24-5))
	right("data of what was not sent", []string{"ROCE-061"}, one(func(a *attempt) rawroce.Packet {
		return a.to(rawroce.ReadOnly, 1000, rawroce.AETH(0x1f, 1), readSize)
	}))
	right("AckReq and reserved bits", []string{"ROCE-064"}, one(func(a *attempt) rawroce.Packet {
		q := a.to(rawroce.Ack, 1<<24-1, rawroce.AETH(0x1f, 1), 0)
		q.Ack = 0xff
		return q
	}))
	add("twice", []string{"ROCE-060"}, goesOn, func(a *attempt) error {
		q := a.to(rawroce.ReadOnly, 0, rawroce.AETH(0x1f, 1), readSize)
		if err := a.put(q, q); err != nil {
			return err
		}
		return a.sent()
	})
	add("with a wrong ICRC, then right", []string{"ROCE-033"}, goesOn, func(a *attempt) error {
		b := a.To(a.to(rawroce.ReadOnly, 0, rawroce.AETH(0x1f, 1), readSize)).Bytes()
		b[len(b)-5] ^= 1 // of the data
		if err := a.Octets(b); err != nil {
			return err
		}
		return a.goesOn()
	})
	add("none", []string{"ROCE-079", "ROCE-084"}, "the Read again, the same", func(a *attempt) error {
		if err := a.asksAgain(); err != nil {
			return err
		}
		return a.goesOn()
	})
	add("an ACK in its place", []string{"ROCE-062"}, "the Read again, the same",
		func(a *attempt) error {
			if err := a.put(ack(0x1f, 0)(a)...); err != nil {
				return err
			}
			if err := a.asksAgain(); err != nil {
				return err
			}
			return a.goesOn()
		})
	add("NAK 0x60", []string{"ROCE-086"}, "the Read again, the same", func(a *attempt) error {
		if err := a.put(ack(0x60, 0)(a)...); err != nil {
			return err
		}
		if err := a.asksAgain(); err != nil {
			return err
		}
		return a.goesOn()
	})
	add("a hundred NAKs 0x60", []string{"ROCE-088", "ROCE-203"}, "a Read for each at most",
		func(a *attempt) error {
			const n = 100
			for range n {
				if err := a.put(ack(0x60, 0)(a)...); err != nil {
					return err
				}
			}
			reads := 0
			for by := time.Now().Add(a.settle); ; reads++ {
				_, err := a.Next(by)
				if errors.Is(err, os.ErrDeadlineExceeded) || errors.Is(err, rawroce.ErrOver) {
					break
				} else if err != nil {
					return err
				}
			}
			if reads > n+2 {
				return fmt.Errorf("%d packets for %d NAKs", reads, n)
			}
			return nil
		})

	for _, s := range []uint8{invalid, access, operational} {
		add(fmt.Sprintf("NAK %#x", s), []string{"ROCE-089"}, "the Read fails: the connection is ended",
			func(a *attempt) error {
				if err := a.put(ack(s, 0)(a)...); err != nil {
					return err
				}
				return a.notTaken()
			})
	}
	for _, s := range []uint8{0x40, 0x5f, 0x65, 0x7f, 0x80, 0xff} {
		wrong(fmt.Sprintf("syndrome %#x", s), []string{"ROCE-091"}, ack(s, 0))
	}
	for _, n := range []int{0, 60, 68, 256} {
		wrong(fmt.Sprint(n, " octets"), []string{"ROCE-067", "ROCE-070", "ROCE-205"},
			data(rawroce.ReadOnly, n))
	}
	wrong("First of all", []string{"ROCE-067"}, data(readFirst, readSize))
	wrong("Middle of all", []string{"ROCE-070"}, data(readMiddle, readSize))
	// A Last is not: so may begin the rest of a Read that was repeated (ROCE-071).
	wrong("a NAK with data", []string{"ROCE-069"}, one(func(a *attempt) rawroce.Packet {
		return a.to(rawroce.ReadOnly, 0, rawroce.AETH(access, 1), readSize)
	}))
	wrong("of an atomic", []string{"ROCE-070"}, one(func(a *attempt) rawroce.Packet {
		return a.to(0x12, 0, append(rawroce.AETH(0x1f, 1), make([]byte, 8)...), 0)
	}))

	add("a Send is not acknowledged", []string{"ROCE-079"}, "the Send again, the same",
		func(a *attempt) error {
			if err := a.readDone(); err != nil {
				return err
			}
			return a.sendAgain()
		})
	add("a Send, and an ACK of what was not sent", []string{"ROCE-061"}, "the Send again, the same",
		func(a *attempt) error {
			if err := a.readDone(); err != nil {
				return err
			}
			if err := a.put(a.to(rawroce.Ack, 1000, rawroce.AETH(0x1f, 2), 0)); err != nil {
				return err
			}
			return a.sendAgain()
		})
	add("a Send, and data", []string{"ROCE-067"}, "the Send again, or the end",
		func(a *attempt) error {
			if err := a.readDone(); err != nil {
				return err
			}
			if err := a.put(a.to(rawroce.ReadOnly, 1, rawroce.AETH(0x1f, 2), 16)); err != nil {
				return err
			}
			if err := a.sendAgain(); !errors.Is(err, rawroce.ErrOver) {
				return err
			}
			return nil
		})
	return append(rows,
		row{"answer/an RNR NAK", []string{"ROCE-093"}, "the Read again, the same, not before its time",
			(*attempt).notReady},
		row{"answer/none at all", []string{"ROCE-080"},
			"the Read three times more, and then the connection is ended", (*attempt).retries})
}

const (
	readFirst  = 0x0d
	readMiddle = 0x0e
)

// to is a packet to the endpoint about its first request, or one so far behind it.
func (a *attempt) to(op uint8, ahead uint32, ext []byte, n int) rawroce.Packet {
	return rawroce.Packet{Opcode: op, PSN: (a.First + ahead) & 0xffffff, Ext: ext,
		Payload: make([]byte, n)}
}

func (a *attempt) put(all ...rawroce.Packet) error {
	for _, q := range all {
		if err := a.Put(q); err != nil {
			return err
		}
	}
	return nil
}

// offer names memory of the peer's, and waits for the Read of it.
func (a *attempt) offer() error {
	b := binary.BigEndian.AppendUint64(nil, firstVA)
	b = binary.BigEndian.AppendUint32(binary.BigEndian.AppendUint32(b, ourKey), readSize)
	err := a.Put(rawroce.Packet{Opcode: rawroce.SendOnly, PSN: a.PSN, Ack: rawroce.AckReq,
		Payload: b})
	if err != nil {
		return err
	}
	by := a.Soon()
	for acked, read := false, false; !acked || !read; {
		q, err := a.Next(by)
		switch {
		case errors.Is(err, rawroce.ErrMalformed):
			return err
		case err != nil:
			return torture.Skipf("no Read for what was offered: the endpoint is no rping -s")
		case isACK(q) && q.PSN == a.PSN:
			acked = true
		case a.asks(q):
			read = true
		default:
			return fmt.Errorf("%s, where a Read is due", words(q))
		}
	}
	a.done()
	return nil
}

// asks says whether q is the Read of what was offered.
func (a *attempt) asks(q rawroce.Packet) bool {
	return q.Opcode == rawroce.ReadReq && q.PSN == a.First &&
		string(q.Ext) == string(rawroce.RETH(firstVA, ourKey, readSize))
}

// asksAgain wants it once more.
func (a *attempt) asksAgain() error {
	q, err := a.Next(a.Soon())
	if err != nil {
		return fmt.Errorf("the Read is not repeated: %w", err)
	}
	if !a.asks(q) {
		return fmt.Errorf("%s, not the same Read again", words(q))
	}
	return nil
}

// readDone answers the Read, and wants the Send that says so; it is not acknowledged.
func (a *attempt) readDone() error {
	if err := a.put(a.to(rawroce.ReadOnly, 0, rawroce.AETH(0x1f, 1), readSize)); err != nil {
		return err
	}
	return a.send()
}

// send wants the Send behind the Read; the Read may come again before.
func (a *attempt) send() error {
	for by := a.Soon(); ; {
		q, err := a.Next(by)
		switch {
		case err != nil:
			return fmt.Errorf("no Send: %w", err)
		case q.Opcode == rawroce.SendOnly && q.PSN == (a.First+1)&0xffffff:
			return nil
		case !a.asks(q):
			return fmt.Errorf("%s, not a Send", words(q))
		}
	}
}

// sent is send with an ACK, and shows that the connection is alive.
func (a *attempt) sent() error {
	if err := a.send(); err != nil {
		return err
	}
	if err := a.put(a.to(rawroce.Ack, 1, rawroce.AETH(0x1f, 2), 0)); err != nil {
		return err
	}
	if err := a.Put(a.Write()); err != nil {
		return err
	}
	for by := a.Soon(); ; { // the Send may have been repeated before the ACK has come
		q, err := a.Next(by)
		if err != nil {
			return unanswered(err)
		}
		if isACK(q) && q.PSN == a.PSN {
			a.done()
			return nil
		}
		if q.Opcode != rawroce.SendOnly && !a.asks(q) {
			return fmt.Errorf("%s, not an ACK", words(q))
		}
	}
}

// goesOn answers the Read as it has to be.
func (a *attempt) goesOn() error {
	if err := a.readDone(); err != nil {
		return err
	}
	return a.put(a.to(rawroce.Ack, 1, rawroce.AETH(0x1f, 2), 0))
}

// notTaken wants that what came for an answer was none: the connection is ended, or the Read comes
// again, and can be answered. A Send would say that the Read is done.
func (a *attempt) notTaken() error {
	q, err := a.Next(a.Soon())
	switch {
	case errors.Is(err, rawroce.ErrOver):
		return nil
	case errors.Is(err, os.ErrDeadlineExceeded):
		return fmt.Errorf("the Read is neither repeated nor failed in %v", a.Patience)
	case err != nil:
		return err
	case q.Opcode == rawroce.SendOnly:
		return errors.New("it was taken: a Send came")
	case q.Opcode != rawroce.ReadReq:
		return fmt.Errorf("%s", words(q))
	}
	// Of what has come in order it may have kept some, and ask for the rest.
	return nil
}

// sendAgain wants the Send once more.
func (a *attempt) sendAgain() error {
	if err := a.send(); err != nil {
		return err
	}
	return a.put(a.to(rawroce.Ack, 1, rawroce.AETH(0x1f, 2), 0))
}

// notReady answers a Read by an RNR NAK, on a connection where it is not repeated for want of an
// answer in that time.
func (a *attempt) notReady() error {
	const code, wait = 0x20 | 24, 40960 * time.Microsecond
	r := a.Request()
	r.AckTimeout = 20 // 4.3 s
	err := a.Connect(r)
	if err == nil {
		err = a.offer()
	}
	if err != nil {
		return err
	}
	began := time.Now()
	if err := a.put(a.to(rawroce.Ack, 0, rawroce.AETH(code, 1), 0)); err != nil {
		return err
	}
	if err := a.asksAgain(); err != nil {
		return err
	}
	if d := time.Since(began); d < wait {
		return fmt.Errorf("the Read comes again after %v, not %v", d, wait)
	}
	return a.goesOn()
}

// retries has a Read of which no answer comes, on a connection that has three retries.
func (a *attempt) retries() error {
	const n = 3
	r := a.Request()
	r.Retries = n
	err := a.Connect(r)
	if err == nil {
		err = a.offer()
	}
	if err != nil {
		return err
	}
	for i := 0; ; i++ {
		q, err := a.Next(a.Soon())
		switch {
		case errors.Is(err, rawroce.ErrOver) && i == n:
			return nil
		case errors.Is(err, rawroce.ErrOver):
			return fmt.Errorf("it ends after %d repeats, not %d", i, n)
		case err != nil:
			return fmt.Errorf("behind %d repeats it neither asks nor ends: %w", i, err)
		case !a.asks(q):
			return fmt.Errorf("%s, not the same Read again", words(q))
		case i == n:
			return fmt.Errorf("it is repeated more than %d times", n)
		}
	}
}
