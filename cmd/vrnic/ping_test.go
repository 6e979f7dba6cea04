package main

import (
	"bytes"
	"net/netip"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
)

func TestPingWrongUse(t *testing.T) {
	for _, args := range []string{
		"ping",
		"ping -s -c -a 10.0.0.1",
		"ping -c",
		"ping -c -a host.example",
		"ping -c -a 0.0.0.0",
		"ping -c -a ::",
		"ping -c -a 10.0.0.1 -p 0",
		"ping -c -a 10.0.0.1 -p 65536",
		"ping -s -p -1",
		"ping -s -p x",
		"ping -c -a 10.0.0.1 -S 31",
		"ping -c -a 10.0.0.1 -S 1048577",
		"ping -s -S 0",
		"ping -c -a 10.0.0.1 -C -1",
		"ping -c -a 10.0.0.1 --timeout -1s",
		"ping -c -P -a 10.0.0.1",
		"ping -c -a 10.0.0.1 --mpa 3",
		"ping -s --mpa 2",
		"ping -s --client-server",
		"ping -c -a 10.0.0.1 --crc maybe",
		"ping -c -a 10.0.0.1 --rtr write,walk",
		"ping -c -a 10.0.0.1 --mulpdu 127",
		"ping -s --roi",
		"ping -c -a 10.0.0.1 --roi --markers",
		"ping -s more",
		"ping -s --nonsense",
		"demo more",
		"demo --socket x",
		"demo --nonsense",
	} {
		var out, errs bytes.Buffer
		status := run(append([]string{"vrnic"}, strings.Fields(args)...), &out, &errs)
		if status != exitUsage || strings.Count(errs.String(), "\n") != 1 || out.Len() > 0 {
			t.Errorf("%s: exit %d, stdout %q, stderr %q; want %d and one line", args, status, &out, &errs,
				exitUsage)
		}
	}
}

func TestPingWithoutDaemon(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "none.sock")
	for _, args := range [][]string{{"-s"}, {"-c", "-a", "10.0.0.1", "-vV", "-C", "1"}} {
		var out, errs bytes.Buffer
		status := run(append([]string{"vrnic", "ping", "--socket", socket}, args...), &out, &errs)
		if status != exitFailed || !strings.Contains(errs.String(), "vrnic up") ||
			strings.Count(errs.String(), "\n") != 1 {
			t.Errorf("%q: exit %d, stderr %q", args, status, &errs)
		}
	}
}

func TestPingAtAnotherFile(t *testing.T) {
	var out, errs bytes.Buffer
	status := run([]string{"vrnic", "ping", "--socket", t.TempDir(), "-s"}, &out, &errs)
	if status != exitFailed || !strings.Contains(errs.String(), "not the socket of a vrnic daemon") {
		t.Errorf("exit %d, stderr %q", status, &errs)
	}
}

// pingDaemon is a daemon with two devices on one switch.
func pingDaemon(t *testing.T, options ...string) (socket string) {
	t.Helper()
	socket = filepath.Join(socketDir(t), "s")
	more := strings.Join(append([]string{""}, options...), ",")
	startUp(t, nil, "up", "--socket", socket, "--device",
		"left,addr=10.1.0.1/24,addr=fd01::1/64"+more, "--device",
		"right,addr=10.1.0.2/24,addr=fd01::2/64"+more).ready()
	return socket
}

// pingServer starts a server on right, a process of its own, and returns where it listens.
func pingServer(t *testing.T, socket string, args ...string) (p *upProcess, port string) {
	t.Helper()
	p = startUp(t, nil, append([]string{"ping", "-s", "--socket", socket, "-d", "right", "-p", "0"},
		args...)...)
	line := p.ready()
	at, err := netip.ParseAddrPort(strings.TrimPrefix(line, "listening on "))
	if err != nil {
		t.Fatalf("the server says %q", line)
	}
	return p, strconv.Itoa(int(at.Port()))
}

