package capture_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/gopacket/gopacket/layers"
	"github.com/gopacket/gopacket/pcapgo"

	"github.com/vrnic/vrnic/cmd/vrnic/internal/capture"
	"github.com/vrnic/vrnic/cmd/vrnic/internal/onlookers"
	"github.com/vrnic/vrnic/netstack/ethswitch"
	"github.com/vrnic/vrnic/netstack/frame"
	"github.com/vrnic/vrnic/netstack/frame/frametest"
	"github.com/vrnic/vrnic/rdma"
)

// A sink is a port that takes everything.
type sink struct{}

func (sink) Transmit(*frame.Frame, *ethswitch.Delivery) bool { return true }
func (sink) Offloads(frame.GSO) bool                         { return true }
func (sink) String() string                                  { return "sink" }

// A bench is a switch with two ports, of which a capture takes the first.
type bench struct {
	set  onlookers.Set
	at   *ethswitch.Attachment
	conn *net.UnixConn
	done chan struct{} // closed by the capture's end
	what *capture.Requests
}

func (b *bench) observe(r *capture.Requests) (stop func()) {
	b.what = r
	return func() { b.what = nil }
}

func newBench(t *testing.T, kind string, snap int) *bench {
	t.Helper()
	sw := ethswitch.New(ethswitch.Config{})
	b := &bench{done: make(chan struct{})}
	for _, name := range []string{"a", "b"} {
		at, err := sw.Attach(ethswitch.PortOptions{Name: name, Kind: kind}, sink{})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(at.Detach)
		if name == "a" {
			b.at = at
		}
	}
	pair, err := syscall.Socketpair(syscall.AF_UNIX, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	var ends [2]*net.UnixConn
	for i, fd := range pair {
		f := os.NewFile(uintptr(fd), "")
		c, err := net.FileConn(f)
		if err != nil {
			t.Fatal(err)
		}
		f.Close()
		ends[i] = c.(*net.UnixConn)
	}
	b.conn = ends[1]
	if err := capture.Begin(&b.set, &capture.Config{Switch: sw, Snap: snap, Conn: ends[0],
		Ports: []capture.Port{{Name: "a", Kind: kind}}, Requests: b.observe,
		Done: func() { close(b.done) }}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		b.conn.Close()
		if err := b.set.Close(); err != nil {
			t.Error(err)
		}
		<-b.done
	})
	return b
}

func (b *bench) send(t *testing.T, octets []byte, off frame.Offload) {
	t.Helper()
	f := frame.New(octets, off)
	defer f.Release()
	if err := b.at.Input(f); err != nil {
		t.Fatal(err)
	}
}

// What goes through a port comes out of the capture: whole, cut to the length that is wanted, a
// super-frame as the packets that it stands for, and nothing more when the capture is to end.
func TestCapture(t *testing.T) {
	const snap = 100
	for kind, in := range map[string]bool{"stack": false, "tap": true} {
		b := newBench(t, kind, snap)
		r, err := capture.NewReader(b.conn)
		if err != nil || len(r.Ports) != 1 || r.Ports[0] != (capture.Port{Name: "a", Kind: kind}) {
			t.Fatalf("%+v, %v", r, err)
		}
		short := frametest.Ethernet(frametest.MAC(1), frametest.MAC(2), 3)
		before := time.Now()
		b.send(t, short, frame.Offload{})
		p, err := r.Next()
		if err != nil || !bytes.Equal(p.Data, short) || p.Len != len(short) || p.In != in ||
			p.Port != 0 || p.Time.Before(before) || p.Time.After(time.Now()) {
			t.Errorf("%s: %+v, %v", kind, p, err)
		}
		super, off := frametest.Super(false, 3000, 1460)
		b.send(t, super, off)
		for i, n := range []int{1514, 1514, 134} {
			p, err := r.Next()
			if err != nil || len(p.Data) != snap || p.Len != n {
				t.Errorf("%s: part %d: %d octets of %d, %v", kind, i, len(p.Data), p.Len, err)
			}
		}
		b.send(t, append(short, make([]byte, 1000)...), frame.Offload{})
		if p, err := r.Next(); err != nil || len(p.Data) != snap || p.Len != len(short)+1000 {
			t.Errorf("%s: %d octets of %d, %v", kind, len(p.Data), p.Len, err)
		}
		b.send(t, short, frame.Offload{})
		if err := b.conn.CloseWrite(); err != nil {
			t.Fatal(err)
		}
		if p, err := r.Next(); err != nil || p.Len != len(short) {
			t.Errorf("%s: what was seen before the end: %v, %v", kind, p, err)
		}
		if _, err := r.Next(); err != io.EOF || r.Dropped != 0 {
			t.Errorf("%s: the end: %v, %d dropped", kind, err, r.Dropped)
		}
		<-b.done
		b.send(t, short, frame.Offload{}) // which nobody sees
	}
}

