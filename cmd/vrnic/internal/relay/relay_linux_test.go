package relay

import (
	"context"
	"errors"
	"net/netip"
	"os"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/vrnic/vrnic/internal/needtest"
	"github.com/vrnic/vrnic/shm/osmem"
	"github.com/vrnic/vrnic/shm/rpc"
	"github.com/vrnic/vrnic/shm/shmtest"
)

// A sent is a datagram of a port's.
type sent struct {
	to   netip.AddrPort
	data string
}

// A fakePort notes what is sent.
type fakePort struct {
	sent    chan sent
	receive func(netip.AddrPort, []byte)
	closed  chan struct{}
}

func (p *fakePort) Send(_ context.Context, to netip.AddrPort, data []byte) {
	p.sent <- sent{to, string(data)}
}

func (p *fakePort) Close() error {
	close(p.closed)
	return nil
}

// start makes a Relay, and the program's end of it.
func start(t *testing.T) (r *Relay, p *fakePort, program *os.File, freed *atomic.Int32) {
	t.Helper()
	freed = new(atomic.Int32)
	run := &goroutines{}
	packets, fd, err := osmem.NewPackets(run, func() { freed.Add(1) })
	if err != nil {
		t.Fatal(err)
	}
	program = os.NewFile(uintptr(fd), "program")
	t.Cleanup(func() { program.Close() })
	p = &fakePort{sent: make(chan sent, 10), closed: make(chan struct{})}
	r, err = Start(run, packets, func(receive func(netip.AddrPort, []byte)) (Port, error) {
		p.receive = receive
		return p, nil
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(r.Close)
	return r, p, program, freed
}

func write(t *testing.T, f *os.File, b []byte) {
	t.Helper()
	if _, err := f.Write(b); err != nil {
		t.Fatal(err)
	}
}

// Datagrams go both ways, with the address in front; packets that are no datagram are passed over.
func TestBothWays(t *testing.T) {
	_, p, program, _ := start(t)
	for _, a := range []string{"10.0.0.2:7", "[fd00::2]:65535"} {
		at := netip.MustParseAddrPort(a)
		for n := range len(rpc.MakeSockAddr(at).Append(nil)) {
			if n > 0 {
				write(t, program, rpc.MakeSockAddr(at).Append(nil)[:n])
			}
		}
		write(t, program, rpc.SockAddr{Family: 99, Port: 1}.Append(nil))
		write(t, program, rpc.MakeSockAddr(netip.AddrPortFrom(at.Addr(), 0)).Append(nil))
		write(t, program, append(rpc.MakeSockAddr(at).Append(nil), "hello"...))
		write(t, program, rpc.MakeSockAddr(at).Append(nil))
		for _, want := range []string{"hello", ""} {
			if got := <-p.sent; got != (sent{at, want}) {
				t.Errorf("%v, want %q to %v", got, want, at)
			}
		}
		p.receive(at, []byte("back"))
		b := make([]byte, 100)
		n, err := program.Read(b)
		if err != nil {
			t.Fatal(err)
		}
		from, data, ok := rpc.CutSockAddr(b[:n])
		if !ok || from.AddrPort() != at || string(data) != "back" {
			t.Errorf("%v %q %v", from, data, ok)
		}
	}
}

// A program that does not read loses what comes, and whoever brings it does not wait.
func TestFull(t *testing.T) {
	_, p, _, _ := start(t)
	at := netip.MustParseAddrPort("10.0.0.2:7")
	for range 10_000 {
		p.receive(at, make([]byte, 1000))
	}
}

// The port is closed, and the quota given back, when the program closes its end, or Close is
// called.
func TestEnd(t *testing.T) {
	r, p, program, freed := start(t)
	program.Close()
	<-p.closed
	r.Close()
	r.Close()
	needtest.Eventually(t, "the quota is given back", func() bool { return freed.Load() == 1 })
	r, p, _, freed = start(t)
	r.Close()
	<-p.closed
	p.receive(netip.MustParseAddrPort("10.0.0.2:7"), []byte("late"))
	needtest.Eventually(t, "the quota is given back", func() bool { return freed.Load() == 1 })
}

// A program can send descriptors beside its packets, and have the kernel take for ever to close
// them, where they are received and where they are not: the port is free all the same.
func TestDescriptorThatHangs(t *testing.T) {
	for _, packets := range []int{1, 2} {
		r, p, program, freed := start(t)
		fd, release := shmtest.SlowSocket(t)
		for range packets {
			if err := syscall.Sendmsg(int(program.Fd()), []byte("packet"), syscall.UnixRights(fd), nil,
				0); err != nil {
				t.Fatal(err)
			}
		}
		go osmem.CloseFD(fd) // unless it is the last
		r.Close()
		<-p.closed
		release()
		needtest.Eventually(t, "the quota is given back", func() bool { return freed.Load() == 1 })
	}
}

// goroutines are a session's.
type goroutines struct{}

func (*goroutines) Go(f func())    { go f() }
func (*goroutines) Later(f func()) { go f() }

// A port that cannot be opened leaves the packets with the caller.
func TestNoPort(t *testing.T) {
	packets, fd, err := osmem.NewPackets(&goroutines{}, func() {})
	if err != nil {
		t.Fatal(err)
	}
	defer osmem.CloseFD(fd)
	defer packets.Close()
	_, err = Start(&goroutines{}, packets, func(func(netip.AddrPort, []byte)) (Port, error) {
		return nil, syscall.EADDRINUSE
	})
	if !errors.Is(err, syscall.EADDRINUSE) {
		t.Error(err)
	}
	if !packets.Send([]byte("x")) {
		t.Error("the packets are closed")
	}
}
