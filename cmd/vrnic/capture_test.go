package main

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"

	"github.com/gopacket/gopacket/pcapgo"

	"github.com/vrnic/vrnic/internal/needtest"
)

// commentsOf are the comments of a file's packets; "" where there is none.
func commentsOf(t *testing.T, path string) (comments []string) {
	t.Helper()
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	r, err := pcapgo.NewNgReader(f, pcapgo.NgReaderOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for {
		_, _, opts, err := r.ReadPacketDataWithOptions()
		if err == io.EOF {
			return comments
		}
		if err != nil {
			t.Fatal(err)
		}
		comments = append(comments, strings.Join(opts.Comments, "\n"))
	}
}

// A capture of one queue pair has its packets, and says of each whose it is.
func TestCaptureQP(t *testing.T) {
	socket := pingDaemon(t)
	_, port := pingServer(t, socket, "-a", "10.1.0.2")
	client := startUp(t, nil, "ping", "-c", "--socket", socket, "-d", "left", "-a", "10.1.0.2", "-p",
		port, "-C", "100000000")
	var qpn int
	needtest.Eventually(t, "a connection", func() bool {
		_, stdout, _ := vrnic("show", "qp", "-d", "left", "--json", "--socket", socket)
		var rows []struct {
			QPN    int
			Remote *string
		}
		if json.Unmarshal([]byte(stdout), &rows) != nil || len(rows) != 1 || rows[0].Remote == nil {
			return false
		}
		qpn = rows[0].QPN
		return true
	})
	file := filepath.Join(t.TempDir(), "one.pcapng")
	const count = 50
	status, _, stderr := vrnic("capture", "--socket", socket, "-d", "left", "--qp", fmt.Sprint(qpn),
		"-c", fmt.Sprint(count), "-w", file)
	if status != 0 || !strings.Contains(stderr, fmt.Sprintf("%d packets captured, ", count)) {
		t.Fatalf("status %d, %s", status, stderr)
	}
	comments := commentsOf(t, file)
	who := fmt.Sprintf("QP %d of left (", qpn)
	pid := fmt.Sprintf("pid %d)", client.cmd.Process.Pid)
	const made = 2 // for Wireshark
	if len(comments) != made+count {
		t.Fatalf("%d packets, want %d", len(comments), made+count)
	}
	for i, c := range comments[made:] {
		if !strings.Contains(c, who) || !strings.Contains(c, pid) || !strings.Contains(c, "of right (") {
			t.Errorf("packet %d: %q, want it to be between %s%s and one of right", i, c, who, pid)
		}
	}
}

// With --wr comments say of which requests packets are: on TCP, SCTP and RoCE, between two devices
// and within one.
func TestCaptureRequests(t *testing.T) {
	for _, tt := range []struct {
		name, dev     string
		options, ping []string
	}{
		{"TCP", "left", nil, nil},
		{"within a device", "right", nil, nil},
		{"SCTP", "left", nil, []string{"--sctp"}},
		{"RoCE", "right", []string{"transport=roce"}, nil},
	} {
		t.Run(tt.name, func(t *testing.T) {
			socket := pingDaemon(t, tt.options...)
			wr := regexp.MustCompile(`, wr \d+( \d+)* of QP \d+ of ` + tt.dev)
			// What comes before it is known whose it is has no comment: on a busy machine all of it.
			needtest.Eventually(t, "packets of requests", func() bool {
				of := 0
				for _, c := range captureRequests(t, socket, tt.dev, tt.ping) {
					if wr.MatchString(c) {
						of++
					}
				}
				return of >= 50
			})
		})
	}
	status, _, stderr := vrnic("capture", "--socket", pingDaemon(t), "--wr", "--snaplen", "64", "-w",
		"-")
	if status != exitUsage || !strings.Contains(stderr, "leave out --snaplen") {
		t.Errorf("status %d, %s", status, stderr)
	}
}

// captureRequests are the comments of a ping's packets from a device to right.
func captureRequests(t *testing.T, socket, dev string, ping []string) []string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "wr.pcapng")
	p := startUp(t, nil, "capture", "--socket", socket, "-d", dev, "--wr", "-w", file)
	needtest.Eventually(t, "the file", func() bool {
		st, err := os.Stat(file)
		return err == nil && st.Size() > 0
	})
	server, port := pingServer(t, socket, "-a", "10.1.0.2", "-P")
	status, _, stderr := vrnic(append([]string{"ping", "-c", "--socket", socket, "-d", dev, "-a",
		"10.1.0.2", "-p", port, "-C", "300", "-S", "2000", "-V"}, ping...)...)
	if status != 0 {
		t.Fatalf("ping: status %d, %s", status, stderr)
	}
	p.stop()
	server.stop()
	return commentsOf(t, file)
}

