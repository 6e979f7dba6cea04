package config

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"path/filepath"
	"slices"
	"strconv"
	"sync"

	"github.com/vrnic/vrnic/cmd/vrnic/internal/daemon"
	"github.com/vrnic/vrnic/cmd/vrnic/internal/logs"
	"github.com/vrnic/vrnic/cmd/vrnic/internal/metrics"
	"github.com/vrnic/vrnic/shm"
	"github.com/vrnic/vrnic/shm/server"
)

// An Up is all that a daemon is asked for.
type Up struct {
	Daemon     daemon.Config
	User       string // to run as; "": stay
	Sandbox    string // a mode of --sandbox
	Verbose    bool
	LogFormat  string
	LogLevel   string // as logs.Levels.Set has it
	Metrics    string // where metrics are; "": nowhere
	CPUProfile string // file; "": none
}

// A Setting is one value of a key, in the words of the command line: --KEY VALUE.
type Setting struct {
	Key, Value string
	// file is where it stands, "" for the command line; line is the value's there. lines are
	// those of the parts of a specification, its name being the first.
	file  string
	line  int
	lines []int
}

// Flag is what --key value asks for.
func Flag(key, value string) Setting { return Setting{Key: key, Value: value} }

// A key is one that a file may have, and a flag of `vrnic up` of the same name.
type key struct {
	name string
	many bool // it may be there more than once
	set  func(u *Up, value string) error
}

// Keys in the order in which they are set: devices come before what rests on them.
var keys = []key{
	{"socket", false, func(u *Up, v string) error { u.Daemon.Socket = v; return nil }},
	{"socket-mode", false, (*Up).setMode},
	{"socket-group", false, func(u *Up, v string) error { u.Daemon.SocketGroup = v; return nil }},
	{"containers", false, (*Up).setContainers},
	{"direct", false, setDirect},
	{"user", false, func(u *Up, v string) error { u.User = v; return nil }},
	{"sandbox", false, func(u *Up, v string) error { u.Sandbox = v; return nil }},
	{"verbose", false, func(u *Up, v string) (err error) { u.Verbose, err = yes(v); return err }},
	{"log-format", false, func(u *Up, v string) error {
		u.LogFormat = v
		return logs.CheckFormat(v)
	}},
	{"log-level", false, func(u *Up, v string) error {
		u.LogLevel = v
		return new(logs.Levels).Set(v)
	}},
	{"metrics", false, func(u *Up, v string) error {
		u.Metrics = v
		return metrics.CheckAddr(v)
	}},
	{"metrics-latency", false, func(u *Up, v string) (err error) {
		u.Daemon.Latency, err = yes(v)
		return err
	}},
	{"cpuprofile", false, func(u *Up, v string) error { u.CPUProfile = v; return nil }},
	{"device", true, func(u *Up, v string) error {
		d, err := daemon.ParseDevice(v)
		u.Daemon.Devices = append(u.Daemon.Devices, d)
		return err
	}},
	{"host", false, (*Up).setHost},
	{"port", true, func(u *Up, v string) error {
		p, err := daemon.ParsePort(v)
		u.Daemon.Ports = append(u.Daemon.Ports, p)
		return err
	}},
	{"ipoib", true, func(u *Up, v string) error {
		i, err := daemon.ParseIPoIB(v)
		u.Daemon.IPoIB = append(u.Daemon.IPoIB, i)
		return err
	}},
	{"limit", true, func(u *Up, v string) error { return u.Daemon.SetLimit(v) }},
}

// Keys are the names of all keys.
func Keys() (names []string) {
	for _, k := range keys {
		names = append(names, k.name)
	}
	return names
}

func find(name string) (k *key, order int) {
	i := slices.IndexFunc(keys, func(k key) bool { return k.name == name })
	if i < 0 {
		return nil, i
	}
	return &keys[i], i
}

// ErrWrong is in the errors of Build and Parse that are the asker's: wrong usage.
var ErrWrong = errors.New("wrong configuration")

// A wrong is an error that is ErrWrong without its words.
type wrong struct{ error }

func (wrong) Is(err error) bool { return err == ErrWrong }
func (w wrong) Unwrap() error   { return w.error }

