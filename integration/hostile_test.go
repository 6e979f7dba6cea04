package integration

import (
	"bytes"
	"encoding/binary"
	"errors"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/vrnic/vrnic/shm"
)

// A peer on the network breaks the rules, one by one. Each time its own connection ends, with
// the cause that the RFCs give, and everybody else's goes on.
func TestHostilePeer(t *testing.T) {
	ns := newNS(t)
	d := up(t, ns, "--device", deviceA, "--device", "vrnic1,addr=10.77.0.3/24",
		"--port", "tap:vtap0,addr=10.77.0.1/24")
	echo(t, ns, netip.MustParseAddr(addrsA[0]), 64) // the link is there
	server := d.serve("-d", "vrnic0")
	witness := d.start("ping", "-c", "-d", "vrnic1", "-a", addrsA[0], "-V", "-v")
	witness.waitOutput("ping data: ", 1)
	target := netip.MustParseAddrPort(addrsA[0] + ":7174")

	badCRC := fpdu(untagged(opSend, 0, 1, 0, make([]byte, 16)))
	badCRC[len(badCRC)-1] ^= 1
	version := func(seg []byte, octet int, v byte) []byte { seg[octet] = seg[octet]&^3 | v; return seg }
	rdmapVersion := untagged(opSend, 0, 1, 0, make([]byte, 16))
	rdmapVersion[1] = 0x80 | opSend

	for _, tt := range []struct {
		name string
		send []byte
		want cause
	}{
		// RFC 5044, section 8.
		{"MPA: bad CRC", badCRC, cause{2, 0, 0x02}},
		// RFC 5041, section 8.
		{"DDP: write to an STag that is not there", fpdu(tagged(opWrite, 0x00c0ffee, 0, []byte("x"))), cause{1, 1, 0x00}},
		{"DDP: tagged version", fpdu(version(tagged(opWrite, 1, 0, []byte("x")), 0, 2)), cause{1, 1, 0x04}},
		{"DDP: queue that does not exist", fpdu(untagged(opSend, 9, 1, 0, make([]byte, 16))), cause{1, 2, 0x01}},
		{"DDP: MSN ahead", fpdu(untagged(opSend, 0, 1<<20, 0, make([]byte, 16))), cause{1, 2, 0x03}},
		{"DDP: message offset past the buffer", fpdu(untagged(opSend, 0, 1, 1<<30, make([]byte, 16))), cause{1, 2, 0x04}},
		{"DDP: message too long", fpdu(untagged(opSend, 0, 1, 0, make([]byte, 1000))), cause{1, 2, 0x05}},
		{"DDP: untagged version", fpdu(version(untagged(opSend, 0, 1, 0, make([]byte, 16)), 0, 3)), cause{1, 2, 0x06}},
		// RFC 5040, section 4.8, figure 9.
		{"RDMAP: version", fpdu(rdmapVersion), cause{0, 2, 0x05}},
		{"RDMAP: opcode", fpdu(untagged(0xf, 0, 1, 0, make([]byte, 16))), cause{0, 2, 0x06}},
		{"RDMAP: read of an STag that is not there", fpdu(untagged(opReadRequest, 1, 1, 0, readRequest(0x00c0ffee, 16))), cause{0, 1, 0x00}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			p := dialRaw(t, ns, target)
			p.connect()
			// A responder sends nothing before the first valid FPDU: RFC 5044, section 7.1.2.
			p.write(fpdu(tagged(opWrite, 0, 0, nil)))
			p.write(tt.send)
			got, err := p.readTerminate()
			if err != nil {
				t.Fatal(err)
			}
			if got != tt.want {
				t.Errorf("Terminate %+v, want %+v", got, tt.want)
			}
			p.readEnd()
		})
	}

	for _, tt := range []struct {
		name string
		send []byte
	}{
		{"set-up: another protocol", []byte("GET / HTTP/1.1\r\nHost: vrnic\r\n\r\n")},
		{"set-up: a reply for a request", mpaFrame(mpaReply, mpaCRC)},
		{"set-up: private data of 513 octets", bytes.Join([][]byte{[]byte(mpaRequest), {mpaCRC, 2, 2, 1}, make([]byte, 513)}, nil)},
		{"set-up: enhanced without its 4 octets", bytes.Join([][]byte{[]byte(mpaRequest), {mpaCRC | mpaEnhanced, 2, 0, 0}}, nil)},
		{"set-up: revision 9", bytes.Join([][]byte{[]byte(mpaRequest), {mpaCRC, 9, 0, 0}}, nil)},
	} {
		t.Run(tt.name, func(t *testing.T) {
			p := dialRaw(t, ns, target)
			p.write(tt.send)
			if tc, ok := p.c.(*net.TCPConn); ok && strings.Contains(tt.name, "without") {
				_ = tc.CloseWrite() // more could come otherwise
			}
			p.readEnd()
		})
	}

	t.Run("noise", func(t *testing.T) {
		rnd := rand.New(rand.NewPCG(1, 2))
		for range 50 {
			p := dialRaw(t, ns, target)
			p.connect()
			b := make([]byte, 1+rnd.IntN(3000))
			for i := range b {
				b[i] = byte(rnd.Uint32())
			}
			_, _ = p.c.Write(b) // it may have been thrown out half way
			_ = p.c.(*net.TCPConn).CloseWrite()
			p.readEnd()
		}
	})

	t.Run("silence", func(t *testing.T) {
		p := dialRaw(t, ns, target) // says nothing; must not stand in anyone's way
		d.ping2("vrnic1", addrsA[0])
		p.c.Close()
	})

	seen := strings.Count(witness.output(), "ping data: ")
	witness.waitOutput("ping data: ", seen+100)
	if out := witness.output(); strings.Contains(out, "vrnic: ") {
		t.Errorf("somebody else's connection suffered:\n%s", out)
	}
	witness.interrupt()
	eventually(t, 10*time.Second, "the QPs of all connections are gone", func() bool { return len(d.show("qp")) == 0 })
	server.interrupt()
	d.stop()
}

