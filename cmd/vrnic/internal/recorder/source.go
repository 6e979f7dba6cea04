// Package recorder is the commands `vrnic record` and `vrnic replay`, and what a daemon does for
// the first. Package vnic/record has what a recording is.
package recorder

import (
	"errors"
	"io"
	"net"
	"sync"
	"syscall"
	"time"

	"github.com/vrnic/vrnic/cmd/vrnic/internal/onlookers"
	"github.com/vrnic/vrnic/internal/version"
	"github.com/vrnic/vrnic/shm/rpc"
	"github.com/vrnic/vrnic/shm/server"
	"github.com/vrnic/vrnic/vnic/record"
)

// A Config says what a daemon records.
type Config struct {
	Names []string // of the devices
	// Devices have what they do recorded by a Recorder, until stop is called.
	Devices []func(*record.Recorder) (stop func(), err error)
	// Calls has f told of each call of a program, until stop is called.
	Calls func(f func(*server.Call)) (stop func(), ok bool)
	// Conn is where the recording goes. Who asked ends it by shutting the other end.
	Conn *net.UnixConn
}

// lastTime is what who records has, when the daemon ends, to take what there is.
const lastTime = 2 * time.Second

// Begin begins to record. If that succeeds Conn is its own.
func Begin(set *onlookers.Set, cfg *Config) error {
	return set.Begin(func() (run, end func(), err error) {
		r := record.New(record.Meta{Version: version.String(), Devices: cfg.Names})
		stop, err := attach(r, cfg)
		if err != nil {
			return nil, nil, err
		}
		run = func() {
			var wg sync.WaitGroup
			wg.Go(func() {
				_, _ = io.Copy(io.Discard, cfg.Conn) // until the other end is shut
				stop()                               // who reads the end may begin another one
				r.End("who recorded has ended it")
			})
			_ = r.Write(cfg.Conn) // to nobody, if that has gone
			cfg.Conn.Close()
			stop()
			wg.Wait()
		}
		end = func() {
			_ = cfg.Conn.SetWriteDeadline(time.Now().Add(lastTime)) // else it may wait for long
			r.End("the daemon ends")
		}
		return run, end, nil
	})
}

// attach has r record what cfg says. After an error nothing is.
func attach(r *record.Recorder, cfg *Config) (stop func(), err error) {
	var stops []func()
	stop = sync.OnceFunc(func() {
		for _, f := range stops {
			f()
		}
	})
	c := calls{r: r, of: make(map[uint32]*record.Calls)}
	f, ok := cfg.Calls(c.call)
	if !ok {
		return nil, errors.New("one recording is made at a time, and there is one")
	}
	stops = append(stops, f)
	for _, rec := range cfg.Devices {
		f, err := rec(r)
		if err != nil {
			stop()
			return nil, err
		}
		stops = append(stops, f)
	}
	return stop, nil
}

// calls records those of programs.
type calls struct {
	r  *record.Recorder
	mu sync.Mutex
	of map[uint32]*record.Calls // by session; +checklocks:mu
}

// maxPrograms bounds the sessions that calls knows.
const maxPrograms = 1 << 16

// call records one, unless it is of somebody who looks after the daemon.
func (c *calls) call(call *server.Call) {
	switch call.Op {
	case rpc.OpList, rpc.OpStat, rpc.OpControl:
		return
	}
	s := call.Session
	c.mu.Lock()
	p := c.of[s.ID()]
	if p == nil && len(c.of) < maxPrograms {
		p = c.r.Program(s.Comm(), int(s.Peer().PID))
		c.of[s.ID()] = p
	}
	c.mu.Unlock()
	if p == nil {
		return
	}
	var errno uint64
	why := ""
	if call.Err != nil {
		errno, why = uint64(-rpc.Status(call.Err)), call.Err.Error()
		if e := syscall.Errno(0); errors.As(call.Err, &e) && why == e.Error() {
			why = "" // as the number says
		}
	}
	p.Call(uint16(call.Op), errno, call.Request, call.Reply, why)
}
