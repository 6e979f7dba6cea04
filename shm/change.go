package shm

import (
	"context"
	"encoding/json"
	"fmt"

	"github.com/vrnic/vrnic/shm/abi"
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
	Add ChangeVerb = abi.ControlAdd
	Del ChangeVerb = abi.ControlDel
	Set ChangeVerb = abi.ControlSet
	// Reload has the daemon read its file again; Key and Value are "".
	Reload ChangeVerb = abi.ControlReload
)

// Change changes the daemon. Only root and the daemon's own user may. It is made whole or not at
// all, and what would end connections is made with Force only. When ctx ends it may have been made
// or not.
func (c *Client) Change(ctx context.Context, ch Change) error {
	req := &abi.ControlRequest{Verb: uint32(ch.Verb)}
	if len(ch.Key) >= len(req.Key) || len(ch.Value) >= len(req.Value) {
		return errInvalid("change of %d octets, at most %d", len(ch.Value), len(req.Value)-1)
	}
	copy(req.Key[:], ch.Key)
	copy(req.Value[:], ch.Value)
	fd := -1
	if ch.TAP > 0 {
		fd = ch.TAP
	}
	for _, f := range []struct {
		set  bool
		flag uint32
	}{{ch.Force, abi.ControlForce}, {ch.Offloads, abi.ControlOffloads}, {ch.UDP, abi.ControlUDP}} {
		if f.set {
			req.Flags |= f.flag
		}
	}
	_, err := c.rpcWithin(ctx, abi.OpControl, fmt.Sprintf("change %s %s", ch.Key, ch.Value), req,
		&abi.Empty{}, fd)
	return err
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