// What happens to requests is told in its place among the packets, and no more behind the end.
func TestEvents(t *testing.T) {
	b := newBench(t, "tap", 100)
	r, err := capture.NewReader(b.conn)
	if err != nil {
		t.Fatal(err)
	}
	at, what := time.Unix(1000, 500), b.what
	short := frametest.Ethernet(frametest.MAC(1), frametest.MAC(2), 3)
	wr := &rdma.SendWR{ID: 7, Op: rdma.OpWrite, SGEs: []rdma.SGE{{Length: 5}, {Length: 6}}}
	b.send(t, short, frame.Offload{})
	what.Taken(at, wr, 3)
	b.send(t, short, frame.Offload{})
	what.Completed(at, wr, rdma.WCFlush, time.Second)
	what.Received(at, &rdma.WC{ID: 8, ByteLen: 9, Flags: rdma.WCWithImm})
	what.Taken(at, &rdma.SendWR{ID: 9, Op: rdma.OpSend, Flags: rdma.Inline,
		Inline: make([]byte, 4)}, 0)
	for i, want := range []*capture.Event{nil,
		{Kind: capture.Post, WRID: 7, Op: "WRITE", Length: 11, Behind: 3}, nil,
		{Kind: capture.Complete, WRID: 7, Op: "WRITE", Length: 11, Status: rdma.WCFlush.String(),
			Took: time.Second},
		{Kind: capture.Receive, WRID: 8, Op: "RECV_WITH_IMM", Length: 9, Status: "success"},
		{Kind: capture.Post, WRID: 9, Op: "SEND", Length: 4}} {
		p, err := r.Next()
		if err != nil {
			t.Fatal(err)
		}
		if (p.Event == nil) != (want == nil) ||
			want != nil && (*p.Event != *want || !p.Time.Equal(at)) {
			t.Errorf("%d: %+v of %v, want %+v", i, p.Event, p.Time, want)
		}
	}
	if err := b.conn.CloseWrite(); err != nil {
		t.Fatal(err)
	}
	if _, err := r.Next(); err != io.EOF {
		t.Error(err)
	}
	<-b.done
	what.Taken(at, wr, 0) // which nobody hears
}

// Nobody who sends waits for who does not look: what has no room is counted, and nothing is lost
// without that.
func TestDropped(t *testing.T) {
	b := newBench(t, "tap", frame.MaxLen)
	whole := append(frametest.Ethernet(frametest.MAC(1), frametest.MAC(2), 3), make([]byte, 1400)...)
	const sent = 20000
	for range sent {
		b.send(t, whole, frame.Offload{})
	}
	if err := b.conn.CloseWrite(); err != nil {
		t.Fatal(err)
	}
	r, err := capture.NewReader(b.conn)
	if err != nil {
		t.Fatal(err)
	}
	n := uint64(0)
	for {
		if _, err = r.Next(); err != nil {
			break
		}
		n++
	}
	if err != io.EOF || n == 0 || r.Dropped == 0 || n+r.Dropped != sent {
		t.Errorf("%d packets, %d dropped, %v; %d were sent", n, r.Dropped, err, sent)
	}
}

// A capture ends with the daemon.
func TestSetEnds(t *testing.T) {
	b := newBench(t, "tap", 100)
	r, err := capture.NewReader(b.conn)
	if err != nil {
		t.Fatal(err)
	}
	if err := b.set.Close(); err != nil {
		t.Fatal(err)
	}
	<-b.done
	if _, err := r.Next(); err == nil || !strings.Contains(err.Error(), "daemon has gone") {
		t.Errorf("behind the daemon's end: %v", err)
	}
}

