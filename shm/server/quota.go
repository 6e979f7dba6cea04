package server

import (
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/vrnic/vrnic/shm/abi"
)

// Limits bounds what clients may use. What is over a limit gets ENOMEM. Per session unless noted.
type Limits struct {
	PDs, MRs, CQs, QPs int
	SRQs, MWs          int
	AHs, Groups        int
	Mems               int
	MemBytes           int64 // octets of all mems
	Channels           int
	CMChannels, CMIDs  int
	CMEvents           int // queued on a CM channel; further connection requests are refused
	Depth              int // slots of a queue
	CQDepth            int // slots of a CQ
	RingBytes          int64
	Contexts           int
	SessionsPerUID     int
	Sessions           int   // of the daemon
	HelloMS            int   // milliseconds from connect to HELLO
	IDs                int   // CM ids, PDs and AHs of all sessions of the daemon
	Regions            int   // memory regions and windows of all sessions of the daemon
	Mappings           int   // of all sessions of the daemon
	Pipes              int   // event pipes of all sessions of the daemon
	Memberships        int   // in multicast groups, of all sessions of the daemon
	QueueBytes         int64 // of the daemon's memory, of all sessions of the daemon
}

// A LimitInfo describes one limit by the name that `--limit NAME=N` takes.
type LimitInfo struct {
	Name, Help string
	Default    int64
	get        func(*Limits) int64
	set        func(*Limits, int64)
	max        int64
}

func limitInt(name, help string, def, max int64, f func(*Limits) *int) LimitInfo {
	return LimitInfo{name, help, def, func(l *Limits) int64 { return int64(*f(l)) },
		func(l *Limits, v int64) { *f(l) = int(v) }, max}
}

func limitInt64(name, help string, def, max int64, f func(*Limits) *int64) LimitInfo {
	return LimitInfo{name, help, def, func(l *Limits) int64 { return *f(l) },
		func(l *Limits, v int64) { *f(l) = v }, max}
}

// LimitTable lists all limits, in the order in which help prints them. The defaults are those of
// the ABI's threat model.
var LimitTable = []LimitInfo{
	limitInt("pds", "protection domains of a session", 16384, 1<<20,
		func(l *Limits) *int { return &l.PDs }),
	limitInt("mrs", "memory regions of a session", 1<<18, 1<<24,
		func(l *Limits) *int { return &l.MRs }),
	limitInt("mems", "lent memfds of a session", 4096, 1<<16,
		func(l *Limits) *int { return &l.Mems }),
	limitInt64("mem-bytes", "octets of all lent memfds of a session", defaultLent(), 1<<46,
		func(l *Limits) *int64 { return &l.MemBytes }),
	limitInt("cqs", "completion queues of a session", 32768, 1<<20,
		func(l *Limits) *int { return &l.CQs }),
	limitInt("qps", "queue pairs of a session", 16384, abi.MaxDepth,
		func(l *Limits) *int { return &l.QPs }),
	limitInt("srqs", "shared receive queues of a session", 4096, abi.MaxDepth,
		func(l *Limits) *int { return &l.SRQs }),
	limitInt("mws", "memory windows of a session", 1<<18, 1<<24,
		func(l *Limits) *int { return &l.MWs }),
	limitInt("ahs", "address handles of a session", 1<<16, 1<<24,
		func(l *Limits) *int { return &l.AHs }),
	limitInt("groups", "multicast groups of a session, for each queue pair in one", 4096, 1<<20,
		func(l *Limits) *int { return &l.Groups }),
	limitInt("contexts", "open devices of a session", 256, 4096,
		func(l *Limits) *int { return &l.Contexts }),
	limitInt("channels", "completion channels of a session", 16384, 1<<16,
		func(l *Limits) *int { return &l.Channels }),
	limitInt("cm-channels", "connection manager channels of a session", 16384, 1<<16,
		func(l *Limits) *int { return &l.CMChannels }),
	limitInt("cm-ids", "connection manager ids of a session", 65536, 1<<20,
		func(l *Limits) *int { return &l.CMIDs }),
	limitInt("cm-events", "events queued on a connection manager channel", 4096, 1<<20,
		func(l *Limits) *int { return &l.CMEvents }),
	limitInt("depth", "entries of one queue", 32768, abi.MaxDepth,
		func(l *Limits) *int { return &l.Depth }),
	limitInt("cq-depth", "entries of one completion queue", 1<<19, abi.MaxCQDepth,
		func(l *Limits) *int { return &l.CQDepth }),
	limitInt64("ring-bytes", "octets of all rings of a session", defaultRings(), 1<<40,
		func(l *Limits) *int64 { return &l.RingBytes }),
	limitInt("sessions-per-uid", "sessions of one user", defaultSessionsPerUID(), 1<<16,
		func(l *Limits) *int { return &l.SessionsPerUID }),
	limitInt("sessions", "sessions of the daemon", defaultSessions(), 1<<16,
		func(l *Limits) *int { return &l.Sessions }),
	limitInt("hello-ms", "milliseconds a client may take to say HELLO", 5000, 3600_000,
		func(l *Limits) *int { return &l.HelloMS }),
	limitInt("ids",
		"connection manager ids, protection domains and address handles, for all sessions of the daemon",
		defaultIDs(), 1<<30, func(l *Limits) *int { return &l.IDs }),
	limitInt("regions", "memory regions and windows, for all sessions of the daemon",
		defaultRegions(), 1<<30, func(l *Limits) *int { return &l.Regions }),
	limitInt("mappings", "memory mappings for all sessions of the daemon", defaultMappings(), 1<<30,
		func(l *Limits) *int { return &l.Mappings }),
	limitInt("pipes",
		"event pipes of channels, devices and UDP ports, and host sockets, for all sessions of the daemon",
		defaultPipes(), 1<<30, func(l *Limits) *int { return &l.Pipes }),
	limitInt("memberships",
		"memberships of queue pairs and ids in multicast groups, for all sessions of the daemon", 8192,
		1<<30, func(l *Limits) *int { return &l.Memberships }),
	limitInt64("queue-bytes",
		"octets of the daemon's own for queue pairs and events, for all sessions of the daemon",
		defaultQueues(), 1<<46, func(l *Limits) *int64 { return &l.QueueBytes }),
}

