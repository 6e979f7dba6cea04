package record

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"time"
)

// A Step is a call of an engine or by it, or something else that happened.
type Step struct {
	Op     Op
	Args   []uint64
	Octets []byte
	Text   string
}

// arg is the argument that opInfos gives this name.
func (s *Step) arg(name string) uint64 { return s.Args[slices.Index(s.Op.info().args, name)] }

// equal reports whether s and o are the same.
func (s *Step) equal(o *Step) bool {
	return s.Op == o.Op && slices.Equal(s.Args, o.Args) && bytes.Equal(s.Octets, o.Octets) &&
		s.Text == o.Text
}

// Kinds of records.
const (
	kindBegin = iota + 1
	kindOpen
	kindSteps
	kindLost
	kindEnd
)

// What one record may have: its length, and its octets with those that stand in it once and are
// meant more often.
const (
	maxRecord = 16 << 20
	maxOctets = 16 << 20
	maxSteps  = 1 << 16
)

// A builder makes a record of Steps.
type builder struct {
	b    []byte
	all  []byte   // octets of all its steps
	seen []origin // where they were in the memory of whoever gave them
	n    int      // steps
	over bool     // it would be too long
}

// An origin is memory whose octets stand in builder.all from at on.
type origin struct {
	octets []byte
	at     int
}

// keptRoom is how much memory a builder keeps for the next record.
const keptRoom = 1 << 20

// begin begins a record about subject id.
func (c *builder) begin(id uint64, at time.Duration) {
	if cap(c.b)+cap(c.all) > keptRoom {
		c.b, c.all = nil, nil
	}
	clear(c.seen)
	c.b, c.all, c.seen, c.n, c.over = c.b[:0], c.all[:0], c.seen[:0], 0, false
	c.b = append(c.b, kindSteps)
	c.b = binary.AppendUvarint(c.b, id)
	c.b = binary.AppendUvarint(c.b, uint64(max(at, 0)))
}

// step adds a Step, whose Args have to be those of its Op.
func (c *builder) step(op Op, octets []byte, text string, args ...uint64) {
	info := op.info()
	if len(args) != len(info.args) {
		panic(fmt.Sprintf("record: %v with %d arguments", op, len(args)))
	}
	c.n++
	if c.over = c.over || c.n > maxSteps || len(c.b)+len(octets)+len(text) > maxRecord/2 ||
		len(c.all)+len(octets) > maxOctets; c.over {
		return
	}
	c.b = append(c.b, byte(op))
	for _, a := range args {
		c.b = binary.AppendUvarint(c.b, a)
	}
	if info.octets {
		c.b = binary.AppendUvarint(c.b, uint64(len(octets)))
		c.octets(octets)
	}
	if info.text {
		c.b = binary.AppendUvarint(c.b, uint64(len(text)))
		c.b = append(c.b, text...)
	}
}

// fewest is how many octets are worth to be looked for, and origins how many pieces of a record
// are: a peer can have one call bring tens of thousands of messages.
const (
	fewest  = 16
	origins = 64
)

// octets adds b as pieces: what the record has of the same memory, and was not written meanwhile,
// is meant by where it stands. What is sent is made of several pieces that were read, one behind
// the other, and what is placed is a piece of what came.
func (c *builder) octets(b []byte) {
	at := len(c.all)
	c.all = append(c.all, b...)
	done := 0
	for i := range c.seen {
		s := &c.seen[i]
		off := distance(s.octets, b)
		if off >= len(s.octets) || off <= -len(b) {
			continue
		}
		from, to := max(done, -off), min(len(b), len(s.octets)-off)
		if to-from < fewest {
			continue
		}
		was := s.at + off + from
		if !bytes.Equal(c.all[was:was+to-from], b[from:to]) {
			continue
		}
		c.literal(b[done:from])
		c.b = binary.AppendUvarint(c.b, uint64(to-from)<<1|1)
		c.b = binary.AppendUvarint(c.b, uint64(was))
		done = to
	}
	c.literal(b[done:])
	if done == 0 && len(b) >= fewest && len(c.seen) < origins {
		c.seen = append(c.seen, origin{b, at})
	}
}

func (c *builder) literal(b []byte) {
	if len(b) > 0 {
		c.b = binary.AppendUvarint(c.b, uint64(len(b))<<1)
		c.b = append(c.b, b...)
	}
}

// Why a record is none.
var errRecord = errors.New("a record makes no sense")

// A parser takes a record apart. Its Steps are good until the next one.
type parser struct {
	all   []byte
	args  []uint64
	steps []Step
}

// number cuts a uvarint off *b.
func number(b *[]byte) (uint64, error) {
	n, k := binary.Uvarint(*b)
	if k <= 0 {
		return 0, errRecord
	}
	*b = (*b)[k:]
	return n, nil
}

// parse takes the Steps of a record apart, from behind its time on.
func (p *parser) parse(b []byte) ([]Step, error) {
	p.all, p.args, p.steps = p.all[:0], p.args[:0], p.steps[:0]
	// Slices of all and args stay right while these grow: what they had is not written again.
	for len(b) > 0 {
		s := Step{Op: Op(b[0])}
		if b = b[1:]; !s.Op.known() || len(p.steps) == maxSteps {
			return nil, fmt.Errorf("%w: a step %d", errRecord, s.Op)
		}
		info := s.Op.info()
		first := len(p.args)
		for range info.args {
			n, err := number(&b)
			if err != nil {
				return nil, err
			}
			p.args = append(p.args, n)
		}
		s.Args = p.args[first:len(p.args):len(p.args)]
		if info.octets {
			from := len(p.all)
			if err := p.octets(&b); err != nil {
				return nil, err
			}
			s.Octets = p.all[from:len(p.all):len(p.all)]
		}
		if info.text {
			n, err := number(&b)
			if err != nil || n > uint64(len(b)) {
				return nil, errRecord
			}
			s.Text, b = string(b[:n]), b[n:]
		}
		p.steps = append(p.steps, s)
	}
	return p.steps, nil
}

// octets adds those of a step to p.all.
func (p *parser) octets(b *[]byte) error {
	n, err := number(b)
	if err != nil || n > maxOctets-uint64(len(p.all)) {
		return errRecord
	}
	for end := uint64(len(p.all)) + n; uint64(len(p.all)) < end; {
		k, err := number(b)
		if err != nil {
			return err
		}
		again := k&1 != 0
		if k >>= 1; k == 0 || k > end-uint64(len(p.all)) {
			return errRecord
		}
		if !again {
			if k > uint64(len(*b)) {
				return errRecord
			}
			p.all, *b = append(p.all, (*b)[:k]...), (*b)[k:]
			continue
		}
		at, err := number(b)
		if err != nil || at > uint64(len(p.all)) || k > uint64(len(p.all))-at {
			return errRecord
		}
		p.all = append(p.all, p.all[at:at+k]...)
	}
	return nil
}
