package hosttcp

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"net/netip"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// While who has brought octets looks for more, the kernel wakes nobody for what comes: that is
// found by looking. What is there when the looking ends is brought, and so are octets and the end
// that come later.
func TestQuiet(t *testing.T) {
	l, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	h, err := New(Config{Addr: netip.MustParseAddr("127.0.0.1")})
	if err != nil {
		t.Fatal(err)
	}
	defer h.Close()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	c, err := h.Dial(ctx, 0, l.Addr().(*net.TCPAddr).AddrPort())
	if err != nil {
		t.Fatal(err)
	}
	peer, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer peer.Close()

	say := func(s string) {
		if _, err := peer.Write([]byte(s)); err != nil {
			t.Error(err)
		}
	}
	heard := make(chan string, 1)
	c.SetPrompt(func(more func() bool) {
		var w bytes.Buffer
		n, err := c.ReadInto(&w)
		switch {
		case errors.Is(err, io.EOF):
			heard <- "the end"
			return
		case err != nil:
			t.Error(err)
			return
		case n == 0:
			return
		}
		switch w.String() {
		case "look for more":
			if more() {
				t.Error("there is more before it was sent")
			}
			say("found")
			if told := c.arrived(t); told {
				t.Error("the poller is told of what somebody looks for")
			}
			if !more() {
				t.Error("what has come is not found")
			}
		case "answer, and look":
			answer := []byte("answer")
			if _, err := c.WriteFrom(bytes.NewReader(answer)); err != nil {
				t.Error(err)
			}
			if _, err := io.ReadFull(peer, answer); err != nil { // or it is reset at the end
				t.Error(err)
			}
			say("found behind it")
			c.arrived(t)
			if more() {
				t.Error("the kernel was asked right behind what was sent")
			}
			if !more() {
				t.Error("what has come is not found")
			}
		case "look, and leave":
			if more() {
				t.Error("there is more before it was sent")
			}
			say("left")
			c.arrived(t)
		case "look for nothing":
			if more() {
				t.Error("there is more, which nobody has sent")
			}
			heard <- w.String()
		default:
			heard <- w.String()
		}
	})
	for _, x := range []struct{ say, want string }{
		{"look for more", "found"},
		{"answer, and look", "found behind it"},
		{"look, and leave", "left"},
		{"look for nothing", "look for nothing"},
		{"behind it", "behind it"},
		{"", "the end"},
	} {
		if x.say == "" {
			peer.Close()
		} else {
			say(x.say)
		}
		select {
		case got := <-heard:
			if got != x.want {
				t.Fatalf("behind %q %q was brought, want %q", x.say, got, x.want)
			}
		case <-ctx.Done():
			t.Fatalf("behind %q nothing was brought, want %q", x.say, x.want)
		}
	}
}

// arrived waits until c's socket has octets, and reports whether a poller is told of them.
func (c *Conn) arrived(t *testing.T) (told bool) {
	err := onSocket(c.raw, func(fd int) error {
		for end := time.Now().Add(time.Minute); ; {
			n, err := unix.IoctlGetInt(fd, unix.SIOCINQ)
			if err != nil || n > 0 {
				if err == nil {
					p := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
					for err = unix.EINTR; err == unix.EINTR; { // by signals of Go's scheduler
						_, err = unix.Poll(p, 0)
					}
					told = p[0].Revents&unix.POLLIN != 0
				}
				return err
			}
			if time.Now().After(end) {
				return errors.New("nothing has come")
			}
		}
	})
	if err != nil {
		t.Error(err)
	}
	return told
}