// defaultSessions is what a sixteenth of the descriptors and a quarter of the threads are enough
// for: a session has two descriptors beside its pipes, and a thread.
func defaultSessions() int64 { return min(max(min(descriptors()/16, threads()/4), 256), 4096) }

// defaultSessionsPerUID is a quarter of the daemon's.
func defaultSessionsPerUID() int64 { return defaultSessions() / 4 }

// defaultLent lets a session lend as much as the machine has: it is the program's own memory.
func defaultLent() int64 { return max(memory(), 4<<30) }

// defaultRings is an eighth of the memory.
func defaultRings() int64 { return max(memory()/8, 256<<20) }

// defaultIDs is what a quarter of the memory is enough for: an id takes some two kilobytes. What
// else a session may have takes a mapping or a pipe, of which the daemon has fewer.
func defaultIDs() int64 { return max(memory()>>13, 1<<17) }

// defaultRegions is what half of the memory is enough for: a region takes less than a kilobyte.
func defaultRegions() int64 { return max(memory()>>11, 1<<17) }

// defaultQueues is a quarter of the memory. A ring is memory only once somebody has written there;
// what the daemon has beside it takes its place at once, up to 67 MB for a QP.
func defaultQueues() int64 { return max(memory()/4, 256<<20) }

// defaultMappings is half of what the kernel allows: the Go runtime dies when its own mmap fails.
func defaultMappings() int64 {
	if n, ok := numberIn("/proc/sys/vm/max_map_count", ""); ok && n >= 128 {
		return min(n/2, 1<<30)
	}
	return 65530 / 2
}

// defaultPipes is half of the descriptors that the daemon may have: without any it could not even
// accept a session. The channels that one session may have are many, since programs with
// synchronous ids have one or three for each connection.
func defaultPipes() int64 { return min(max(descriptors()/2, 64), 1<<20) }

// DefaultLimits are the defaults of LimitTable.
func DefaultLimits() (l Limits) {
	for i := range LimitTable {
		LimitTable[i].set(&l, LimitTable[i].Default)
	}
	return l
}

// ErrUnknownLimit is of a name that is none of LimitTable's.
var ErrUnknownLimit = errors.New("not known")

// Set changes one limit; s is NAME=N.
func (l *Limits) Set(s string) error {
	name, val, ok := strings.Cut(s, "=")
	if !ok {
		return fmt.Errorf("limit %q: want NAME=N", s)
	}
	for i := range LimitTable {
		t := &LimitTable[i]
		if t.Name != name {
			continue
		}
		n, err := strconv.ParseInt(val, 0, 64)
		if err != nil || n < 1 || n > t.max {
			return fmt.Errorf("limit %s: want a number from 1 to %d, not %q", name, t.max, val)
		}
		t.set(l, n)
		return nil
	}
	names := make([]string, len(LimitTable))
	for i := range LimitTable {
		names[i] = LimitTable[i].Name
	}
	return fmt.Errorf("limit %q is %w; there are %s", name, ErrUnknownLimit,
		strings.Join(names, ", "))
}

// Get is the value of the limit t.
func (l *Limits) Get(t *LimitInfo) int64 { return t.get(l) }

// A handles table names objects by numbers from 1, given out cyclically, so that a stale handle
// finds nothing for as long as possible.
type handles[T any] struct {
	m    map[uint32]T
	last uint32
}

// next reserves nothing: it is the handle that add will use, or 0 if there are max objects.
func (h *handles[T]) next(max int) uint32 {
	if len(h.m) >= max {
		return 0
	}
	n := h.last
	for {
		n++
		if n == 0 {
			n = 1
		}
		if _, used := h.m[n]; !used {
			return n
		}
	}
}

func (h *handles[T]) add(n uint32, v T) {
	if h.m == nil {
		h.m = make(map[uint32]T)
	}
	h.m[n] = v
	h.last = n
}
