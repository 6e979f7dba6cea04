package integration

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/vrnic/vrnic/internal/needtest"
)

// A capture writes frames to a pcap file (the classic format, microseconds, Ethernet).
type capture struct {
	mu sync.Mutex
	f  *os.File
	w  *bufio.Writer
}

func newCapture(t *testing.T) *capture {
	t.Helper()
	f, err := os.Create(filepath.Join(t.TempDir(), "wire.pcap"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	c := &capture{f: f, w: bufio.NewWriterSize(f, 1<<20)}
	head := binary.LittleEndian.AppendUint32(nil, 0xa1b2c3d4)
	head = binary.LittleEndian.AppendUint16(head, 2)
	head = binary.LittleEndian.AppendUint16(head, 4)
	head = append(head, make([]byte, 8)...)
	head = binary.LittleEndian.AppendUint32(head, 1<<18) // longest frame
	head = binary.LittleEndian.AppendUint32(head, 1)     // LINKTYPE_ETHERNET
	c.w.Write(head)
	return c
}

func (c *capture) frame(b []byte) {
	c.mu.Lock()
	defer c.mu.Unlock()
	now := time.Now()
	head := binary.LittleEndian.AppendUint32(nil, uint32(now.Unix()))
	head = binary.LittleEndian.AppendUint32(head, uint32(now.Nanosecond()/1000))
	head = binary.LittleEndian.AppendUint32(head, uint32(len(b)))
	head = binary.LittleEndian.AppendUint32(head, uint32(len(b)))
	c.w.Write(head)
	c.w.Write(b)
}

// finish writes out what is buffered and returns the file's name.
func (c *capture) finish(t *testing.T) string {
	t.Helper()
	c.mu.Lock()
	defer c.mu.Unlock()
	if err := errors.Join(c.w.Flush(), c.f.Close()); err != nil {
		t.Fatal(err)
	}
	return c.f.Name()
}

// A tap passes on the frames between two Unix-stream ports and records them.
type tap struct {
	t    *testing.T
	c    *capture
	l    net.Listener
	done sync.WaitGroup
}

// wiretap listens on path for one connection and joins it with the listener at to.
func wiretap(t *testing.T, path, to string) *tap {
	t.Helper()
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	w := &tap{t: t, c: newCapture(t), l: l}
	t.Cleanup(func() { l.Close() })
	w.done.Go(func() {
		near, err := l.Accept()
		if err != nil {
			t.Errorf("wiretap: %v", err)
			return
		}
		defer near.Close()
		far, err := net.Dial("unix", to)
		if err != nil {
			t.Errorf("wiretap: %v", err)
			return
		}
		defer far.Close()
		var both sync.WaitGroup
		both.Go(func() { w.pass(far.(*net.UnixConn), near) })
		both.Go(func() { w.pass(near.(*net.UnixConn), far) })
		both.Wait()
	})
	return w
}

// pass copies frames, each behind its length, until one side closes; it then tells the other. That
// one may still have frames to give, which the other pass takes.
func (w *tap) pass(to *net.UnixConn, from net.Conn) {
	defer to.CloseWrite()
	r := bufio.NewReaderSize(from, 1<<16)
	for {
		head := make([]byte, 4)
		if _, err := io.ReadFull(r, head); err != nil {
			return
		}
		n := binary.BigEndian.Uint32(head)
		if n > 1<<17 {
			w.t.Errorf("wiretap: a frame of %d octets", n)
			return
		}
		frame := make([]byte, n)
		if _, err := io.ReadFull(r, frame); err != nil {
			return
		}
		w.c.frame(frame)
		if _, err := to.Write(append(head, frame...)); err != nil {
			return
		}
	}
}

// stop waits until the ends have closed and returns the name of the recording.
func (w *tap) stop() string {
	w.t.Helper()
	w.l.Close()
	w.done.Wait()
	return w.c.finish(w.t)
}

// checkIWARP has tshark decode a recording. It wants set-up frames and the operations of a ping
// in it, a good CRC in every FPDU, and nothing malformed. In a recording of a wire the checksums
// of IP and TCP must be right too; a kernel's interface shows frames before they are filled in.
func checkIWARP(t *testing.T, pcap string, wire bool) {
	t.Helper()
	if _, err := exec.LookPath("tshark"); err != nil {
		needtest.Lacking(t, "tshark", err)
	}
	// A segment whose checksum it finds bad is not joined with the next one.
	check := fmt.Sprint(wire)
	options := []string{"-o", "ip.check_checksum:" + check, "-o", "tcp.check_checksum:" + check, "-Y"}
	text := tshark(t, pcap, append(options, "iwarp_mpa || iwarp_ddp_rdmap", "-O",
		"iwarp_mpa,iwarp_ddp_rdmap")...)
	for _, want := range []string{
		"Request frame header", "Reply frame header", "Good CRC32",
		"OpCode: Write", "OpCode: Read Request", "OpCode: Read Response", "OpCode: Send",
	} {
		n := strings.Count(text, want)
		if n == 0 {
			t.Errorf("tshark finds no %q in %s", want, pcap)
		}
		t.Logf("%6d %s", n, want)
	}
	for _, bad := range []string{"Bad CRC32", "Malformed", "OpCode: Terminate"} {
		if n := strings.Count(text, bad); n != 0 {
			t.Errorf("tshark finds %q %d times in %s", bad, n, pcap)
		}
	}
	if fpdus, crcs := strings.Count(text, "FPDU\n"), strings.Count(text, "Good CRC32"); fpdus != crcs {
		t.Errorf("%d FPDUs but %d good CRCs", fpdus, crcs)
	}
	faults := "_ws.malformed || iwarp_mpa.bad_length"
	if wire {
		// Linux writes ffff where zero comes out (RFC 1071 has both mean the same); tshark wants zero.
		faults += " || ip.checksum.status == 0 || (tcp.checksum.status == 0 && tcp.checksum != 0xffff)"
	}
	if out := tshark(t, pcap, append(options, faults, "-V")...); out != "" {
		t.Errorf("tshark complains about:\n%s", out)
	}
}

// tshark reads a recording with args and returns what it prints.
func tshark(t *testing.T, pcap string, args ...string) string {
	t.Helper()
	var said bytes.Buffer
	cmd := exec.Command("tshark", append([]string{"-r", pcap,
		// These two take some Sends for their own.
		"--disable-heuristic", "smb_direct_iwarp", "--disable-heuristic", "rpcrdma_iwarp",
		// A port that is another protocol's means nothing here.
		"-o", "tcp.try_heuristic_first:true"}, args...)...)
	cmd.Stderr = &said
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%s: %v\n%s", cmd, err, said.String())
	}
	return string(out)
}
