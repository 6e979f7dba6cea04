package integration

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"net"
	"net/netip"
	"os"
	"testing"
	"time"

	"github.com/vrnic/vrnic/internal/netlab"
)

// A rawPeer speaks iWARP by hand on a TCP connection of the kernel: it shares no code with the
// product, and can break every rule.
type rawPeer struct {
	t *testing.T
	c net.Conn
}

// dialRaw connects from the kernel of ns.
func dialRaw(t *testing.T, ns *netlab.NS, to netip.AddrPort) *rawPeer {
	t.Helper()
	var c net.Conn
	if err := ns.Do(func() (err error) { c, err = net.DialTimeout("tcp", to.String(), patience); return }); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	if err := c.SetDeadline(time.Now().Add(patience)); err != nil {
		t.Fatal(err)
	}
	return &rawPeer{t, c}
}

const (
	mpaRequest = "MPA ID Req Frame"
	mpaReply   = "MPA ID Rep Frame"
	// Octet 16 of a set-up frame: RFC 5044, section 7.1, and S of RFC 6581, section 6.
	mpaCRC      = 0x40
	mpaEnhanced = 0x10
)

// mpaFrame is a set-up frame of revision 2 with IRD and ORD 1, behind them private.
func mpaFrame(key string, flags byte, private ...byte) []byte {
	b := append([]byte(key), flags|mpaEnhanced, 2)
	b = binary.BigEndian.AppendUint16(b, uint16(4+len(private)))
	return append(append(b, 0, 1, 0, 1), private...)
}

func (p *rawPeer) write(b []byte) {
	p.t.Helper()
	if _, err := p.c.Write(b); err != nil {
		p.t.Fatalf("write: %v", err)
	}
}

// connect asks for a connection with CRC and reads the answer.
func (p *rawPeer) connect() {
	p.t.Helper()
	p.write(mpaFrame(mpaRequest, mpaCRC))
	head := make([]byte, 20)
	if _, err := io.ReadFull(p.c, head); err != nil {
		p.t.Fatalf("no MPA reply: %v", err)
	}
	if string(head[:16]) != mpaReply || head[16] != mpaCRC|mpaEnhanced || head[17] != 2 {
		p.t.Fatalf("MPA reply % x", head)
	}
	if _, err := io.CopyN(io.Discard, p.c, int64(binary.BigEndian.Uint16(head[18:]))); err != nil {
		p.t.Fatalf("MPA reply: %v", err)
	}
}

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// fpdu puts a ULPDU in a frame: length, pad, CRC. RFC 5044, section 4.1.
func fpdu(ulpdu []byte) []byte {
	b := binary.BigEndian.AppendUint16(nil, uint16(len(ulpdu)))
	b = append(b, ulpdu...)
	b = append(b, make([]byte, -len(b)&3)...)
	return binary.LittleEndian.AppendUint32(b, crc32.Checksum(b, castagnoli))
}

// untagged is a DDP segment of one message. RFC 5041, section 4.3; RFC 5040, section 4.1.
func untagged(op byte, qn, msn, mo uint32, payload []byte) []byte {
	b := []byte{0x41, 0x40 | op, 0, 0, 0, 0}
	b = binary.BigEndian.AppendUint32(b, qn)
	b = binary.BigEndian.AppendUint32(b, msn)
	b = binary.BigEndian.AppendUint32(b, mo)
	return append(b, payload...)
}

// tagged is a DDP segment of one message. RFC 5041, section 4.2.
func tagged(op byte, stag uint32, to uint64, payload []byte) []byte {
	b := []byte{0xc1, 0x40 | op}
	b = binary.BigEndian.AppendUint32(b, stag)
	b = binary.BigEndian.AppendUint64(b, to)
	return append(b, payload...)
}

// RDMAP opcodes: RFC 5040, figure 4.
const (
	opWrite       = 0
	opReadRequest = 1
	opSend        = 3
	opTerminate   = 7
)

// A cause is what a Terminate says: layer, error type, code. RFC 5040, section 4.8.
type cause struct{ layer, etype, code byte }

// readTerminate reads FPDUs until a Terminate, and then the end of the stream.
func (p *rawPeer) readTerminate() (cause, error) {
	for {
		head := make([]byte, 2)
		if _, err := io.ReadFull(p.c, head); err != nil {
			return cause{}, fmt.Errorf("no Terminate: %w", err)
		}
		n := int(binary.BigEndian.Uint16(head))
		rest := make([]byte, n+-(n+2)&3+4)
		if _, err := io.ReadFull(p.c, rest); err != nil {
			return cause{}, fmt.Errorf("half an FPDU: %w", err)
		}
		frame := append(head, rest...)
		crc := binary.LittleEndian.Uint32(frame[len(frame)-4:])
		if want := crc32.Checksum(frame[:len(frame)-4], castagnoli); crc != want {
			return cause{}, fmt.Errorf("CRC %08x, want %08x", crc, want)
		}
		if n < 18 || rest[0]&0x80 != 0 || binary.BigEndian.Uint32(rest[6:]) != 2 {
			continue // not on the Terminate queue
		}
		if rest[1] != 0x40|opTerminate || n < 18+4 {
			return cause{}, fmt.Errorf("on queue 2: % x", rest[:n])
		}
		return cause{rest[18] >> 4, rest[18] & 15, rest[19]}, nil
	}
}

// readEnd wants the peer to close, in whatever way.
func (p *rawPeer) readEnd() {
	p.t.Helper()
	if _, err := io.Copy(io.Discard, p.c); errors.Is(err, os.ErrDeadlineExceeded) {
		p.t.Errorf("the connection is still open after %v", patience)
	}
}