// ping -s and -c through a daemon's rings, over IPv4 and IPv6.
func TestPing(t *testing.T) {
	socket := pingDaemon(t)
	for _, tt := range []struct{ listen, to string }{
		{"10.1.0.2", "10.1.0.2"},
		{"fd01::2", "fd01::2"},
		{"", "10.1.0.2"}, // all addresses
	} {
		for _, size := range []string{"64", "65536"} {
			var at []string
			if tt.listen != "" {
				at = []string{"-a", tt.listen}
			}
			server, port := pingServer(t, socket, append(at, "-v")...)
			type end struct {
				status int
				rest   string
			}
			ended := make(chan end, 1)
			go func() { // all the time: it prints more than a pipe holds
				status, rest := server.end()
				ended <- end{status, rest}
			}()
			status, stdout, stderr := vrnic("ping", "-c", "--socket", socket, "-d", "left", "-a", tt.to,
				"-p", port, "-C", "5", "-S", size, "-vV")
			if status != 0 || strings.Count(stdout, "ping data: rdma-ping-") != 5 ||
				!strings.Contains(stdout, "5 rounds of "+size+" octets, data verified") {
				t.Errorf("%s, size %s: client: exit %d, %s\n%.300s", tt.to, size, status, stderr, stdout)
			}
			if e := <-ended; e.status != 0 || strings.Count(e.rest, "server ping data: rdma-ping-") != 5 ||
				!strings.Contains(e.rest, "disconnected after 5 rounds") {
				t.Errorf("%s, size %s: server: exit %d, %s\n%.300s", tt.to, size, e.status,
					server.stderr, e.rest)
			}
		}
	}
}

// What can be set of MPA, from the flags through the rings to the wire, and data behind it. What
// comes of it: TestMPAParams of vnic.
func TestPingMPA(t *testing.T) {
	socket := pingDaemon(t)
	server, port := pingServer(t, socket, "-P", "--crc", "off", "--markers")
	for _, args := range []string{
		"--mpa 1", "--crc off", "--crc required --markers", "--markers --mulpdu 1000", "--rtr read",
		"--rtr write,read --mulpdu 64768", "--client-server --crc off --markers",
	} {
		pingVerified(t, socket, port, "-d left "+args)
	}
	interruptServer(t, server)
}

// interruptServer ends a server with -P, which goes in good order.
func interruptServer(t *testing.T, server *upProcess) {
	t.Helper()
	server.cmd.Process.Signal(syscall.SIGINT)
	if status, rest := server.end(); status != 0 {
		t.Errorf("server: exit %d, %s%s", status, rest, server.stderr)
	}
}

// pingVerified runs a client in one way, which is to have its data back.
func pingVerified(t *testing.T, socket, port, args string) {
	t.Helper()
	at := []string{"ping", "-c", "--socket", socket, "-a", "10.1.0.2", "-p", port, "-C", "3", "-S",
		"65536", "-V"}
	if status, stdout, stderr := vrnic(append(at, strings.Fields(args)...)...); status != 0 ||
		!strings.Contains(stdout, "3 rounds of 65536 octets, data verified") {
		t.Errorf("ping -c %s: exit %d, %s%s", args, status, stdout, stderr)
	}
}

// The iWarp of 2002, over TCP and over SCTP, from the flag through the rings to a server that does
// not know which it will be: ROI-038. Between two QPs of one device it is there, too.
func TestPingROI(t *testing.T) {
	socket := pingDaemon(t)
	server, port := pingServer(t, socket, "-P")
	for _, args := range []string{
		"-d left --roi", "-d left --roi --sctp", "-d right --roi", "-d left", "-d left --roi --crc off",
	} {
		pingVerified(t, socket, port, args)
	}
	interruptServer(t, server)
}

// A server with -P outlives its clients and ends when interrupted.
func TestPingPersistent(t *testing.T) {
	socket := pingDaemon(t)
	server, port := pingServer(t, socket, "-P")
	for range 3 {
		if status, _, stderr := vrnic("ping", "-c", "--socket", socket, "-a", "10.1.0.2", "-p", port,
			"-C", "2", "-V"); status != 0 {
			t.Errorf("client: exit %d, %s", status, stderr)
		}
	}
	interruptServer(t, server)
}

func TestPingFails(t *testing.T) {
	socket := pingDaemon(t)
	for _, tt := range []struct{ args, want string }{
		{"-c -a 10.1.0.2 -p 9", "refused"},
		{"-c -a 10.9.9.9", "unreachable"},
		{"-c -a fd09::9", "unreachable"},
		{"-c -a 10.1.0.2 -d middle", "\"left\" \"right\""},
		{"-s -a 10.1.0.77 -d right", "10.1.0.77"},
		{"-c -a 10.1.0.99 -C 1", "10.1.0.99"}, // nobody has that address
	} {
		status, stdout, stderr := vrnic(append([]string{"ping", "--socket", socket},
			strings.Fields(tt.args)...)...)
		if status != exitFailed || stdout != "" || !strings.Contains(stderr, tt.want) ||
			strings.Count(stderr, "\n") != 1 {
			t.Errorf("ping %s: exit %d, stdout %q, stderr %q; want %q in one line", tt.args, status, stdout,
				stderr, tt.want)
		}
		t.Logf("ping %s: %s", tt.args, stderr)
	}
}
