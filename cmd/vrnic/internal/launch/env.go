package launch

import (
	"crypto/rand"
	"encoding/hex"
	"fmt"
	"net/netip"
	"path"
	"slices"
	"strings"
)

// The libraries: what programs are linked with, and what is preloaded.
const (
	Verbs    = "libibverbs.so.1"
	RDMACM   = "librdmacm.so.1"
	IfAddrs  = "libvrnic-ifaddrs.so"
	Heap     = "libvrnic-heap.so"
	Sys      = "libvrnic-sys.so"
	Check    = "libvrnic-check.so"
	RSockets = "libvrnic-rsockets.so"
	// RSocketD is a program, which RSockets starts from beside itself.
	RSocketD = "libvrnic-rsocketd.so"
)

// ucxCheck is a setting of UCX: whether it compares a datagram's GIDs with its own.
const ucxCheck = "UCX_UD_VERBS_ETH_DGID_CHECK"

// Names are the libraries that Place wants, each behind those that it is linked with.
var Names = []string{Verbs, RDMACM, IfAddrs, Heap, Sys, Check, RSockets, RSocketD}

// Settings are what a program's environment gets.
type Settings struct {
	Socket   string // of the daemon, absolute
	Device   string // the only one to show; "" for all
	IfAddrs  string // see AppendIfAddrs
	RoCE     bool   // of a device that it sees
	LendHeap bool
	RSockets string // whom its sockets ask, see AskRSockets; "" for those of the kernel alone
	Check    string // where what is wrong with it is told; "": nobody looks
	SysMode  string // how programs see SysDir, in the words of --sys
	SysDir   string // what they see in /sys and /dev; "" for what is there
	Libs     Libs
	Program  Program
}

// Libs is where the libraries are: in a directory, or else in files to be loaded by their names, in
// the order of Names.
type Libs struct {
	Dir   string
	Files []string
}

// path is what the loader finds a library by.
func (l Libs) path(name string) string {
	if l.Dir == "" {
		return l.Files[slices.Index(Names, name)]
	}
	return path.Join(l.Dir, name)
}

// Env returns environ with s in it. What the user has set stays: our directory comes before the
// user's, our library is preloaded behind the user's, which may insist on being first.
func Env(environ []string, s Settings) []string {
	env := slices.Clone(environ)
	env = set(env, "VRNIC_SOCKET", s.Socket)
	env = set(env, "VRNIC_DEVICE", s.Device)
	env = set(env, "VRNIC_IFADDRS", s.IfAddrs)
	env = set(env, "VRNIC_LEND_HEAP", "")
	if s.LendHeap {
		env = set(env, "VRNIC_LEND_HEAP", "1")
	}
	env = set(env, "VRNIC_RSOCKETS", s.RSockets)
	env = set(env, "VRNIC_CHECK", s.Check)
	env = set(env, "VRNIC_SYS", s.SysMode)
	env = set(env, "VRNIC_SYS_DIR", s.SysDir)
	if s.Libs.Dir != "" {
		old, _ := get(env, "LD_LIBRARY_PATH")
		env = set(env, "LD_LIBRARY_PATH", addDir(s.Libs.Dir, old))
	}
	var preload []string
	for _, name := range Names {
		switch {
		case name == Heap && !s.LendHeap, name == Sys && s.SysDir == "":
		case name == RSockets && s.RSockets == "", name == RSocketD, name == Check:
		case s.Libs.Dir == "" || name != Verbs && name != RDMACM || s.Program.RPath:
			// The others are found when they are asked for, unless the program says itself where.
			preload = append(preload, s.Libs.path(name))
		}
	}
	if s.Check != "" { // it stands in front of functions of the others
		preload = slices.Insert(preload, 0, s.Libs.path(Check))
	}
	old, _ := get(env, "LD_PRELOAD")
	env = set(env, "LD_PRELOAD", addPreload(old, preload))
	// UCX before 1.19 drops each datagram that came by IPv4, unless its service level is what mlx5
	// has there instead: docs/decisions.md#V27.
	if _, ok := get(env, ucxCheck); s.RoCE && !ok {
		env = append(env, ucxCheck+"=n")
	}
	if s.Program.ASAN {
		// Our library comes before the sanitizer's, which is no harm: it has no malloc.
		old, _ := get(env, "ASAN_OPTIONS")
		if !strings.Contains(old, "verify_asan_link_order") {
			env = set(env, "ASAN_OPTIONS", strings.TrimPrefix(old+":verify_asan_link_order=0", ":"))
		}
	}
	return env
}

// get returns the first value of name, as getenv(3) does.
func get(env []string, name string) (string, bool) {
	for _, e := range env {
		if v, ok := strings.CutPrefix(e, name+"="); ok {
			return v, true
		}
	}
	return "", false
}

// set gives name one value, in place of all that it has; "" takes it out.
func set(env []string, name, value string) []string {
	env = slices.DeleteFunc(env, func(e string) bool { return strings.HasPrefix(e, name+"=") })
	if value != "" {
		env = append(env, name+"="+value)
	}
	return env
}

// addDir puts dir in front of the directories of LD_LIBRARY_PATH. An empty one among them is the
// working directory, so none is added where there was nothing.
func addDir(dir, old string) string {
	if old == "" {
		return dir
	}
	rest := slices.DeleteFunc(strings.Split(old, ":"), func(d string) bool { return d == dir })
	return strings.Join(append([]string{dir}, rest...), ":")
}

// addPreload puts our files behind the others of LD_PRELOAD. Those of an outer vrnic exec go.
func addPreload(old string, ours []string) string {
	list := strings.FieldsFunc(old, func(r rune) bool { return r == ':' || r == ' ' })
	outer := make(map[string]bool) // directories
	for _, f := range list {
		if path.Base(f) == IfAddrs {
			outer[path.Dir(f)] = true
		}
	}
	list = slices.DeleteFunc(list, func(f string) bool {
		return outer[path.Dir(f)] && slices.Contains(Names, path.Base(f)) || isPlaced(f)
	})
	return strings.Join(append(list, ours...), ":")
}

// AskRSockets is what programs need to ask a process for sockets over RDMA, UID.WORD.SECRET: whose
// that process is, the name at which it is found, and what shows it that they may ask. They start
// it when they need it.
func AskRSockets(uid int) string {
	return fmt.Sprintf("%d.%s.%s", uid, random(8), random(16))
}

// random is the text of n random octets.
func random(n int) string {
	b := make([]byte, n)
	_, _ = rand.Read(b) // never fails
	return hex.EncodeToString(b)
}

// AppendIfAddrs appends the addresses of a device in the form that the preloaded library reads:
// NAME=ADDR/BITS,...;NAME=...
func AppendIfAddrs(s, device string, addrs []netip.Prefix) string {
	if len(addrs) == 0 {
		return s
	}
	list := make([]string, len(addrs))
	for i, a := range addrs {
		list[i] = a.String()
	}
	if s != "" {
		s += ";"
	}
	return s + device + "=" + strings.Join(list, ",")
}
