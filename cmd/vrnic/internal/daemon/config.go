package daemon

import (
	"errors"
	"fmt"
	"io/fs"
	"iter"
	"log/slog"
	"os/user"
	"strconv"
	"strings"

	"github.com/vrnic/vrnic/cmd/vrnic/internal/guest"
	"github.com/vrnic/vrnic/shm/rpc"
	"github.com/vrnic/vrnic/shm/server"
	"github.com/vrnic/vrnic/vnic"
)

// A Config says what a daemon is made of.
type Config struct {
	Socket      string       // path of the control socket; needed
	SocketMode  fs.FileMode  // who may connect; 0 is 0600
	SocketGroup string       // name or number of the socket's group; "" leaves it
	SocketFD    int          // the control socket, if the service manager has made it; 0: it has not
	Containers  string       // directory of sockets for containers; "": none
	Devices     []DeviceSpec // none: DefaultDevice
	Ports       []PortSpec
	IPoIB       []IPoIBSpec   // IP interfaces over devices
	Limits      server.Limits // of clients; the zero value is shm.DefaultLimits
	Peers       PeerLimits    // of peers on the network
	Latency     bool          // metrics have histograms of what requests take
	// Direct has programs of one user exchange messages without the daemon (docs/direct.md), if it is
	// asked for: docs/decisions.md#X7.
	Direct bool
	// Others are further settings, which LIST config gives as they are.
	Others []Setting
	// Reload reads anew what the daemon is to be made of; nil: nobody can say.
	Reload func() (Config, error)
	Log    *slog.Logger // nil: none. What it gets is rate limited
}

// A Setting is one of the command line's: --Key Value. It is a row of LIST config.
type Setting struct {
	Key   string `json:"key"`
	Value string `json:"value"`
}

// configRows are the settings that make a daemon as this one is now.
func (d *Daemon) configRows() iter.Seq[any] {
	cfg := d.current()
	return func(yield func(any) bool) {
		for _, s := range cfg.Settings() {
			if !yield(s) {
				return
			}
		}
	}
}

// Settings are those that make c. Limits that are the defaults are left out.
func (c *Config) Settings() []Setting {
	all := []Setting{{"socket", c.Socket}, {"socket-mode", fmt.Sprintf("%04o", c.SocketMode)}}
	if c.SocketGroup != "" {
		all = append(all, Setting{"socket-group", c.SocketGroup})
	}
	if c.Containers != "" {
		all = append(all, Setting{"containers", c.Containers})
	}
	if c.Direct {
		all = append(all, Setting{"direct", "user"})
	}
	all = append(all, c.Others...)
	for _, s := range c.Devices {
		if !s.Container {
			all = append(all, Setting{"device", s.String()})
		}
	}
	for _, s := range c.Ports {
		if !s.Container {
			all = append(all, Setting{"port", s.String()})
		}
	}
	for _, s := range c.IPoIB {
		all = append(all, Setting{"ipoib", s.String()})
	}
	for i := range server.LimitTable {
		t := &server.LimitTable[i]
		if n := c.Limits.Get(t); n != t.Default {
			all = append(all, Setting{"limit", fmt.Sprintf("%s=%d", t.Name, n)})
		}
	}
	for i := range PeerLimitTable {
		t := &PeerLimitTable[i]
		if n := *t.field(&c.Peers); n != 0 && n != t.Default {
			all = append(all, Setting{"limit", fmt.Sprintf("%s=%d", t.Name, n)})
		}
	}
	return all
}

// GuestNames are those of the sockets for containers.
func (c *Config) GuestNames() (names []string) {
	if c.Containers == "" {
		return nil
	}
	devices := c.Devices
	if len(devices) == 0 {
		devices = []DeviceSpec{DefaultDevice()}
	}
	for _, d := range devices {
		names = append(names, d.Name)
	}
	return append(names, guest.All, guest.Net)
}

// checkGuests says what cannot be of the sockets for containers.
func (c *Config) checkGuests() error {
	for _, name := range c.GuestNames() {
		if err := checkSocketPath(guest.Socket(c.Containers, name)); err != nil {
			return fmt.Errorf("containers %q: %w", c.Containers, err)
		}
	}
	return nil
}

// checkGuestNames says which device has a name that is that of a socket: who comes by that one
// would see it.
func (c *Config) checkGuestNames() error {
	for _, d := range c.Devices {
		if c.Containers != "" && (d.Name == guest.All || d.Name == guest.Net) {
			return fmt.Errorf("containers %q: the name %q is that of a socket for several devices: give "+
				"device %s another", c.Containers, d.Name, d.Name)
		}
	}
	return nil
}

// A ConfigError says that a Config cannot be: wrong usage, not a failure.
type ConfigError struct{ Err error }