// vrnic trace prints the conversation of a queue pair, as text or an object a line, and says in
// words what cannot be traced.
func TestTraceQP(t *testing.T) {
	socket := pingDaemon(t)
	_, port := pingServer(t, socket, "-a", "10.1.0.2")
	startUp(t, nil, "ping", "-c", "--socket", socket, "-d", "left", "-a", "10.1.0.2", "-p", port, "-C",
		"100000000")
	trace := func(args ...string) string {
		var qpn string
		needtest.Eventually(t, "a queue pair", func() bool {
			_, stdout, _ := vrnic("show", "qp", "-d", "left", "--json", "--socket", socket)
			var rows []struct{ QPN int }
			if json.Unmarshal([]byte(stdout), &rows) != nil || len(rows) != 1 {
				return false
			}
			qpn = fmt.Sprint(rows[0].QPN)
			return true
		})
		args = append(append([]string{"trace", "--socket", socket, "-d", "left", "--for", "100ms"},
			args...), qpn)
		status, stdout, stderr := vrnic(args...)
		if status != 0 || stderr != "" {
			t.Fatalf("status %d, %s", status, stderr)
		}
		return stdout
	}
	needtest.Eventually(t, "a Send on the wire, and its end", func() bool {
		text := trace()
		return strings.Contains(text, " post     SEND wr ") && strings.Contains(text, " out ") &&
			strings.Contains(text, " Send qn=0 ") && strings.Contains(text, ", success, ")
	})
	needtest.Eventually(t, "the request of a Send on the wire", func() bool {
		for line := range strings.Lines(trace("--json")) {
			var l struct {
				Event, Text string
				WRID        *uint64 `json:"wr_id"`
			}
			if err := json.Unmarshal([]byte(line), &l); err != nil {
				t.Fatalf("%v: %s", err, line)
			}
			if l.Event == "out" && strings.HasPrefix(l.Text, "Send ") && l.WRID != nil {
				return true
			}
		}
		return false
	})
	for args, want := range map[string]int{"": exitUsage, "1 2": exitUsage, "left": exitUsage,
		"--for 0s 1": exitUsage, "9999999": exitFailed, "-d middle 1": exitFailed} {
		status, _, stderr := vrnic(append([]string{"trace", "--socket", socket},
			strings.Fields(args)...)...)
		if status != want || strings.Count(stderr, "\n") != 1 {
			t.Errorf("%q: status %d, %s", args, status, stderr)
		}
	}
}

// A capture of all of a connection, until somebody interrupts it, has nothing in it that tshark
// warns of, but of revision 2 of MPA (RFC 6581), which it does not know. So has one of a connection
// within a device, which would be copied if nobody looked.
func TestCaptureOpensInTshark(t *testing.T) {
	tshark, err := exec.LookPath("tshark")
	if err != nil {
		needtest.Lacking(t, "tshark", err)
	}
	for _, tt := range []struct {
		name, dev, addr string
		options, ping   []string // of devices, and of the client
	}{
		{"two devices", "left", "10.1.0.2", nil, nil},
		{"one device", "right", "10.1.0.2", nil, nil},
		{"one device, IPv6", "right", "fd01::2", nil, nil},
		{"one device, SCTP", "right", "10.1.0.2", nil, []string{"--sctp"}},
		{"one device, RoCE", "right", "10.1.0.2", []string{"transport=roce"}, nil},
	} {
		t.Run(tt.name, func(t *testing.T) {
			opensInTshark(t, tshark, pingDaemon(t, tt.options...), tt.dev, tt.addr, tt.ping)
		})
	}
}

// tshark knows iWARP also on a connection that began before the capture, by two packets at its
// beginning that say that they are made up, and warns of nothing. Within a device, where it was
// copied until then, its messages are shown as the packets that they would have been.
func TestCaptureOfConnection(t *testing.T) {
	tshark, err := exec.LookPath("tshark")
	if err != nil {
		needtest.Lacking(t, "tshark", err)
	}
	for _, tt := range []struct{ name, dev, addr string }{
		{"two devices", "left", "10.1.0.2"},
		{"one device", "right", "10.1.0.2"},
		{"one device, IPv6", "right", "fd01::2"},
	} {
		t.Run(tt.name, func(t *testing.T) { laterInTshark(t, tshark, tt.dev, tt.addr) })
	}
}

