package shm

import (
	"context"
	"errors"
	"io"
	"net"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/vrnic/vrnic/shm/abi"
)

// What comes with a reply for which nobody waits any more is closed.
func TestLateDescriptors(t *testing.T) {
	ln, err := net.ListenUnix("unixpacket", &net.UnixAddr{Net: "unixpacket",
		Name: filepath.Join(t.TempDir(), "s")})
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	conn, err := net.DialUnix("unixpacket", nil, ln.Addr().(*net.UnixAddr))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	daemon, err := ln.AcceptUnix()
	if err != nil {
		t.Fatal(err)
	}
	defer daemon.Close()
	c := &Client{conn: conn, dead: make(chan struct{})}
	ctx, cancel := context.WithCancel(t.Context())
	failed := make(chan error)
	go func() {
		_, err := c.rpcWithin(ctx, abi.OpHello, "HELLO", &abi.HelloRequest{}, &abi.HelloReply{}, -1)
		failed <- err
	}()
	msg := make([]byte, abi.MaxMessage)
	n, err := daemon.Read(msg)
	if err != nil {
		t.Fatal(err)
	}
	h, _, err := abi.ParseMessage(msg[:n])
	if err != nil {
		t.Fatal(err)
	}
	cancel()
	if err := <-failed; !errors.Is(err, context.Canceled) {
		t.Errorf("a call of a context that has ended: %v", err)
	}
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	fd := int(w.Fd())
	reply := abi.AppendMessage(nil, abi.Header{Op: h.Op, Seq: h.Seq}, &abi.HelloReply{})
	if _, _, err := daemon.WriteMsgUnix(reply, syscall.UnixRights(fd, fd), nil); err != nil {
		t.Fatal(err)
	}
	w.Close()
	if err := r.SetReadDeadline(time.Now().Add(10 * time.Second)); err != nil {
		t.Fatal(err)
	}
	if n, err := r.Read(msg); err != io.EOF { // which comes when nobody has w
		t.Errorf("%d octets, %v", n, err)
	}
}