// What is no capture is refused, wherever it is broken.
func TestBrokenStream(t *testing.T) {
	head := func(kind byte, length, original uint32, port uint16, data string) []byte {
		b := binary.LittleEndian.AppendUint32(nil, length)
		b = binary.LittleEndian.AppendUint32(b, original)
		b = append(b, make([]byte, 16)...)
		b = append(b, kind, 0)
		return append(binary.LittleEndian.AppendUint16(b, port), data...)
	}
	ports := head(1, 14, 0, 0, `[{"name":"a"}]`)
	for name, tt := range map[string]struct {
		stream []byte
		first  bool // the first call fails
	}{
		"nothing":           {nil, true},
		"no ports":          {head(2, 0, 0, 0, ""), true},
		"ports that are no": {head(1, 3, 0, 0, "[{]"), true},
		"half a head":       {append(ports, 1, 2, 3), false},
		"half a packet":     {append(ports, head(2, 9, 9, 0, "half")...), false},
		"too long":          {append(ports, head(2, 1<<18, 1<<18, 0, "")...), false},
		"longer than it is": {append(ports, head(2, 4, 3, 0, "four")...), false},
		"another port":      {append(ports, head(2, 4, 4, 1, "four")...), false},
		"another kind":      {append(ports, head(9, 0, 0, 0, "")...), false},
	} {
		r, err := capture.NewReader(bytes.NewReader(tt.stream))
		if tt.first != (err != nil) {
			t.Errorf("%s: %v", name, err)
		}
		if err == nil {
			if _, err := r.Next(); err == nil || errors.Is(err, io.EOF) {
				t.Errorf("%s: %v", name, err)
			}
		}
	}
}

// wantFile reads a file with another reader than who wrote it uses for it.
func wantFile(t *testing.T, name string, b []byte, comments ...string) (dropped uint64) {
	t.Helper()
	r, err := pcapgo.NewNgReader(bytes.NewReader(b), pcapgo.NgReaderOptions{})
	if err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	for i, want := range comments {
		data, ci, opts, err := r.ReadPacketDataWithOptions()
		if err != nil || string(data) != fmt.Sprint("packet ", want) || ci.Length != len(data)+1 ||
			len(opts.Comments) != 1 || opts.Comments[0] != want || opts.Flags == nil ||
			opts.Flags.Direction != pcapgo.NgEpbFlagDirectionInbound {
			t.Errorf("%s: packet %d: %q, %+v, %+v, %v", name, i, data, ci, opts, err)
		}
	}
	if _, _, err := r.ReadPacketData(); err != io.EOF {
		t.Errorf("%s: behind the last packet: %v", name, err)
	}
	is, err := r.Interface(0)
	if err != nil || is.Name != "a" || is.LinkType != layers.LinkTypeEthernet ||
		is.Filter != "proto tcp" || r.NInterfaces() != 2 {
		t.Errorf("%s: %+v, %v", name, is, err)
	}
	return is.Statistics.PacketsDropped
}

var section = &capture.Section{Version: "v1", Filter: "proto tcp", Snap: 100,
	Ports: []capture.Port{{Name: "a", Kind: "stack"}, {Name: "b", Kind: "tap"}},
	Names: []capture.Name{{Addr: here, Name: "vrnic0"}, {Addr: here6, Name: "vrnic0"}}}

func put(t *testing.T, f *capture.Files, comment string) {
	t.Helper()
	data := []byte("packet " + comment)
	if err := f.Packet(&capture.Packet{Time: time.Unix(1, 2), Data: data, Len: len(data) + 1,
		In: true}, []string{comment}); err != nil {
		t.Fatal(err)
	}
}

// A stream has what was flushed, and in the end what was dropped.
func TestStream(t *testing.T) {
	var out bytes.Buffer
	f, err := capture.NewStream(&out, section)
	if err != nil {
		t.Fatal(err)
	}
	put(t, f, "one")
	before := out.Len()
	if err := f.Flush(); err != nil || out.Len() == before {
		t.Errorf("nothing is flushed: %v", err)
	}
	put(t, f, "two")
	if err := f.Close(77); err != nil {
		t.Fatal(err)
	}
	if n := wantFile(t, "the stream", out.Bytes(), "one", "two"); n != 77 {
		t.Errorf("%d dropped", n)
	}
	// 10.77.0.2 and fd77::2, each with its name.
	for _, record := range []string{"\x01\x00\x0b\x00\x0a\x4d\x00\x02vrnic0\x00\x00",
		"\x02\x00\x17\x00" + string(here6.AsSlice()) + "vrnic0\x00\x00"} {
		if !strings.Contains(out.String(), record) {
			t.Errorf("no record %x", record)
		}
	}
}