// laterInTshark captures dev, from which a client has a connection to addr, of right.
func laterInTshark(t *testing.T, tshark, dev, addr string) {
	t.Helper()
	socket := pingDaemon(t)
	_, port := pingServer(t, socket, "-a", addr)
	startUp(t, nil, "ping", "-c", "--socket", socket, "-d", dev, "-a", addr, "-p", port, "-C",
		"100000000", "-S", "5000")
	file := filepath.Join(t.TempDir(), "late.pcapng")
	const count = 200
	needtest.Eventually(t, "a connection", func() bool {
		_, stdout, _ := vrnic("stat", "--json", "--socket", socket)
		var rows []struct {
			Dev   string
			QPN   int
			Sends int `json:"sends"`
		}
		_ = json.Unmarshal([]byte(stdout), &rows)
		for _, r := range rows {
			if r.QPN != 0 && r.Dev == dev && r.Sends > 10 {
				return true
			}
		}
		return false
	})
	status, _, stderr := vrnic("capture", "--socket", socket, "-d", dev, "-c", fmt.Sprint(count),
		"-w", file)
	if status != 0 || !strings.Contains(stderr, fmt.Sprintf("%d packets captured, ", count)) {
		t.Fatalf("status %d, %s", status, stderr)
	}
	made, named := 0, 0
	comments := commentsOf(t, file)
	for _, c := range comments {
		if strings.HasPrefix(c, "made up: ") {
			made++
		}
		if strings.Contains(c, " of "+dev+" (") && strings.Contains(c, " of right (") {
			named++
		}
	}
	// A stack looks for routers, by IPv6, three times in its first seconds: these are nobody's.
	if made != 2 || named < count-3 || len(comments) != count+made {
		t.Errorf("of %d packets %d are made up, and %d say whose they are", len(comments), made, named)
	}
	read := exec.Command(tshark, append([]string{"-r", file, "-Y", "iwarp_ddp_rdmap", "-T", "fields",
		"-e", "frame.number"}, tsharkOptions...)...)
	read.Env = append(os.Environ(), "HOME="+t.TempDir())
	out, err := read.Output()
	if n := strings.Count(string(out), "\n"); err != nil || n < count/3 {
		t.Errorf("tshark finds messages in %d of %d packets, %v: %.100s", n, count, err, out)
	}
	wantNoWarnings(t, tshark, file)
}

// tsharkOptions have tshark look for iWARP in all connections, and take it for nothing else.
var tsharkOptions = []string{"-o", "ip.check_checksum:true", "-o", "tcp.check_checksum:true",
	"-o", "tcp.try_heuristic_first:true", "--disable-heuristic", "smb_direct_iwarp",
	"--disable-heuristic", "rpcrdma_iwarp"}

// wantNoWarnings has tshark read a file, and warn of nothing but what it does not know.
func wantNoWarnings(t *testing.T, tshark, file string) {
	t.Helper()
	cmd := exec.Command(tshark, append([]string{"-r", file, "-q", "-z", "expert,warn", "-N", "n"},
		tsharkOptions...)...)
	cmd.Env = append(os.Environ(), "HOME="+t.TempDir())
	out, err := cmd.Output()
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(out)) {
		fields := strings.Fields(line)
		// A machine that stops for longer than a TCP timeout has TCP send again what was on its way.
		known := strings.Contains(line, "as required by RFC 5044") || strings.Contains(line, "D-SACK")
		if len(fields) > 3 && !strings.HasPrefix(line, " Frequency") && !known &&
			fields[0] != "Frequency" {
			t.Errorf("tshark: %s", line)
		}
	}
}

// opensInTshark captures dev, from which a client connects to addr, of right.
func opensInTshark(t *testing.T, tshark, socket, dev, addr string, ping []string) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "all.pcapng")
	p := startUp(t, nil, "capture", "--socket", socket, "-d", dev, "-w", file)
	needtest.Eventually(t, "the file", func() bool {
		st, err := os.Stat(file)
		return err == nil && st.Size() > 0
	})
	_, port := pingServer(t, socket, "-a", addr, "-P")
	status, stdout, stderr := vrnic(append([]string{"ping", "-c", "--socket", socket, "-d", dev, "-a",
		addr, "-p", port, "-C", "20", "-S", "20000", "-V"}, ping...)...)
	if status != 0 {
		t.Fatalf("ping: status %d, %s%s", status, stdout, stderr)
	}
	p.stop()
	if n := len(commentsOf(t, file)); n < 20*2*20000/1500 { // a Read and a Write in each round
		t.Errorf("%d packets are captured", n)
	}
	if !strings.Contains(p.stderr.String(), " packets captured, 0 dropped") {
		t.Errorf("in the end: %s", p.stderr)
	}
	wantNoWarnings(t, tshark, file)
	names := exec.Command(tshark, "-r", file, "-N", "n", "-Y", "tcp or sctp or udp.port == 4791", "-T",
		"fields", "-e", "ip.src_host", "-e", "ipv6.src_host")
	names.Env = append(os.Environ(), "HOME="+t.TempDir())
	out, err := names.Output()
	if err != nil || !strings.HasPrefix(strings.TrimLeft(string(out), "\t"), dev) {
		t.Errorf("the first host's name is none: %.40q, %v", out, err)
	}
}

