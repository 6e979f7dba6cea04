package record

import (
	"bufio"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"slices"
	"time"

	"github.com/vrnic/vrnic/iwarp"
	"github.com/vrnic/vrnic/roce"
)

// magic begins a file. Those of earlier versions are read as well: less of them is played.
const magic = "vrnic recording 3\n"

var oldMagics = []string{"vrnic recording 1\n", "vrnic recording 2\n"}

// A Meta says what a recording is of.
type Meta struct {
	Began   time.Time `json:"began"`
	Version string    `json:"version"` // of vrnic
	Devices []string  `json:"devices"`
}

// Kinds of subjects.
const (
	Connection = "connection" // an engine: its calls are played again
	StartUp    = "start-up"   // of MPA: as a connection
	DatagramQP = "datagrams"  // an engine, of a queue pair that has no connection
	// ConnManager is the engine of a device's connection manager.
	ConnManager = "connection manager"
	// SCTPEndpoint is the engine of a device's associations.
	SCTPEndpoint = "sctp"
	// DDPStreams is the engine of DDP's streams on an association of SCTP, and DDPSession that of a
	// session on one of them.
	DDPStreams = "DDP streams"
	DDPSession = "DDP session"
	QueuePair  = "qp"      // what becomes of its requests
	Session    = "session" // calls of a program
)

// A Subject is what records are about.
type Subject struct {
	ID     uint64        `json:"id"`
	At     time.Duration `json:"at"` // when it began
	Kind   string        `json:"kind"`
	Device string        `json:"device,omitempty"`
	QPN    uint32        `json:"qpn,omitempty"`

	// Of a connection.
	Transport string       `json:"transport,omitempty"`
	Local     string       `json:"local,omitempty"`
	Remote    string       `json:"remote,omitempty"`
	IWARP     *IWARP       `json:"iwarp,omitempty"`
	RC        *roce.Config `json:"rc,omitempty"`
	UC        *roce.Config `json:"uc,omitempty"`
	Start     *Start       `json:"start,omitempty"`
	UD        *UD          `json:"ud,omitempty"`
	CM        *CM          `json:"cm,omitempty"`
	DDP       *DDPOf       `json:"ddp,omitempty"`

	// Of a session.
	Program string `json:"program,omitempty"`
	PID     int    `json:"pid,omitempty"`
}

// IWARP is what an iwarp.Endpoint was made with.
type IWARP struct {
	Params     iwarp.Params `json:"params"`
	SendQueue  int          `json:"send_queue"`
	EMSS       int          `json:"emss"`
	MULPDU     int          `json:"mulpdu"`
	Extensions bool         `json:"extensions"`
	Records    bool         `json:"records"`
}

// name is how a queue pair or a connection is told of.
func (s *Subject) name() string {
	if s.QPN == 0 {
		return s.Device // of no queue pair, or of one that is not known yet
	}
	return fmt.Sprintf("QP %d of %s", s.QPN, s.Device)
}

// Played reports that s has an engine, whose calls are played again.
func (s *Subject) Played() bool { return s.Kind != QueuePair && s.Kind != Session }

func (s *Subject) String() string {
	switch s.Kind {
	case Connection, StartUp:
		return fmt.Sprintf("%s, %s from %s to %s", s.name(), s.Transport, s.Local, s.Remote)
	case SCTPEndpoint:
		return s.name() + ", SCTP"
	case DDPStreams:
		return fmt.Sprintf("%s, DDP's streams from %s to %s", s.name(), s.Local, s.Remote)
	case DDPSession:
		of := s.DDP
		if of == nil {
			of = new(DDPOf)
		}
		return fmt.Sprintf("%s, DDP session %d, on stream %d from %s to %s", s.name(), of.Number,
			of.Stream, s.Local, s.Remote)
	case ConnManager:
		return s.name() + ", connection manager"
	case DatagramQP:
		return s.name() + ", datagrams"
	case QueuePair:
		return s.name()
	}
	return fmt.Sprintf("program %q (%d)", s.Program, s.PID)
}

// castagnoli is the polynomial of the sums.
var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// appendRecord adds a record with that content to b.
func appendRecord(b, content []byte) []byte {
	b = binary.AppendUvarint(b, uint64(len(content)))
	b = append(b, content...)
	return binary.LittleEndian.AppendUint32(b, crc32.Checksum(content, castagnoli))
}

// A Record is one record of a file.
type Record struct {
	Subject *Subject // nil: it is about none
	At      time.Duration
	Steps   []Step // good until the next record
	Opened  bool   // Subject begins
	Lost    bool   // of Subject nothing more comes: there was no room
	End     string // the recording ends, for that reason
}

// What a file may have.
const (
	maxSubjects = 1 << 20
	maxJSON     = 1 << 16
)

