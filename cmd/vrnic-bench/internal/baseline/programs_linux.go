package baseline

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/vrnic/vrnic/cmd/vrnic-bench/internal/rawtcp"
	"github.com/vrnic/vrnic/internal/netlab"
)

// A program is somebody else's benchmark: two processes over the kernel's TCP, which take a number
// of iterations and tell a mean.
type program struct {
	name string
	path string
	// client and server make the command lines; the server's ends with its client.
	client func(to netip.AddrPort, req Request, n int) []string
	server func(port uint16, req Request, n int) []string
	env    []string
	parse  func(out []byte, req Request, n int) (rawtcp.Result, error)
	does   []Kind
	sends  bool // not Writes

	here, there *netlab.NS
	addr        netip.Addr
	each        map[Request]time.Duration // what an iteration takes, by what was asked before
}

// Installed are the baselines of programs that are in $PATH, from the namespace here to addr in
// there. What does not work there is told to leftOut and not among them. (UCX finds its devices in
// /sys, which is not that of another namespace.)
func Installed(ctx context.Context, here, there *netlab.NS, addr netip.Addr,
	leftOut func(name string, err error)) (bs []Baseline) {
	for _, p := range []*program{fiPingpong(), ucxPerftest()} {
		path, err := exec.LookPath(p.path)
		if err != nil {
			continue
		}
		p.path, p.here, p.there, p.addr, p.each = path, here, there, addr, make(map[Request]time.Duration)
		if err := p.try(ctx); err != nil {
			leftOut(p.name, err)
			continue
		}
		bs = append(bs, p)
	}
	return bs
}

// try has the shortest of measurements.
func (p *program) try(ctx context.Context) error {
	for _, k := range p.does {
		if _, err := p.Measure(ctx, Request{Kind: k, Size: 64, Slots: 1, Time: time.Microsecond}); err !=
			nil {
			return err
		}
	}
	return nil
}

// fiPingpong is libfabric's fi_pingpong over its tcp provider: Sends there and back, whatever is
// asked.
func fiPingpong() *program {
	args := func(req Request, n int, more ...string) []string {
		return append([]string{"-p", "tcp", "-e", "msg", "-I", strconv.Itoa(n), "-S",
			strconv.Itoa(req.Size)}, more...)
	}
	return &program{
		name: "libfabric-tcp", path: "fi_pingpong", does: []Kind{RoundTrip}, sends: true,
		parse: parseFiPingpong,
		server: func(port uint16, req Request, n int) []string {
			return args(req, n, "-B", fmt.Sprint(port))
		},
		client: func(to netip.AddrPort, req Request, n int) []string {
			return args(req, n, "-P", fmt.Sprint(to.Port()), to.Addr().String())
		},
	}
}

// parseFiPingpong reads the table that the client prints:
//
//	bytes   #sent   #ack     total       time     MB/sec    usec/xfer   Mxfers/sec
//	64      100     =100     12k         0.00s      7.10       9.02       0.11
//
// A transfer is one way.
func parseFiPingpong(out []byte, req Request, n int) (r rawtcp.Result, err error) {
	for line := range strings.Lines(string(out)) {
		f := strings.Fields(line)
		if len(f) != 8 || f[0] == "bytes" {
			continue // the size is written in its own way: 64, 1k, 1m
		}
		us, err := strconv.ParseFloat(f[6], 64)
		if err != nil || us <= 0 {
			return r, fmt.Errorf("%q usec/xfer", f[6])
		}
		return roundTrips(us, req, n), nil
	}
	return r, errors.New("no line of figures")
}

// roundTrips is the result of n round trips whose half takes us microseconds on average.
func roundTrips(us float64, req Request, n int) rawtcp.Result {
	mean := time.Duration(2 * us * float64(time.Microsecond))
	return rawtcp.Result{Messages: uint64(n), Octets: uint64(n * req.Size),
		Elapsed: mean * time.Duration(n), Mean: mean}
}

// ucxPerftest is UCX over TCP: puts, as a Write is.
func ucxPerftest() *program {
	return &program{
		name: "ucx-tcp", path: "ucx_perftest", does: []Kind{RoundTrip, Bandwidth},
		env:    []string{"UCX_TLS=tcp,self"},
		server: func(port uint16, _ Request, _ int) []string { return []string{"-p", fmt.Sprint(port)} },
		parse:  parseUCX,
		client: func(to netip.AddrPort, req Request, n int) []string {
			test := map[Kind]string{RoundTrip: "ucp_put_lat", Bandwidth: "ucp_put_bw"}[req.Kind]
			return []string{to.Addr().String(), "-p", fmt.Sprint(to.Port()), "-t", test, "-s",
				strconv.Itoa(req.Size), "-n", strconv.Itoa(n), "-O", strconv.Itoa(max(req.Slots, 1)),
				"-f", "-v"}
		},
	}
}

// parseUCX reads the final line that -f -v asks for:
//
//	iterations,50.0_percentile_lat,avg_lat,overall_lat,avg_bw,overall_bw,avg_mr,overall_mr
//	20000,10.335,21.271,21.271,2.87,2.87,47013,47013
//
// Latencies are in microseconds, one way; a bandwidth is in MiB/s.
func parseUCX(out []byte, req Request, n int) (r rawtcp.Result, err error) {
	for line := range strings.Lines(string(out)) {
		f := strings.Split(strings.TrimSpace(line), ",")
		if len(f) != 8 || f[0] == "iterations" {
			continue
		}
		lat, err := strconv.ParseFloat(f[3], 64)
		if err != nil || lat <= 0 {
			return r, fmt.Errorf("latency %q", f[3])
		}
		if req.Kind == RoundTrip {
			return roundTrips(lat, req, n), nil
		}
		mib, err := strconv.ParseFloat(f[5], 64)
		if err != nil || mib <= 0 {
			return r, fmt.Errorf("bandwidth %q", f[5])
		}
		r = rawtcp.Result{Messages: uint64(n), Octets: uint64(n * req.Size)}
		r.Elapsed = time.Duration(float64(r.Octets) / (mib * (1 << 20)) * float64(time.Second))
		return r, nil
	}
	return r, errors.New("no line of figures")
}

