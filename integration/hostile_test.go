package integration

import (
	"encoding/binary"
	"errors"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/vrnic/vrnic/integration/proctest"
	"github.com/vrnic/vrnic/internal/netlab"
	"github.com/vrnic/vrnic/lab/rawpeer"
	"github.com/vrnic/vrnic/shm/abi"
	"github.com/vrnic/vrnic/shm/rpc"
)

// dialKernel connects from the kernel of ns.
func dialKernel(t *testing.T, ns *netlab.NS, to netip.AddrPort) *rawpeer.Peer {
	t.Helper()
	var c net.Conn
	if err := ns.Do(func() (err error) {
		c, err = net.DialTimeout("tcp", to.String(), patience)
		return
	}); err != nil {
		t.Fatal(err)
	}
	p := rawpeer.New(rawpeer.Kernel(c.(*net.TCPConn)))
	t.Cleanup(func() { p.Close() })
	return p
}

// A peer on a kernel's TCP breaks the rules, one by one. Each time its own connection ends, with
// the cause that the RFCs give, and everybody else's goes on.
func TestHostilePeer(t *testing.T) {
	ns := proctest.NewNS(t)
	d := up(t, ns, "--device", deviceA, "--device", "vrnic1,addr=10.77.0.3/24",
		"--port", "tap:vtap0,addr=10.77.0.1/24")
	echo(t, ns, netip.MustParseAddr(addrsA[0]), 64) // the link is there
	server := d.serve("-d", "vrnic0")
	witness := d.start("ping", "-c", "-d", "vrnic1", "-a", addrsA[0], "-V", "-v")
	witness.WaitOutput("ping data: ", 1)
	target := netip.MustParseAddrPort(addrsA[0] + ":7174")

	start := []rawpeer.Step{
		rawpeer.PutStart(rawpeer.Request(rawpeer.FlagC).Enhanced(1, 1)),
		rawpeer.WantReply(rawpeer.FlagC | rawpeer.FlagS), rtr(),
	}
	send := rawpeer.Send(1, 0, make([]byte, 16))
	for _, tt := range []struct {
		name               string
		send               seg
		layer, etype, code byte
		copies             rawpeer.Copies
	}{
		// RFC 5041, section 8.
		{"DDP: write to an STag that is not there", rawpeer.Write(0x00c0ffee, 0, []byte("x")), 1, 1,
			0x00, ddp},
		{"DDP: tagged version", rawpeer.Write(1, 0, []byte("x")).DDPVersion(2), 1, 1, 0x04, ddp},
		{"DDP: queue that does not exist", send.QueueNumber(9), 1, 2, 0x01, ddp},
		{"DDP: MSN ahead", send.Sequence(1 << 20), 1, 2, 0x03, ddp},
		{"DDP: message offset past the buffer", send.Offset(1 << 30), 1, 2, 0x04, ddp},
		{"DDP: message too long", rawpeer.Send(1, 0, make([]byte, 1000)), 1, 2, 0x05, ddp},
		{"DDP: untagged version", send.DDPVersion(3), 1, 2, 0x06, ddp},
		// RFC 5040, section 4.8, figure 9.
		{"RDMAP: version", send.RDMAPVersion(2), 0, 2, 0x05, ddp},
		{"RDMAP: opcode", send.Opcode(0xf), 0, 2, 0x06, ddp},
		{"RDMAP: read of an STag that is not there", rawpeer.ReadRequest(1, rawpeer.Read{SinkSTag: 1,
			Size: 16, SrcSTag: 0x00c0ffee}), 0, 1, 0x00, ddpRead},
	} {
		t.Run(tt.name, func(t *testing.T) {
			p := dialKernel(t, ns, target)
			if err := p.Run(append(start, rawpeer.Put(tt.send),
				rawpeer.WantTerminate(tt.layer, tt.etype, tt.code, tt.copies, tt.send),
				rawpeer.WantFIN())...); err != nil {
				t.Error(err)
			}
		})
	}
	t.Run("MPA: bad CRC", func(t *testing.T) { // RFC 5044, section 8
		p := dialKernel(t, ns, target)
		if err := p.Run(append(start, rawpeer.PutLie(send, rawpeer.Lie{CRC: func(c uint32) uint32 {
			return c ^ 1<<24
		}}),
			rawpeer.WantTerminate(2, 0, 0x02, bare, seg{}), rawpeer.WantFIN())...); err != nil {
			t.Error(err)
		}
	})
	for name, octets := range map[string][]byte{
		"another protocol":           []byte("GET / HTTP/1.1\r\nHost: vrnic\r\n\r\n"),
		"a reply for a request":      rawpeer.Reply(rawpeer.FlagC).Append(nil),
		"private data of 513 octets": rawpeer.Request(rawpeer.FlagC, make([]byte, 513)...).Append(nil),
		"enhanced without its 4 octets": rawpeer.Start{Key: rawpeer.KeyRequest, Flags: rawpeer.FlagC |
			rawpeer.FlagS, Rev: 2, Claim: -1}.Append(nil),
		"revision 9": rawpeer.Start{Key: rawpeer.KeyRequest, Flags: rawpeer.FlagC, Rev: 9,
			Claim: -1}.Append(nil),
	} {
		t.Run("set-up: "+name, func(t *testing.T) {
			if err := dialKernel(t, ns, target).Run(rawpeer.PutOctets(octets),
				rawpeer.WantClosed()); err != nil {
				t.Error(err)
			}
		})
	}
	t.Run("noise", func(t *testing.T) {
		rnd := rand.New(rand.NewPCG(1, 2))
		for range 50 {
			p := dialKernel(t, ns, target)
			b := make([]byte, 1+rnd.IntN(3000))
			for i := range b {
				b[i] = byte(rnd.Uint32())
			}
			if err := p.Run(start...); err != nil {
				t.Fatal(err)
			}
			_ = p.Write(b) // it may have been thrown out half way
			_ = p.C.CloseWrite()
			if err := p.Drain(); err != nil {
				t.Fatal(err)
			}
		}
	})
	t.Run("silence", func(t *testing.T) {
		p := dialKernel(t, ns, target) // says nothing; must not stand in anyone's way
		d.ping2("vrnic1", addrsA[0])
		p.Close()
	})

	seen := strings.Count(witness.Output(), "ping data: ")
	witness.WaitOutput("ping data: ", seen+100)
	if out := witness.Output(); strings.Contains(out, "vrnic: ") {
		t.Errorf("somebody else's connection suffered:\n%s", out)
	}
	witness.interrupt()
	proctest.Eventually(t, patience, "the QPs of all connections are gone",
		func() bool { return len(d.show("qp")) == 0 })
	server.interrupt()
	d.stop()
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
	witness.WaitOutput("ping data: ", 1)

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
	hello := rpc.AppendMessage(nil, rpc.Header{Op: rpc.OpHello, Seq: 1},
		&rpc.HelloRequest{Magic: abi.MagicHello, Major: abi.Major, Minor: abi.Minor})
	welcomed := 0
	for range 300 {
		c, err := net.Dial("unixpacket", d.socket)
		if err != nil {
			t.Fatal(err)
		}
		c.SetDeadline(time.Now().Add(patience))
		reply := make([]byte, rpc.MaxMessage)
		if rnd.IntN(4) > 0 {
			if _, err := c.Write(hello); err != nil {
				t.Fatal(err)
			}
			if n, err := c.Read(reply); err != nil || n < rpc.HeaderLen {
				t.Fatalf("HELLO: %d octets, %v", n, err)
			}
			welcomed++
		}
		for range 20 {
			msg := noise(rnd.IntN(300))
			if rnd.IntN(8) > 0 {
				h := rpc.AppendMessage(nil, rpc.Header{Op: rpc.Op(rnd.IntN(140)), Seq: 2}, &rpc.Empty{})
				binary.NativeEndian.PutUint32(h[rpc.HeaderLen-4:], uint32(len(msg)))
				msg = append(h, msg...)
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
	seen := strings.Count(witness.Output(), "ping data: ")
	witness.WaitOutput("ping data: ", seen+100)
	witness.interrupt()
	d.settle(before)
	d.stop()
}

// ping2 runs a few rounds from a named device.
func (d *daemon) ping2(device, addr string) {
	d.T.Helper()
	d.run("ping", "-c", "-d", device, "-a", addr, "-C", "3", "-V")
}
