package rawpeer

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"syscall"
	"time"
)

// A Conn is a TCP connection.
type Conn interface {
	net.Conn
	CloseWrite() error // sends a FIN
	Reset() error      // sends a RST
}

// Kernel makes a Conn of a connection of the kernel.
func Kernel(c *net.TCPConn) Conn { return kernelConn{c} }

type kernelConn struct{ *net.TCPConn }

func (c kernelConn) Reset() error { return errors.Join(c.SetLinger(0), c.Close()) }

// patience bounds every wait; what must come comes much earlier.
const patience = 90 * time.Second

// A Peer is the raw end of a connection. Its fields may be changed at any time. It is for one
// goroutine.
type Peer struct {
	C        Conn
	Out      Framer
	In       Deframer
	Patience time.Duration
	Checker  Checker        // of what is received
	Lenient  bool           // do not check it
	Skip     func(Seg) bool // what Next leaves out, if not nil
	Sent     Start          // our start frame, if one was sent
	Got      Start          // the other end's, if one was read
	r        *bufio.Reader  // of C
	said     []said
}

// A said is what happened: words, or octets that are printed when somebody asks.
type said struct {
	words  string
	octets []byte
	dump   func([]byte) string
}

// New makes a Peer on c.
func New(c Conn) *Peer {
	p := &Peer{C: c, Patience: patience, r: bufio.NewReaderSize(c, 16<<10)}
	p.In.R = p.r
	return p
}

// note keeps what happened, for the error of Run: the beginning, and the end.
func (p *Peer) note(format string,
	args ...any) {
	p.keep(said{words: fmt.Sprintf(format, args...)})
}

// noteOctets keeps octets, which must not change any more.
func (p *Peer) noteOctets(words string, octets []byte, dump func([]byte) string) {
	p.keep(said{words, octets, dump})
}

func (p *Peer) keep(s said) {
	if len(p.said) == 40 {
		p.said = append(p.said[:8], p.said[9:]...)
	}
	p.said = append(p.said, s)
}

// Transcript is what has gone over the connection, field by field.
func (p *Peer) Transcript() string {
	var b strings.Builder
	for _, s := range p.said {
		b.WriteString(s.words)
		if s.dump != nil {
			b.WriteString(s.dump(s.octets))
		}
		b.WriteByte('\n')
	}
	return b.String()
}

// Write sends octets as they are.
func (p *Peer) Write(b []byte) error {
	p.note("-> %d octets\n    % x", len(b), b[:min(len(b), 96)])
	return p.write(b)
}

func (p *Peer) write(b []byte) error {
	if err := p.C.SetWriteDeadline(time.Now().Add(p.Patience)); err != nil {
		return err
	}
	_, err := p.C.Write(b)
	return err
}

// PutStart sends a start frame. FPDUs follow as the frames of both ends ask for.
func (p *Peer) PutStart(s Start) error {
	p.Sent = s
	b := s.Append(nil)
	p.noteOctets("-> ", b, DumpStart)
	p.agree()
	return p.write(b)
}

// Agree sets the framing as the flags of both start frames have it, ours given as they went out.
func (p *Peer) Agree(flags byte) {
	p.Sent.Flags = flags
	p.agree()
}

// agree sets the framing as both start frames have it: RFC 5044, section 7.1.1.
func (p *Peer) agree() {
	crc := (p.Sent.Flags|p.Got.Flags)&FlagC != 0
	p.Out.CRC, p.In.CRC = crc, crc
	p.Out.Markers, p.In.Markers = p.Got.Flags&FlagM != 0, p.Sent.Flags&FlagM != 0
}

// ReadStart reads the other end's start frame.
func (p *Peer) ReadStart() (Start, error) {
	if err := p.C.SetReadDeadline(time.Now().Add(p.Patience)); err != nil {
		return Start{}, err
	}
	s, b, err := readStart(p.r)
	p.noteOctets("<- ", b, DumpStart)
	if err != nil {
		return s, err
	}
	p.Got = s
	p.agree()
	return s, nil
}

// Put sends segments, each FPDU with a call of its own.
func (p *Peer) Put(segs ...Seg) error {
	for _, s := range segs {
		if err := p.PutLie(s, Lie{}); err != nil {
			return err
		}
	}
	return nil
}