func (p *program) Name() string   { return p.name }
func (p *program) Traits() Traits { return Traits{OnlyMean: true, OnlySends: p.sends} }
func (p *program) Does(k Kind) bool {
	return slices.Contains(p.does, k)
}

// firstIterations are those of the first run, which tells how many make a time; there are never
// fewer.
func firstIterations(req Request) int {
	const octets, most, least = 12 << 20, 200, 5
	return min(max(octets/req.Size, least), most)
}

// Measure implements Baseline.
func (p *program) Measure(ctx context.Context, req Request) (rawtcp.Result, error) {
	each, first := p.each[req], firstIterations(req)
	if each == 0 {
		r, err := p.run(ctx, req, first)
		if err != nil {
			return r, err
		}
		each = max(r.Elapsed/time.Duration(first), 1)
	}
	n := max(int(req.Time/each), first)
	r, err := p.run(ctx, req, n)
	if err == nil {
		p.each[req] = max(r.Elapsed/time.Duration(n), 1)
	}
	return r, err
}

// keepPort keeps a port at addr until release is called: nobody who asks for any port gets it, and
// nobody listens there, but who binds that one with SO_REUSEADDR, as servers do, can listen.
func keepPort(addr netip.Addr) (to netip.AddrPort, release func(), err error) {
	domain := unix.AF_INET
	if addr.Is6() {
		domain = unix.AF_INET6
	}
	fd, err := unix.Socket(domain, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return to, nil, os.NewSyscallError("socket", err)
	}
	defer func() {
		if err != nil {
			unix.Close(fd)
		}
	}()
	if err := unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_REUSEADDR, 1); err != nil {
		return to, nil, os.NewSyscallError("setsockopt", err)
	}
	var sa unix.Sockaddr = &unix.SockaddrInet6{Addr: addr.As16()}
	if addr.Is4() {
		sa = &unix.SockaddrInet4{Addr: addr.As4()}
	}
	if err := unix.Bind(fd, sa); err != nil {
		return to, nil, os.NewSyscallError("bind", err)
	}
	if sa, err = unix.Getsockname(fd); err != nil {
		return to, nil, os.NewSyscallError("getsockname", err)
	}
	port := 0
	switch sa := sa.(type) {
	case *unix.SockaddrInet4:
		port = sa.Port
	case *unix.SockaddrInet6:
		port = sa.Port
	}
	return netip.AddrPortFrom(addr, uint16(port)), func() { unix.Close(fd) }, nil
}

// runTimeout bounds a run beyond the time that was asked for. Both sides of fi_pingpong poll: where
// others want the processors, too, each round trip waits for its turn twice.
const runTimeout = 2 * time.Minute

// run runs server and client once. A client comes again until the server listens.
func (p *program) run(ctx context.Context, req Request, n int) (r rawtcp.Result, err error) {
	ctx, cancel := context.WithTimeout(ctx, req.Time+runTimeout)
	defer cancel()
	var to netip.AddrPort
	var release func()
	if err := p.there.Do(func() (err error) {
		to, release, err = keepPort(p.addr)
		return err
	}); err != nil {
		return r, err
	}
	defer release()
	server := exec.CommandContext(ctx, p.path, p.server(to.Port(), req, n)...)
	server.Env = append(server.Environ(), p.env...)
	var serverOut bytes.Buffer
	server.Stdout, server.Stderr = &serverOut, &serverOut
	if err := p.there.Start(server); err != nil {
		return r, err
	}
	var serverErr error // once ended is closed
	ended := make(chan struct{})
	go func() {
		serverErr = server.Wait()
		close(ended)
	}()
	defer func() {
		if err != nil {
			cancel()
			<-ended
		}
	}()
	for {
		client := exec.CommandContext(ctx, p.path, p.client(to, req, n)...)
		client.Env = append(client.Environ(), p.env...)
		var out, errs bytes.Buffer
		client.Stdout, client.Stderr = &out, &errs
		if err = p.here.Start(client); err != nil {
			return r, err
		}
		if err = client.Wait(); err == nil {
			if r, err = p.parse(out.Bytes(), req, n); err != nil {
				return r, fmt.Errorf("%s: %w in %q", p.path, err, out.Bytes())
			}
			select {
			case <-ended:
			case <-time.After(time.Second): // one that waits for more clients
				cancel()
				<-ended
			}
			return r, nil
		}
		select {
		case <-ended:
			return r, fmt.Errorf("%s: %w: %s; server: %v: %s", p.path, err, tail(errs.Bytes()), serverErr,
				tail(serverOut.Bytes()))
		case <-ctx.Done():
			return r, fmt.Errorf("%s: %w: %s", p.path, ctx.Err(), tail(errs.Bytes()))
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// tail is the end of what a program has said.
func tail(b []byte) []byte {
	const most = 300
	b = bytes.TrimSpace(b)
	return b[max(len(b)-most, 0):]
}