// The statistics at a file's end are of packets that went through a port: those that were captured
// and those that were dropped, and none that was made up.
func TestStatistics(t *testing.T) {
	var out bytes.Buffer
	f, err := capture.NewStream(&out, section)
	if err != nil {
		t.Fatal(err)
	}
	for _, madeUp := range []bool{true, true, false, false, false} {
		if err := f.Packet(&capture.Packet{Time: time.Unix(1, 2), Data: []byte("octets"), Len: 6,
			MadeUp: madeUp}, nil); err != nil {
			t.Fatal(err)
		}
	}
	if err := f.Close(4); err != nil {
		t.Fatal(err)
	}
	r, err := pcapgo.NewNgReader(&out, pcapgo.NgReaderOptions{})
	if err != nil {
		t.Fatal(err)
	}
	n := 0
	for ; err == nil; n++ {
		_, _, err = r.ReadPacketData()
	}
	is, err := r.Interface(0)
	if err != nil || n-1 != 5 || is.Statistics.PacketsReceived != 7 ||
		is.Statistics.PacketsDropped != 4 {
		t.Errorf("of %d packets, want 5: %+v, %v; want 3 and 4 dropped", n-1, is.Statistics, err)
	}
}

// A file is for the user only, whatever was there; what is no file stays as it is.
func TestFileOfUser(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "x_00001")
	for _, keep := range []int{0, 1} {
		path := map[int]string{0: file, 1: filepath.Join(dir, "x")}[keep]
		if err := os.WriteFile(file, bytes.Repeat([]byte("x"), 10000), 0o644); err != nil {
			t.Fatal(err)
		}
		if err := os.Chmod(file, 0o644); err != nil { // the umask
			t.Fatal(err)
		}
		f, err := capture.NewFiles(path, keep, 1000, section)
		if err != nil {
			t.Fatal(err)
		}
		if fi, err := os.Stat(file); err != nil || fi.Mode().Perm() != 0o600 || fi.Size() > 1000 {
			t.Errorf("keep %d: it is %v, %v", keep, fi.Mode(), err)
		}
		if err := f.Close(0); err != nil {
			t.Error(err)
		}
	}
	fifo := filepath.Join(dir, "fifo")
	if err := syscall.Mkfifo(fifo, 0o644); err != nil {
		t.Fatal(err)
	}
	r, err := os.OpenFile(fifo, os.O_RDWR, 0) // does not wait for who writes
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	if err := r.Chmod(0o644); err != nil {
		t.Fatal(err)
	}
	f, err := capture.NewFiles(fifo, 0, 0, section)
	if err != nil {
		t.Fatal(err)
	}
	if fi, err := r.Stat(); err != nil || fi.Mode().Perm() != 0o644 {
		t.Errorf("a FIFO is %v, %v", fi.Mode(), err)
	}
	if err := f.Close(0); err != nil {
		t.Error(err)
	}
}

// Of a ring the last files stay, each of them a whole one, for the user only.
func TestRing(t *testing.T) {
	dir := t.TempDir()
	f, err := capture.NewFiles(filepath.Join(dir, "x.pcapng"), 2, 1, section)
	if err != nil {
		t.Fatal(err)
	}
	for i := range 5 {
		put(t, f, fmt.Sprint(i))
	}
	if err := f.Close(3); err != nil {
		t.Fatal(err)
	}
	entries, err := os.ReadDir(dir)
	if err != nil || len(entries) != 2 {
		t.Fatalf("%v, %v", entries, err)
	}
	for i, e := range entries {
		want := fmt.Sprintf("x_%05d.pcapng", i+5)
		fi, err := e.Info()
		if err != nil || e.Name() != want || fi.Mode().Perm() != 0o600 {
			t.Errorf("%v, %v; want %s", fi, err, want)
		}
		b, err := os.ReadFile(filepath.Join(dir, e.Name()))
		if err != nil {
			t.Fatal(err)
		}
		if n := wantFile(t, e.Name(), b, fmt.Sprint(i+3)); n != uint64(3*i) {
			t.Errorf("%s: %d dropped", e.Name(), n)
		}
	}
	if _, err := capture.NewFiles(filepath.Join(dir, "no", "x"), 0, 0, section); err == nil {
		t.Error("a file in no directory is written")
	}
}
