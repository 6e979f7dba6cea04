package capture

import (
	"bufio"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"time"
)

// What goes over the socket from the daemon to who captures is a sequence of records: a head of
// headLen octets in little endian, and as many octets as it says.
//
//	0  length of what follows
//	4  length that the packet had
//	8  time, in nanoseconds since 1970
//	16 packets dropped so far
//	24 kind, direction, number of the port in the first record (16 bits)
const headLen = 28

// Kinds of records.
const (
	kindPorts  = 1 // the first: the ports in JSON
	kindPacket = 2
	kindEnd    = 3 // the last: how many were dropped in all
	kindEvent  = 4 // an Event in JSON
)

// maxRecord bounds a record: more than any frame.
const maxRecord = 1 << 17

// A Port is one that is captured.
type Port struct {
	Name string `json:"name"`
	Kind string `json:"kind"` // as ethswitch has it: stack, tap, unix
}

// A Packet is one that went through a port, or an Event between packets.
type Packet struct {
	Time    time.Time
	Port    int  // number among Ports
	In      bool // it came to the device; of other ports, from outside
	Data    []byte
	Len     int    // that it had, if Data was cut
	Dropped uint64 // packets that were lost before it
	Event   *Event // what has happened; nil: it is a packet
	MadeUp  bool   // it went nowhere, and is not counted
}

type head struct {
	length, original uint32
	nanos            int64
	dropped          uint64
	kind, in         uint8
	port             uint16
}

func (h *head) append(b []byte) []byte {
	b = binary.LittleEndian.AppendUint32(b, h.length)
	b = binary.LittleEndian.AppendUint32(b, h.original)
	b = binary.LittleEndian.AppendUint64(b, uint64(h.nanos))
	b = binary.LittleEndian.AppendUint64(b, h.dropped)
	b = append(b, h.kind, h.in)
	return binary.LittleEndian.AppendUint16(b, h.port)
}

func parseHead(b *[headLen]byte) head {
	le := binary.LittleEndian
	return head{le.Uint32(b[0:]), le.Uint32(b[4:]), int64(le.Uint64(b[8:])), le.Uint64(b[16:]), b[24],
		b[25], le.Uint16(b[26:])}
}

// A Reader takes records from a daemon.
type Reader struct {
	Ports []Port
	// Dropped is how many packets were lost: so far, and when Next has returned io.EOF in all.
	Dropped uint64

	r    *bufio.Reader
	data []byte
}

// NewReader reads which ports are captured.
func NewReader(r io.Reader) (*Reader, error) {
	c := &Reader{r: bufio.NewReaderSize(r, 1<<16)}
	h, err := c.next()
	if err != nil {
		return nil, err
	}
	if h.kind != kindPorts {
		return nil, errBroken
	}
	if err := json.Unmarshal(c.data, &c.Ports); err != nil {
		return nil, fmt.Errorf("the daemon's ports: %w", err)
	}
	return c, nil
}

var errBroken = errors.New("what the daemon sends is no capture")

func (c *Reader) next() (head, error) {
	var b [headLen]byte
	if _, err := io.ReadFull(c.r, b[:]); err != nil {
		if errors.Is(err, io.EOF) {
			err = errors.New("the daemon has gone")
		}
		return head{}, err
	}
	h := parseHead(&b)
	if h.length > maxRecord || h.original < h.length && h.kind == kindPacket {
		return head{}, errBroken
	}
	if cap(c.data) < int(h.length) {
		c.data = make([]byte, maxRecord)
	}
	c.data = c.data[:h.length]
	if _, err := io.ReadFull(c.r, c.data); err != nil {
		return head{}, err
	}
	c.Dropped = h.dropped
	return h, nil
}

// Next is the next packet, which is good until the call after it; io.EOF: the capture has ended.
func (c *Reader) Next() (Packet, error) {
	h, err := c.next()
	switch {
	case err != nil:
		return Packet{}, err
	case h.kind == kindEnd:
		return Packet{}, io.EOF
	case h.kind == kindEvent:
		p := Packet{Time: time.Unix(0, h.nanos), Dropped: h.dropped, Event: new(Event)}
		if json.Unmarshal(c.data, p.Event) != nil {
			return Packet{}, errBroken
		}
		return p, nil
	case h.kind != kindPacket || int(h.port) >= len(c.Ports):
		return Packet{}, errBroken
	}
	return Packet{Time: time.Unix(0, h.nanos), Port: int(h.port), In: h.in != 0, Data: c.data,
		Len: int(h.original), Dropped: h.dropped}, nil
}

// Waits says that nothing has come that Next has not given yet.
func (c *Reader) Waits() bool { return c.r.Buffered() == 0 }
