package check

import (
	"crypto/rand"
	"crypto/subtle"
	"encoding/hex"
	"fmt"
	"io"
	"net"
	"strconv"
	"strings"
)

// Options are what a Listener does with findings.
type Options struct {
	Out      io.Writer // where they are said
	JSON     io.Writer // and where each is written in a line; nil: nowhere
	Pedantic bool      // notes, too
	// Counts asks what was counted of a queue pair; false: it is not there.
	Counts func(device string, qpn uint32) (Counts, bool)
}

// Counts are those of a queue pair that the library asks for.
type Counts struct {
	Stalls    uint64 // messages that found no receive
	InWrites  uint64 `json:"in_writes"` // of the peer
	InReads   uint64 `json:"in_reads"`
	InAtomics uint64 `json:"in_atomics"`

	Refused *Refused `json:"-"` // to the peer, last; nil: nothing
}

// Refused is what a peer has asked for and not got.
type Refused struct {
	Use    string // RDMA Write, RDMA Read or atomic
	RKey   uint32
	Addr   uint64
	Octets uint32
	Why    string // no-region, stranger, no-right or outside
}

// A Listener takes what the library tells of a program and of those that it starts.
type Listener struct {
	Address  string // for the environment of the program
	name     string // of the socket, which all users of the machine can read
	secret   string // in front of what is told: others than the program do not know it
	opts     Options
	conn     *net.UnixConn
	end      string // says that all has been told
	done     chan struct{}
	told     map[string]bool
	findings int
	err      error
}

// maxDatagram is more than the library sends.
const maxDatagram = 16384

// Listen begins to take findings.
func Listen(opts Options) (*Listener, error) {
	b := make([]byte, 40)
	_, _ = rand.Read(b) // never fails
	l := &Listener{name: "vrnic-check-" + hex.EncodeToString(b[:8]), opts: opts,
		secret: hex.EncodeToString(b[8:24]), end: "end " + hex.EncodeToString(b[24:]),
		done: make(chan struct{}), told: make(map[string]bool)}
	l.Address = l.name + " " + l.secret
	var err error
	l.conn, err = net.ListenUnixgram("unixgram", l.at())
	if err != nil {
		return nil, err
	}
	// Who tells waits for room: it is read at once, and looked at in its turn.
	said := make(chan string, 4096)
	go l.read(said)
	go l.say(said)
	return l, nil
}

func (l *Listener) at() *net.UnixAddr { return &net.UnixAddr{Name: "@" + l.name, Net: "unixgram"} }

func (l *Listener) read(said chan<- string) {
	defer close(said)
	b := make([]byte, maxDatagram)
	for {
		n, from, err := l.conn.ReadFromUnix(b)
		if err != nil {
			return
		}
		text := string(b[:n])
		if text == l.end {
			return
		}
		secret, text, _ := strings.Cut(text, "\n")
		if subtle.ConstantTimeCompare([]byte(secret), []byte(l.secret)) == 0 {
			continue // a stranger's
		}
		if ask, ok := strings.CutPrefix(text, "ask-counts "); ok {
			l.answer(strings.TrimSpace(ask), from)
			continue
		}
		said <- text
	}
}

func (l *Listener) answer(ask string, to *net.UnixAddr) {
	number, device, _ := strings.Cut(ask, " ")
	text := "unknown"
	if qpn, err := strconv.ParseUint(number, 10, 32); err == nil && l.opts.Counts != nil {
		if c, ok := l.opts.Counts(device, uint32(qpn)); ok {
			text = fmt.Sprint(c.Stalls, c.InWrites, c.InReads, c.InAtomics)
			if r := c.Refused; r != nil {
				text += fmt.Sprintf(" %d %d %d %s %s", r.RKey, r.Addr, r.Octets, r.Why, r.Use)
			}
		}
	}
	if to != nil {
		_, _ = l.conn.WriteToUnix([]byte(text), to) // it may have gone
	}
}

func (l *Listener) say(said <-chan string) {
	defer close(l.done)
	s := newSymbolizer()
	for text := range said {
		f, err := parse(text)
		if err != nil {
			continue // not from the library
		}
		l.found(f, s)
	}
}

func (l *Listener) found(f *Finding, s *symbolizer) {
	w, ok := words[f.What]
	if !ok {
		return
	}
	f.Level, f.Title = w.level, w.title
	if f.What == "leak" && f.Numbers["status"] != 0 {
		f.Level = Note // what has failed seldom cleans up
	}
	if f.Level == Note && !l.opts.Pedantic {
		return
	}
	f.Text = w.text(f)
	for i := range f.Sites {
		f.Sites[i] = s.site(f.Sites[i])
	}
	// The library tells two places apart that are of one line, or of its own only.
	if l.told[f.key()] {
		return
	}
	l.told[f.key()] = true
	l.findings++
	f.write(l.opts.Out, l.findings)
	if l.opts.JSON != nil {
		if err := f.writeJSON(l.opts.JSON); err != nil && l.err == nil {
			l.err = err
		}
	}
}

// key is what is told once.
func (f *Finding) key() string {
	if len(f.Sites) == 0 || len(f.Sites[0].Frames) == 0 {
		return f.What + " " + f.Text
	}
	at := f.Sites[0].Frames[0]
	return fmt.Sprint(f.What, f.Texts["call"], f.object("object").Kind, at)
}

// Close takes what has been told so far, and returns how many findings there were.
func (l *Listener) Close() (int, error) {
	conn, err := net.DialUnix("unixgram", nil, l.at())
	if err == nil {
		_, err = io.WriteString(conn, l.end)
		conn.Close()
	}
	if err != nil { // then what waits is not read
		l.conn.Close()
	}
	<-l.done
	l.conn.Close()
	if l.err != nil {
		err = fmt.Errorf("write the findings: %w", l.err)
	}
	return l.findings, err
}