// ErrCut says that a file ends before its recording does.
var ErrCut = errors.New("the recording is cut here")

// A Reader reads a recording.
type Reader struct {
	Meta Meta

	in       *bufio.Reader
	off      int64 // in the file
	content  []byte
	parser   parser
	subjects []*Subject
	ended    bool
}

// NewReader begins to read from r.
func NewReader(r io.Reader) (*Reader, error) {
	f := &Reader{in: bufio.NewReaderSize(r, 1<<16)}
	head := make([]byte, len(magic))
	switch _, err := io.ReadFull(f.in, head); {
	case err != nil && !errors.Is(err, io.EOF) && !errors.Is(err, io.ErrUnexpectedEOF):
		return nil, err
	case (string(head) == magic || slices.Contains(oldMagics, string(head))) && err == nil:
	case len(head) > 0 && string(head[:len(magic)-2]) == magic[:len(magic)-2]:
		return nil, fmt.Errorf("the recording is of another version (%q): replay it with the vrnic that "+
			"made it", head[:len(head)-1])
	default:
		return nil, errors.New("the file is no recording of vrnic record")
	}
	f.off = int64(len(head))
	content, err := f.record()
	if err == nil && (content[0] != kindBegin || unmarshal(content[1:], &f.Meta) != nil) {
		err = f.damaged(errRecord)
	}
	return f, err
}

// unmarshal takes JSON that is not too long.
func unmarshal(b []byte, v any) error {
	if len(b) > maxJSON {
		return errRecord
	}
	return json.Unmarshal(b, v)
}

func (f *Reader) damaged(why error) error {
	return fmt.Errorf("the recording is damaged at octet %d: %w", f.off, why)
}

// cut is why the file ends with err in the midst of a record.
func (f *Reader) cut(err error) error {
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return fmt.Errorf("%w, at octet %d of the file: its writer was ended", ErrCut, f.off)
	}
	return err
}

// record reads the content of one record, which is not empty.
func (f *Reader) record() ([]byte, error) {
	n, err := binary.ReadUvarint(f.in)
	switch {
	case err != nil:
		return nil, f.cut(err)
	case n == 0 || n > maxRecord:
		return nil, f.damaged(fmt.Errorf("a record of %d octets", n))
	}
	// What a file says of its length is believed as far as there are octets.
	const piece = 1 << 20
	b := f.content[:0]
	for left := int(n); left > 0; {
		k := min(left, piece)
		at := len(b)
		b = append(b, make([]byte, k)...)
		if _, err := io.ReadFull(f.in, b[at:]); err != nil {
			return nil, f.cut(err)
		}
		left -= k
	}
	f.content = b
	var sum [4]byte
	if _, err := io.ReadFull(f.in, sum[:]); err != nil {
		return nil, f.cut(err)
	}
	if binary.LittleEndian.Uint32(sum[:]) != crc32.Checksum(b, castagnoli) {
		return nil, f.damaged(errors.New("a sum does not match"))
	}
	var head [binary.MaxVarintLen64]byte
	f.off += int64(binary.PutUvarint(head[:], n)) + int64(n) + 4
	return b, nil
}

// Next is the next record; io.EOF: there is none behind the end, which has come. ErrCut: the file
// ends without one.
func (f *Reader) Next() (rec Record, err error) {
	if f.ended {
		return rec, io.EOF
	}
	b, err := f.record()
	if err != nil {
		return rec, err
	}
	switch kind := b[0]; kind {
	case kindOpen:
		s := new(Subject)
		if err := unmarshal(b[1:], s); err != nil || s.ID != uint64(len(f.subjects)) ||
			len(f.subjects) >= maxSubjects {
			return rec, f.damaged(errRecord)
		}
		f.subjects = append(f.subjects, s)
		return Record{Subject: s, At: s.At, Opened: true}, nil
	case kindEnd:
		f.ended = true
		return Record{End: string(b[1:])}, nil
	case kindSteps, kindLost:
		b = b[1:]
		id, err := number(&b)
		if err != nil || id >= uint64(len(f.subjects)) {
			return rec, f.damaged(errRecord)
		}
		rec.Subject, rec.Lost = f.subjects[id], kind == kindLost
		if rec.Lost {
			return rec, nil
		}
		at, err := number(&b)
		if err == nil {
			rec.At = time.Duration(at)
			rec.Steps, err = f.parser.parse(b)
		}
		if err != nil || len(rec.Steps) == 0 || rec.At < 0 {
			return rec, f.damaged(errRecord)
		}
		if s := &rec.Steps[0]; s.Op == OpBelongs {
			rec.Subject.QPN = uint32(s.Args[0])
		}
		return rec, nil
	}
	return rec, f.damaged(fmt.Errorf("a record of kind %d", b[0]))
}