// What is asked for wrongly, and what cannot be captured, is told in words; a daemon that goes ends
// a capture, which is a file all the same.
func TestCaptureFails(t *testing.T) {
	dir := socketDir(t)
	socket := filepath.Join(dir, "s")
	p := startUp(t, nil, "up", "--socket", socket, "--device", "host,host=127.0.0.9", "--device",
		"left,addr=10.1.0.1/24")
	p.ready()
	file := filepath.Join(dir, "x.pcapng")
	for args, want := range map[string]string{
		"-w FILE -d nobody":                                        "no device and no port nobody",
		"-w FILE -d host":                                          "are the kernel's",
		"-w FILE -d left --proto ip":                               "none of arp, icmp",
		"-w FILE -d left --peer x":                                 "--peer",
		"-w FILE -d left --files 3":                                "--files and --filesize",
		"-w - -d left --files 3 --filesize 1":                      "takes a file's name",
		"-w FILE -d left -s 0":                                     "--snaplen",
		"-w FILE -d left -c -1":                                    "--count",
		"-w FILE -d left --qp 4294967297":                          "--qp",
		"-w FILE -d left --files 2 --filesize 9223372036854775807": "--filesize",
		"-d left": "--write",
	} {
		args := strings.Fields(strings.ReplaceAll(args, "FILE", file))
		status, _, stderr := vrnic(append([]string{"capture", "--socket", socket}, args...)...)
		as := exitUsage
		if strings.Contains(want, "no device") || strings.Contains(want, "kernel") {
			as = exitFailed
		}
		if status != as || !strings.Contains(stderr, want) || strings.Count(stderr, "\n") != 1 {
			t.Errorf("%q: status %d, %s; want %d, %q", args, status, stderr, as, want)
		}
	}
	if _, err := os.Stat(file); err == nil {
		t.Error("a capture that failed has written a file")
	}
	c := startUp(t, nil, "capture", "--socket", socket, "-d", "left", "-w", file)
	needtest.Eventually(t, "the file", func() bool {
		st, err := os.Stat(file)
		return err == nil && st.Size() > 0
	})
	p.stop()
	if status, _ := c.end(); status != exitFailed || !strings.Contains(c.stderr.String(),
		"the daemon has gone") {
		t.Errorf("behind the daemon's end: status %d, %s", status, c.stderr)
	}
	commentsOf(t, file)
}

// What Wireshark asks a program that offers interfaces, in its order; the capture goes to a FIFO.
func TestExtcap(t *testing.T) {
	socket := pingDaemon(t)
	ask := func(want string, args ...string) {
		t.Helper()
		status, stdout, stderr := vrnic(append([]string{"extcap", "--socket", socket}, args...)...)
		if status != 0 || !strings.Contains(stdout, want) || stderr != "" {
			t.Errorf("%q: status %d, %q, %q; want %q", args, status, stdout, stderr, want)
		}
	}
	ask("\ninterface {value=vrnic-left}{display=vrnic: device left}\n", "--extcap-interfaces",
		"--extcap-version=4.0")
	ask("dlt {number=1}", "--extcap-interface", "vrnic-left", "--extcap-dlts")
	ask("", "--extcap-interface", "vrnic-left", "--extcap-config")
	if status, stdout, _ := vrnic("extcap", "--socket", socket+"-no", "--extcap-interfaces"); status !=
		0 || !strings.HasPrefix(stdout, "extcap {") || strings.Contains(stdout, "interface") {
		t.Errorf("without a daemon: status %d, %q", status, stdout)
	}
	fifo := filepath.Join(t.TempDir(), "fifo")
	if err := syscall.Mkfifo(fifo, 0o600); err != nil {
		t.Fatal(err)
	}
	p := startUp(t, nil, "extcap", "--socket", socket, "--extcap-interface", "vrnic-left", "--capture",
		"--fifo", fifo)
	f, err := os.Open(fifo)
	if err != nil {
		t.Fatal(err)
	}
	r, err := pcapgo.NewNgReader(f, pcapgo.NgReaderOptions{})
	if err != nil {
		t.Fatal(err)
	}
	_, port := pingServer(t, socket, "-a", "10.1.0.2")
	ping := startUp(t, nil, "ping", "-c", "--socket", socket, "-d", "left", "-a", "10.1.0.2", "-p",
		port, "-C", "100000000")
	for range 10 {
		if _, _, err := r.ReadPacketData(); err != nil {
			t.Fatal(err)
		}
	}
	f.Close() // as Wireshark ends it
	if status, _ := p.end(); status != 0 || p.stderr.Len() != 0 {
		t.Errorf("status %d, %s", status, p.stderr)
	}
	if err := ping.cmd.Process.Kill(); err != nil {
		t.Error(err)
	}
}