// readRequest is the payload of a Read Request: sink STag 1, TO 0. RFC 5040, section 4.4.
func readRequest(source uint32, size uint32) []byte {
	b := binary.BigEndian.AppendUint32(nil, 1)
	b = binary.BigEndian.AppendUint64(b, 0)
	b = binary.BigEndian.AppendUint32(b, size)
	b = binary.BigEndian.AppendUint32(b, source)
	return binary.BigEndian.AppendUint64(b, 0)
}

// A program sends the daemon's control socket what no client would: before and after a proper
// HELLO, with and without a header that fits. It is thrown out or gets an error; the daemon and
// its other clients go on, and nothing is left of it.
func TestHostileClient(t *testing.T) {
	d := up(t, nil, "--device", deviceA, "--device", "vrnic1,addr=10.77.0.3/24")
	d.serve("-d", "vrnic0")
	d.ping2("vrnic1", addrsA[0])
	before := d.atRest()
	witness := d.start("ping", "-c", "-d", "vrnic1", "-a", addrsA[0], "-V", "-v")
	witness.waitOutput("ping data: ", 1)

	rnd := rand.New(rand.NewPCG(3, 4))
	noise := func(n int) []byte {
		b := make([]byte, n)
		for i := range b {
			// Small numbers are handles and sizes that there may be.
			if b[i] = byte(rnd.Uint32()); rnd.IntN(3) > 0 {
				b[i] &= 3
			}
		}
		return b
	}
	hello := shm.AppendMessage(nil, shm.Header{Op: shm.OpHello, Seq: 1},
		&shm.HelloRequest{Magic: shm.MagicHello, Major: shm.Major, Minor: shm.Minor})
	welcomed := 0
	for range 300 {
		c, err := net.Dial("unixpacket", d.socket)
		if err != nil {
			t.Fatal(err)
		}
		c.SetDeadline(time.Now().Add(patience))
		reply := make([]byte, shm.MaxMessage)
		if rnd.IntN(4) > 0 {
			if _, err := c.Write(hello); err != nil {
				t.Fatal(err)
			}
			if n, err := c.Read(reply); err != nil || n < shm.HeaderLen {
				t.Fatalf("HELLO: %d octets, %v", n, err)
			}
			welcomed++
		}
		for range 20 {
			msg := noise(rnd.IntN(300))
			if rnd.IntN(8) > 0 {
				msg = shm.AppendMessage(nil, shm.Header{Op: shm.Op(rnd.IntN(140)), Seq: 2}, msg)
			}
			if _, err := c.Write(msg); err != nil {
				break // thrown out
			}
			if _, err := c.Read(reply); errors.Is(err, os.ErrDeadlineExceeded) {
				t.Fatalf("no answer to % x", msg)
			} else if err != nil {
				break
			}
		}
		c.Close()
	}
	t.Logf("%d of 300 sessions were welcomed", welcomed)
	seen := strings.Count(witness.output(), "ping data: ")
	witness.waitOutput("ping data: ", seen+100)
	witness.interrupt()
	d.settle(before)
	d.stop()
}

// ping2 runs a few rounds from a named device.
func (d *daemon) ping2(device, addr string) {
	d.t.Helper()
	d.run("ping", "-c", "-d", device, "-a", addr, "-C", "3", "-V")
}