// Build makes of settings what they ask for. It looks at nothing of this machine but, for the key
// host and once, its addresses: daemon.Config.Check does. What stands in a file and on the command
// line, too, is as the command line has it. What does not go together is the fault of the later
// one.
func Build(settings []Setting) (*Up, error) {
	u := &Up{Sandbox: "on"}
	u.Daemon.Socket, u.Daemon.SocketMode = shm.DefaultSocket(), 0o600
	u.Daemon.Limits = server.DefaultLimits()
	for at := range keys {
		k := &keys[at]
		given := slices.DeleteFunc(slices.Clone(settings), func(s Setting) bool {
			return s.Key != k.name
		})
		if slices.ContainsFunc(given, func(s Setting) bool { return s.file == "" }) {
			given = slices.DeleteFunc(given, func(s Setting) bool { return s.file != "" })
		}
		for i, s := range given {
			var err error
			if i > 0 && !k.many {
				err = errors.New("it is given twice")
			}
			if err == nil {
				err = k.set(u, s.Value)
			}
			if err == nil {
				err = u.Daemon.CheckSpecs()
			}
			if err != nil {
				return nil, s.wrong(err)
			}
		}
	}
	for _, s := range []daemon.Setting{{Key: "user", Value: u.User},
		{Key: "sandbox", Value: u.Sandbox}, {Key: "verbose", Value: fmt.Sprint(u.Verbose)},
		{Key: "log-format", Value: u.LogFormat}, {Key: "log-level", Value: u.LogLevel},
		{Key: "metrics", Value: u.Metrics}, {Key: "metrics-latency", Value: fmt.Sprint(u.Daemon.Latency)},
		{Key: "cpuprofile", Value: u.CPUProfile}} {
		if s.Value != "" && s.Value != "false" {
			u.Daemon.Others = append(u.Daemon.Others, s)
		}
	}
	return u, nil
}

// Log writes records to w as u has it.
func (u *Up) Log(w io.Writer) (*slog.Logger, error) {
	levels := logs.Levels{All: slog.LevelInfo}
	if u.Verbose {
		levels.All = slog.LevelDebug
	}
	if u.LogLevel != "" {
		if err := levels.Set(u.LogLevel); err != nil {
			return nil, err
		}
	}
	return slog.New(logs.New(w, u.LogFormat, levels)), nil
}

// wrong says where it is that err is about.
func (s *Setting) wrong(err error) error {
	if s.file == "" {
		return wrong{err}
	}
	key, line := s.Key, s.line
	var part *daemon.PartError
	if errors.As(err, &part) && part.Part < len(s.lines) {
		key, line = key+"."+part.Option, s.lines[part.Part]
	}
	return wrong{fmt.Errorf("%s:%d: %s: %w", s.file, line, key, err)}
}

func (u *Up) setMode(v string) error {
	mode, err := strconv.ParseUint(v, 8, 32)
	if err != nil || mode > 0o777 || mode == 0 {
		return fmt.Errorf("socket-mode %q is not an octal file mode such as 0660", v)
	}
	u.Daemon.SocketMode = fs.FileMode(mode)
	return nil
}

func (u *Up) setContainers(v string) (err error) {
	if v == "" {
		return errors.New("containers wants a directory")
	}
	u.Daemon.Containers, err = filepath.Abs(v)
	return err
}

// hostDevices asks the host once: a daemon that runs has the ports itself that another one must not
// have, and one that is confined cannot ask.
var hostDevices = sync.OnceValues(daemon.HostDevices)

func (u *Up) setHost(v string) error {
	on, err := yes(v)
	if err != nil || !on {
		return err
	}
	devices, err := hostDevices()
	u.Daemon.Devices = append(u.Daemon.Devices, devices...)
	return err
}

// yes reads the value of a flag that has none on the command line.
func yes(v string) (bool, error) {
	switch v {
	case "true":
		return true, nil
	case "false":
		return false, nil
	}
	return false, fmt.Errorf("%q is neither true nor false", v)
}

// Modes of --direct.
const (
	DirectUser = "user"
	DirectOff  = "off"
)

func setDirect(u *Up, v string) error {
	if v != DirectUser && v != DirectOff {
		return fmt.Errorf("%q is neither %s nor %s", v, DirectUser, DirectOff)
	}
	u.Daemon.Direct = v == DirectUser
	return nil
}
