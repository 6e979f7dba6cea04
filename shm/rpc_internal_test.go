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
	"testing/synctest"
	"time"

	"github.com/vrnic/vrnic/shm/rpc"
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
		_, err := c.rpcWithin(ctx, rpc.OpHello, "HELLO", &rpc.HelloRequest{}, &rpc.HelloReply{}, -1)
		failed <- err
	}()
	msg := make([]byte, rpc.MaxMessage)
	n, err := daemon.Read(msg)
	if err != nil {
		t.Fatal(err)
	}
	h, _, err := rpc.ParseMessage(msg[:n])
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
	reply := rpc.AppendMessage(nil, rpc.Header{Op: h.Op, Seq: h.Seq}, &rpc.HelloReply{})
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

// What the daemon looks for on the network it is asked for again, for half a minute, and then the
// peer is one that does not answer. RVB-006.
func TestUntilKnown(t *testing.T) {
	for _, tt := range []struct {
		known time.Duration
		errno syscall.Errno // then
		want  error
		took  time.Duration
	}{
		{0, 0, nil, 0},
		{0, syscall.EINVAL, syscall.EINVAL, 0},
		{12 * time.Second, 0, nil, 12 * time.Second},
		{3 * time.Second, syscall.EHOSTUNREACH, syscall.EHOSTUNREACH, 3 * time.Second},
		{time.Hour, 0, syscall.ETIMEDOUT, 30 * time.Second},
	} {
		synctest.Test(t, func(t *testing.T) {
			begun := time.Now()
			err := untilKnown("make it", func() error {
				switch {
				case time.Since(begun) < tt.known:
					return &CallError{Op: "make it", Errno: syscall.EINPROGRESS}
				case tt.errno != 0:
					return &CallError{Op: "make it", Errno: tt.errno}
				}
				return nil
			})
			if took := time.Since(begun); !errors.Is(err, tt.want) || took != tt.took {
				t.Errorf("known behind %v: %v after %v, want %v after %v", tt.known, err, took, tt.want,
					tt.took)
			}
			if tt.want == syscall.ETIMEDOUT && !errors.Is(err, os.ErrDeadlineExceeded) {
				t.Errorf("%v is no timeout", err)
			}
		})
	}
}