// PutLie sends a segment in an FPDU with something wrong.
func (p *Peer) PutLie(s Seg, lie Lie) error { return p.write(p.frame(nil, s, lie)) }

// PutTogether sends segments with one call.
func (p *Peer) PutTogether(segs ...Seg) error {
	var b []byte
	for _, s := range segs {
		b = p.frame(b, s, Lie{})
	}
	return p.write(b)
}

// PutCut sends segments in pieces of n octets, each in a TCP segment of its own.
func (p *Peer) PutCut(n int, segs ...Seg) error {
	var b []byte
	for _, s := range segs {
		b = p.frame(b, s, Lie{})
	}
	for len(b) > 0 {
		k := min(n, len(b))
		if err := p.write(b[:k]); err != nil {
			return err
		}
		b = b[k:]
	}
	return nil
}

func (p *Peer) frame(b []byte, s Seg, lie Lie) []byte {
	u := s.ULPDU()
	p.noteOctets("-> ", u, DumpSeg)
	return p.Out.Append(b, u, lie)
}

// Next reads an FPDU and checks it. All that it leaves out comes within Patience, too.
func (p *Peer) Next() (Seg, error) {
	if err := p.C.SetReadDeadline(time.Now().Add(p.Patience)); err != nil {
		return Seg{}, err
	}
	for {
		s, err := p.next()
		if err != nil || p.Skip == nil || !p.Skip(s) {
			return s, err
		}
	}
}

func (p *Peer) next() (Seg, error) {
	u, err := p.In.Next()
	if err != nil {
		p.note("<- %v, behind % x", err, p.In.seen[:min(96, len(p.In.seen))])
		return Seg{}, err
	}
	p.noteOctets("<- ", u, DumpSeg)
	if !p.Lenient {
		if err := p.Checker.Check(u); err != nil {
			return Seg{}, err
		}
	}
	s, ok := ParseSeg(u)
	if !ok {
		return s, fmt.Errorf("a segment of %d octets", len(u))
	}
	return s, nil
}

// Message reads all segments of a message; the result is the first with the whole Body.
func (p *Peer) Message() (Seg, error) {
	whole, err := p.Next()
	whole.Body = bytes.Clone(whole.Body)
	for s := whole; err == nil && !s.Last(); {
		if s, err = p.Next(); err == nil {
			if s.Op() != whole.Op() {
				return s, fmt.Errorf("%s within a %s", opNames[s.Op()], opNames[whole.Op()])
			}
			whole.Body = append(whole.Body, s.Body...)
		}
	}
	return whole, err
}

// An Ending is how a stream ended.
type Ending int

const (
	EndFIN     Ending = iota + 1 // closed
	EndReset                     // reset
	EndSilence                   // not at all, within the time that was given
)

func (e Ending) String() string { return [...]string{"?", "a FIN", "a RST", "nothing"}[e] }

// End reads to the end of the stream, for at most d; octets that come first are an error.
func (p *Peer) End(d time.Duration) (Ending, error) {
	if err := p.C.SetReadDeadline(time.Now().Add(d)); err != nil {
		return 0, err
	}
	var b [4096]byte
	n, err := p.r.Read(b[:])
	e := EndingOf(err)
	switch {
	case n > 0:
		p.note("<- %d octets\n    % x", n, b[:min(n, 96)])
		return 0, fmt.Errorf("%d octets came: % x", n, b[:min(n, 96)])
	case e == 0:
		return 0, err
	}
	p.note("<- %v", e)
	return e, nil
}

// EndingOf says what an error of reading means; 0: none of these.
func EndingOf(err error) Ending {
	switch {
	case errors.Is(err, io.EOF):
		return EndFIN
	case errors.Is(err, syscall.ECONNRESET), errors.Is(err, syscall.EPIPE),
		errors.Is(err, syscall.ECONNABORTED):
		return EndReset
	case errors.Is(err, os.ErrDeadlineExceeded):
		return EndSilence
	}
	return 0
}

// Drain reads and checks FPDUs to the end of the stream. It may be cut in the middle of one by a
// RST, not by a FIN.
func (p *Peer) Drain() error {
	for {
		_, err := p.Next()
		switch {
		case err == nil:
		case err == io.EOF, EndingOf(err) == EndReset, errors.Is(err, net.ErrClosed):
			return nil
		default:
			return err
		}
	}
}

// Close ends the connection.
func (p *Peer) Close() error { return p.C.Close() }