func (e *ConfigError) Error() string { return e.Err.Error() }
func (e *ConfigError) Unwrap() error { return e.Err }

// Check says, as a *ConfigError, what cannot be of c. It makes nothing, and asks the machine for
// the group only.
func (c *Config) Check() error {
	if c.Socket == "" {
		return &ConfigError{errors.New("no path for the control socket")}
	}
	if err := checkSocketPath(c.Socket); err != nil {
		return &ConfigError{fmt.Errorf("socket %q: %w", c.Socket, err)}
	}
	if err := c.CheckSpecs(); err != nil {
		return err
	}
	if err := c.checkGuests(); err != nil {
		return &ConfigError{err}
	}
	if err := checkGroup(c.SocketGroup); err != nil {
		return &ConfigError{err}
	}
	return nil
}

// CheckSpecs says, as a *ConfigError, what of the devices, ports and interfaces of c cannot stand
// together.
func (c *Config) CheckSpecs() error {
	devices := c.Devices
	if len(devices) == 0 {
		devices = []DeviceSpec{DefaultDevice()}
	}
	if len(devices) > rpc.MaxDevices {
		return &ConfigError{fmt.Errorf("%d devices; a daemon has at most %d", len(devices),
			rpc.MaxDevices)}
	}
	if err := checkSpecs(devices, c.Ports); err != nil {
		return &ConfigError{err}
	}
	if err := checkIPoIB(c.IPoIB, devices, c.Ports); err != nil {
		return &ConfigError{err}
	}
	if err := c.checkGuestNames(); err != nil {
		return &ConfigError{err}
	}
	return nil
}

// SetLimit changes one limit, of clients or of peers; s is NAME=N.
func (c *Config) SetLimit(s string) error {
	known, err := c.Peers.Set(s)
	if !known {
		err = c.Limits.Set(s)
	}
	if errors.Is(err, server.ErrUnknownLimit) {
		for _, l := range PeerLimitTable {
			err = fmt.Errorf("%w, %s", err, l.Name)
		}
	}
	return err
}

// checkGroup says whether there is such a group; "" is none.
func checkGroup(name string) error {
	if name == "" {
		return nil
	}
	if _, err := strconv.ParseUint(name, 10, 31); err == nil {
		return nil
	}
	if _, err := user.LookupGroup(name); err != nil {
		return fmt.Errorf("socket group %q: there is no such group", name)
	}
	return nil
}

// PeerLimits bound what peers on the network may use of each device; 0 is the default. What a peer
// is, and what happens beyond a limit, says docs/limits.md.
type PeerLimits struct {
	Requests, RequestsPerPeer int
	HalfOpen, HalfOpenPerPeer int
	ConnectionsPerPeer        int
}

// A PeerLimit describes one of them by the name that `--limit NAME=N` takes.
type PeerLimit struct {
	Name, Help string
	Default    int
	field      func(*PeerLimits) *int
}

// PeerLimitTable lists them, in the order in which help prints them.
var PeerLimitTable = []PeerLimit{
	{"requests", "connection requests waiting at a device", 1024,
		func(l *PeerLimits) *int { return &l.Requests }},
	{"peer-requests", "of these, from one peer; and, up to 64, its SCTP associations", 256,
		func(l *PeerLimits) *int { return &l.RequestsPerPeer }},
	{"half-open", "TCP connections to a device without a complete MPA Request", 512,
		func(l *PeerLimits) *int { return &l.HalfOpen }},
	{"peer-half-open", "of these, from one peer", 128,
		func(l *PeerLimits) *int { return &l.HalfOpenPerPeer }},
	{"peer-connections", "connections that one peer has asked for", 4096,
		func(l *PeerLimits) *int { return &l.ConnectionsPerPeer }},
}

// config is c with the limits.
func (l PeerLimits) config(c vnic.Config) vnic.Config {
	c.MaxPending, c.MaxPendingPerPeer = l.Requests, l.RequestsPerPeer
	c.MaxHalfOpen, c.MaxHalfOpenPerPeer = l.HalfOpen, l.HalfOpenPerPeer
	c.MaxConnsPerPeer = l.ConnectionsPerPeer
	return c
}

const maxPeerLimit = 1 << 20

// Set changes one limit; s is NAME=N. known is false if the name is not one of these.
func (l *PeerLimits) Set(s string) (known bool, err error) {
	name, val, _ := strings.Cut(s, "=")
	for i := range PeerLimitTable {
		t := &PeerLimitTable[i]
		if t.Name != name {
			continue
		}
		n, err := strconv.Atoi(val)
		if err != nil || n < 1 || n > maxPeerLimit {
			return true, fmt.Errorf("limit %s: want a number from 1 to %d, not %q", name, maxPeerLimit, val)
		}
		*t.field(l) = n
		return true, nil
	}
	return false, nil
}
