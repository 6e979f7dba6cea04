package shm

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"strings"
	"syscall"

	"github.com/vrnic/vrnic/shm/rpc"
)

// A Change is what is to change of a daemon that runs, in the words of the command line of
// `vrnic up`: a device, port or limit.
type Change struct {
	Verb  ChangeVerb
	Key   string // device, port or limit
	Value string // what stands behind the flag; of Del the name
	Force bool   // also if programs lose connections
	// TAP is the descriptor of a TAP for the port that is added, of which Offloads and UDP say what
	// it was set to; 0: none. It stays the caller's.
	TAP           int
	Offloads, UDP bool
}

// A ChangeVerb says what happens to Value.
type ChangeVerb uint32

const (
	Add ChangeVerb = rpc.ControlAdd
	Del ChangeVerb = rpc.ControlDel
	Set ChangeVerb = rpc.ControlSet
	// Reload has the daemon read its file again; Key and Value are "".
	Reload ChangeVerb = rpc.ControlReload
)

// Change changes the daemon. Only root and the daemon's own user may. It is made whole or not at
// all, and what would end connections is made with Force only. When ctx ends it may have been made
// or not.
func (c *Client) Change(ctx context.Context, ch Change) error {
	req := &rpc.ControlRequest{Verb: uint32(ch.Verb)}
	fd := -1
	if ch.TAP > 0 {
		fd = ch.TAP
	}
	for _, f := range []struct {
		set  bool
		flag uint32
	}{{ch.Force, rpc.ControlForce}, {ch.Offloads, rpc.ControlOffloads}, {ch.UDP, rpc.ControlUDP}} {
		if f.set {
			req.Flags |= f.flag
		}
	}
	what := strings.TrimRight(fmt.Sprintf("change %s %s", ch.Key, ch.Value), " ")
	return c.control(ctx, what, req, ch.Key, ch.Value, fd)
}

// control asks for a change, or a look; fd goes with it, unless it is -1.
func (c *Client) control(ctx context.Context, what string, req *rpc.ControlRequest,
	key, value string, fd int) error {
	if len(key) >= len(req.Key) || len(value) >= len(req.Value) {
		return errInvalid("change of %d octets, at most %d", len(value), len(req.Value)-1)
	}
	copy(req.Key[:], key)
	copy(req.Value[:], value)
	if fd >= 0 {
		// A daemon that does not know the call yet ends a session that sends it a descriptor. These
		// flags are refused by one that does.
		_, err := c.rpcWithin(ctx, rpc.OpControl, what, &rpc.ControlRequest{Flags: ^uint32(0)},
			&rpc.Empty{}, -1)
		if err != nil && !errors.Is(err, syscall.EINVAL) {
			return err
		}
	}
	_, err := c.rpcWithin(ctx, rpc.OpControl, what, req, &rpc.Empty{}, fd)
	return err
}

// Capture has the daemon write the packets of ports to a stream, the first snap octets of each:
// root and the daemon's own user get them. Ports are devices and ports of the switch, by their
// names. The form of the stream is that of `vrnic capture`. It ends when what is returned is
// closed, or shut for writing: then what was seen until then still comes.
// With requests it also writes what happens to those of all queue pairs of these devices.
func (c *Client) Capture(ctx context.Context, ports []string, snap int, requests bool) (
	*net.UnixConn, error) {
	return c.look(ctx, rpc.ControlCapture, rpc.CaptureKey(snap, requests), ports)
}

// Latency has the daemon measure how long requests take until what is returned is shut for writing:
// then what was measured comes, an array in JSON. Root and the daemon's own user get it. What is
// measured are devices, or queue pairs as DEVICE,qp=N; all devices if nothing is named.
func (c *Client) Latency(ctx context.Context, of []string) (*net.UnixConn, error) {
	return c.look(ctx, rpc.ControlLatency, "", of)
}

// Trace has the daemon write what happens to requests of a queue pair, DEVICE,qp=N, and the packets
// of its device, in the form of Capture and for the same users.
func (c *Client) Trace(ctx context.Context, qp string) (*net.UnixConn, error) {
	return c.look(ctx, rpc.ControlTrace, "", []string{qp})
}

// Record has the daemon write a recording of devices, or of all if none is named, to a stream,
// until that is shut for writing: then what was recorded until then still comes. Root and the
// daemon's own user get it. Package vnic/record has its form.
func (c *Client) Record(ctx context.Context, devices []string) (*net.UnixConn, error) {
	return c.look(ctx, rpc.ControlRecord, "", devices)
}

// look hands the daemon a stream to write to.
func (c *Client) look(ctx context.Context, verb uint32, key string, at []string) (*net.UnixConn,
	error) {
	pair, err := syscall.Socketpair(syscall.AF_UNIX, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, os.NewSyscallError("socketpair", err)
	}
	theirs, f := os.NewFile(uintptr(pair[0]), "theirs"), os.NewFile(uintptr(pair[1]), "ours")
	defer theirs.Close()
	defer f.Close() // net.FileConn makes its own
	conn, err := net.FileConn(f)
	if err != nil {
		return nil, err
	}
	if err := c.control(ctx, "look at what others do", &rpc.ControlRequest{Verb: verb}, key,
		strings.Join(at, "\n"), int(theirs.Fd())); err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	return conn.(*net.UnixConn), nil
}

// Settings are those that make a daemon as this one is now, in the order of the command line; root
// and the daemon's own user get them.
func (c *Client) Settings() ([][2]string, error) {
	rows, err := c.List("config")
	if err != nil {
		return nil, err
	}
	all := make([][2]string, len(rows))
	for i, row := range rows {
		var s struct{ Key, Value string }
		if err := json.Unmarshal(row, &s); err != nil {
			return nil, errCorrupt("a setting that is none")
		}
		all[i] = [2]string{s.Key, s.Value}
	}
	return all, nil
}
