package verbs

import (
	"bytes"
	"encoding/binary"
	"errors"
	"hash/crc32"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	recording "github.com/vrnic/vrnic/vnic/record"
)

// What a recording is of, and the programs that run meanwhile.
var recordings = []struct {
	name  string
	roce  bool
	run   func(t *testing.T, top *topology)
	kinds []string // of the engines that are looked at
}{
	{"rping", false, jobOf(job{server: "rping -s -a ADDR -p PORT -C 5", client: "rping -c -a ADDR " +
		"-p PORT -C 5"}), []string{recording.StartUp}},
	{"rping over SCTP", false, jobOf(job{server: "rping -s -a ADDR -p PORT -C 5", client: "rping -c " +
		"-a ADDR -p PORT -C 5", env: []string{"VRNIC_CM=transport=sctp"}}), []string{
		recording.SCTPEndpoint, recording.DDPStreams, recording.DDPSession}},
	{"ucmatose over SCTP", false, jobOf(job{server: "ucmatose -b ADDR -p PORT -c 10",
		client: "ucmatose -s ADDR -p PORT -c 10", env: []string{"VRNIC_CM=transport=sctp"}}),
		[]string{recording.DDPStreams, recording.DDPSession}},
	{"rping on RoCE", true, jobOf(job{server: "rping -s -a ADDR -p PORT -C 5", client: "rping -c " +
		"-a ADDR -p PORT -C 5"}), []string{recording.ConnManager}},
	{"ucmatose on RoCE", true, jobOf(job{server: "ucmatose -b ADDR -p PORT -c 10",
		client: "ucmatose -s ADDR -p PORT -c 10"}), []string{recording.ConnManager}},
	{"ibv_ud_pingpong", true, func(t *testing.T, top *topology) {
		top.runNumbered(t, &numbered{words: "ibv_ud_pingpong -p PORT -g 1 -n 50"})
	}, []string{recording.DatagramQP}},
}

func jobOf(j job) func(*testing.T, *topology) {
	return func(t *testing.T, top *topology) { top.run(t, &j, 0) }
}

// What programs do, and what sets up their connections, is played again without a difference. An
// octet of what an engine has sent that is another in the recording is found, and told with whose
// it is.
func TestRecord(t *testing.T) {
	need(t, "rping", "ucmatose", "ibv_ud_pingpong")
	for _, tt := range recordings {
		t.Run(tt.name, func(t *testing.T) {
			devices := twoDevices
			if tt.roce {
				devices = roceTopologies[1].make
			}
			top := devices(t)
			d := top.server.in(t).daemon
			b := d.recorded(t, func() { tt.run(t, top) })
			out, ok := replay(t, b)
			if !ok || !strings.HasSuffix(out, ": no difference\n") {
				t.Fatalf("it differs: %s", out)
			}
			for _, kind := range tt.kinds {
				bad, whose, calls := spoiled(t, b, kind)
				if calls < 5 {
					t.Errorf("%d calls of engines of kind %s", calls, kind)
				}
				out, ok = replay(t, bad)
				if ok || strings.Count(out, "difference: ") != 1 ||
					!strings.Contains(out, "difference: "+whose.String()+", call ") ||
					!strings.Contains(out, "octet ") {
					t.Errorf("an octet of %v is another: %s", whose, out)
				}
			}
		})
	}
}

// recorded is the recording of all devices of d while f runs.
func (d *daemon) recorded(t *testing.T, f func()) []byte {
	t.Helper()
	end := d.record(t)
	f()
	return end()
}

// record begins a recording of all devices of d; end gives it.
func (d *daemon) record(t *testing.T) (end func() []byte) {
	t.Helper()
	conn, err := d.client.Record(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	var b bytes.Buffer
	done := make(chan error, 1)
	go func() {
		_, _, err := recording.Copy(&b, conn, 1<<30)
		done <- err
	}()
	return func() []byte {
		t.Helper()
		defer conn.Close()
		if err := conn.CloseWrite(); err != nil {
			t.Fatal(err)
		}
		if err := <-done; err != nil {
			t.Fatal(err)
		}
		return b.Bytes()
	}
}

// replay is what `vrnic replay` says of b; ok: its exit status is 0.
func replay(t *testing.T, b []byte) (out string, ok bool) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "rec")
	if err := os.WriteFile(path, b, 0o600); err != nil {
		t.Fatal(err)
	}
	said, err := exec.Command(program, "replay", path).CombinedOutput()
	exit := (*exec.ExitError)(nil)
	if err != nil && (!errors.As(err, &exit) || exit.ExitCode() != 1) {
		t.Fatalf("%v: %s", err, said)
	}
	return string(said), err == nil
}

// spoiled is b with another octet in something that an engine of that kind has sent, whose it is,
// and how many calls there are of such.
func spoiled(t *testing.T, b []byte, kind string) (bad []byte, whose *recording.Subject,
	calls int) {
	t.Helper()
	in, err := recording.NewReader(bytes.NewReader(b))
	if err != nil {
		t.Fatal(err)
	}
	at := bytes.IndexByte(b, '\n') + 1
	frame := func() (content []byte) {
		n, k := binary.Uvarint(b[at:])
		content = b[at+k:][:n]
		at += k + int(n) + 4
		return content
	}
	frame() // which NewReader has read
	for {
		rec, err := in.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		content := frame()
		if rec.Subject == nil || rec.Subject.Kind != kind || rec.Opened {
			continue
		}
		calls++
		for i := range rec.Steps {
			s := &rec.Steps[i]
			name := s.Op.String()
			if bad != nil || name != "returns" && name != "sends" || len(s.Octets) < 8 {
				continue
			}
			head := s.Octets[:min(16, len(s.Octets))]
			found := bytes.Index(content, head)
			if found < 0 {
				continue
			}
			bad, whose = bytes.Clone(b), rec.Subject
			c := bad[at-4-len(content):]
			c[found+min(9, len(head)-1)] ^= 4
			binary.LittleEndian.PutUint32(c[len(content):], crc32.Checksum(c[:len(content)],
				crc32.MakeTable(crc32.Castagnoli)))
		}
	}
	if bad == nil {
		t.Fatalf("an engine of kind %s has sent nothing", kind)
	}
	return bad, whose, calls
}
