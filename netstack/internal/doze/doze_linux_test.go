package doze

import (
	"errors"
	"os"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/vrnic/vrnic/netstack/internal/doze/dozetest"
)

// A pipe is a File with another end.
type pipe [2]int

func (p pipe) Control(f func(uintptr)) error { f(uintptr(p[0])); return nil }

// open makes a pipe, and an Epoll of it.
func open(t *testing.T) (p pipe, e *Epoll) {
	t.Helper()
	err := unix.Pipe2(p[:], unix.O_NONBLOCK|unix.O_CLOEXEC)
	if err == nil {
		e, err = New(p)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		e.Close()
		unix.Close(p[0])
		unix.Close(p[1])
	})
	return p, e
}

func (p pipe) write(t *testing.T) {
	if _, err := unix.Write(p[1], []byte{1}); err != nil {
		t.Error(err)
	}
}

// read reports whether there was something to read.
func (p pipe) read(uintptr) bool {
	n, _ := unix.Read(p[0], make([]byte, 1))
	return n == 1
}

// Nobody is told of what is ignored. Wait finds what has come before it, and what comes later.
func TestEpoll(t *testing.T) {
	p, e := open(t)
	for range 3 {
		p.write(t)
		if dozetest.Readable(t, e, 0) {
			t.Error("it tells of what it is to ignore")
		}
		if err := e.Wait(p.read); err != nil {
			t.Fatal(err)
		}
		looks := 0
		waited := make(chan error)
		looked := make(chan struct{}, 10)
		go func() {
			waited <- e.Wait(func(fd uintptr) bool {
				looks++
				found := p.read(fd)
				looked <- struct{}{} // only now something may come
				return found
			})
		}()
		<-looked
		p.write(t)
		if err := <-waited; err != nil || looks < 2 {
			t.Fatalf("it looked %d times: %v", looks, err)
		}
		p.write(t)
		if !dozetest.Readable(t, e, 0) {
			t.Error("it tells of nothing")
		}
		e.Ignore()
		if dozetest.Readable(t, e, 0) || !p.read(0) {
			t.Error("it tells of what it is to ignore")
		}
	}
}

// Wait ends with a deadline, goes on without it, and ends for good by Close.
func TestEpollEnds(t *testing.T) {
	_, e := open(t)
	waited := make(chan error)
	looked := make(chan struct{}, 10)
	wait := func() {
		err := e.Wait(func(uintptr) bool {
			looked <- struct{}{}
			return false
		})
		waited <- err
	}
	for range 2 {
		go wait()
		<-looked
		if err := e.SetReadDeadline(time.Unix(1, 0)); err != nil {
			t.Fatal(err)
		}
		if err := <-waited; !errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("with a deadline that is past: %v", err)
		}
		if err := e.SetReadDeadline(time.Time{}); err != nil {
			t.Fatal(err)
		}
	}
	go wait()
	<-looked
	e.Close()
	if err := <-waited; err == nil {
		t.Error("it ends without an error though it is closed")
	}
	e.Ignore()
	if e.Wait(func(uintptr) bool { return true }) == nil {
		t.Error("it waits though it is closed")
	}
}

// To ignore what comes, and to wait again, allocates nothing.
func TestEpollAllocs(t *testing.T) {
	_, e := open(t)
	found := func(uintptr) bool { return true }
	if n := testing.AllocsPerRun(100, func() {
		e.Ignore()
		if err := e.Wait(found); err != nil {
			t.Fatal(err)
		}
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}
