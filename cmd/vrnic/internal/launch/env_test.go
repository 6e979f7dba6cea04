package launch

import (
	"net/netip"
	"regexp"
	"slices"
	"testing"
)

func TestEnv(t *testing.T) {
	dir := Libs{Dir: "/l"}
	files := Libs{Files: []string{"/proc/self/fd/100", "/proc/self/fd/101", "/proc/self/fd/102",
		"/proc/self/fd/103", "/proc/self/fd/104"}}
	for _, tt := range []struct {
		name      string
		env, want []string
		set       Settings
	}{
		{
			name: "nothing set",
			env:  []string{"HOME=/h"},
			set:  Settings{Socket: "/s", Libs: dir},
			want: []string{"HOME=/h", "LD_LIBRARY_PATH=/l", "LD_PRELOAD=/l/libvrnic-ifaddrs.so",
				"VRNIC_SOCKET=/s"},
		},
		{
			name: "what the user has stays, ours in front of directories and behind libraries",
			env:  []string{"LD_LIBRARY_PATH=/a::/b", "LD_PRELOAD=libasan.so.8 /x.so"},
			set:  Settings{Socket: "/s", Device: "d", IfAddrs: "d=1.2.3.4/8", Libs: dir},
			want: []string{
				"LD_LIBRARY_PATH=/l:/a::/b", "LD_PRELOAD=libasan.so.8:/x.so:/l/libvrnic-ifaddrs.so",
				"VRNIC_DEVICE=d", "VRNIC_IFADDRS=d=1.2.3.4/8", "VRNIC_SOCKET=/s",
			},
		},
		{
			name: "an empty path is no directory",
			env:  []string{"LD_LIBRARY_PATH=", "LD_PRELOAD="},
			set:  Settings{Socket: "/s", Libs: dir},
			want: []string{"LD_LIBRARY_PATH=/l", "LD_PRELOAD=/l/libvrnic-ifaddrs.so", "VRNIC_SOCKET=/s"},
		},
		{
			name: "exec in exec, with another release and another daemon",
			env: []string{
				"LD_LIBRARY_PATH=/l:/old", "LD_PRELOAD=/x.so:/old/libvrnic-ifaddrs.so:/proc/self/fd/9999",
				"VRNIC_SOCKET=/t",
				"VRNIC_SOCKET=/u", "VRNIC_DEVICE=d", "VRNIC_IFADDRS=d=1.2.3.4/8",
			},
			set: Settings{Socket: "/s", Libs: dir},
			want: []string{"LD_LIBRARY_PATH=/l:/old", "LD_PRELOAD=/x.so:/l/libvrnic-ifaddrs.so",
				"VRNIC_SOCKET=/s"},
		},
		{
			name: "libraries without a directory",
			env:  []string{"LD_LIBRARY_PATH=/a"},
			set:  Settings{Socket: "/s", Libs: files},
			want: []string{"LD_LIBRARY_PATH=/a",
				"LD_PRELOAD=/proc/self/fd/100:/proc/self/fd/101:/proc/self/fd/102", "VRNIC_SOCKET=/s"},
		},
		{
			name: "a heap that is lent",
			env: []string{"LD_PRELOAD=/x.so:/old/libvrnic-ifaddrs.so:/old/libvrnic-heap.so",
				"VRNIC_LEND_HEAP=0"},
			set: Settings{Socket: "/s", LendHeap: true, Libs: dir},
			want: []string{"LD_LIBRARY_PATH=/l",
				"LD_PRELOAD=/x.so:/l/libvrnic-ifaddrs.so:/l/libvrnic-heap.so", "VRNIC_LEND_HEAP=1",
				"VRNIC_SOCKET=/s"},
		},
		{
			name: "a heap that is not lent any more",
			env:  []string{"LD_PRELOAD=/l/libvrnic-ifaddrs.so:/l/libvrnic-heap.so", "VRNIC_LEND_HEAP=1"},
			set:  Settings{Socket: "/s", Libs: dir},
			want: []string{"LD_LIBRARY_PATH=/l", "LD_PRELOAD=/l/libvrnic-ifaddrs.so", "VRNIC_SOCKET=/s"},
		},
		{
			name: "a heap that is lent, without a directory",
			set:  Settings{Socket: "/s", LendHeap: true, Libs: files},
			want: []string{
				"LD_PRELOAD=/proc/self/fd/100:/proc/self/fd/101:/proc/self/fd/102:/proc/self/fd/103",
				"VRNIC_LEND_HEAP=1", "VRNIC_SOCKET=/s"},
		},
		{
			name: "UCX on RoCE",
			set:  Settings{Socket: "/s", Libs: dir, RoCE: true},
			want: []string{"LD_LIBRARY_PATH=/l", "LD_PRELOAD=/l/libvrnic-ifaddrs.so",
				"UCX_UD_VERBS_ETH_DGID_CHECK=n", "VRNIC_SOCKET=/s"},
		},
		{
			name: "UCX on RoCE, as the user wants it",
			env:  []string{"UCX_UD_VERBS_ETH_DGID_CHECK=y"},
			set:  Settings{Socket: "/s", Libs: dir, RoCE: true},
			want: []string{"LD_LIBRARY_PATH=/l", "LD_PRELOAD=/l/libvrnic-ifaddrs.so",
				"UCX_UD_VERBS_ETH_DGID_CHECK=y", "VRNIC_SOCKET=/s"},
		},
		{
			name: "what is seen in /sys",
			env:  []string{"LD_PRELOAD=/l/libvrnic-ifaddrs.so:/l/libvrnic-sys.so", "VRNIC_SYS=mount"},
			set:  Settings{Socket: "/s", SysMode: "auto", SysDir: "/d", Libs: dir},
			want: []string{"LD_LIBRARY_PATH=/l",
				"LD_PRELOAD=/l/libvrnic-ifaddrs.so:/l/libvrnic-sys.so", "VRNIC_SOCKET=/s", "VRNIC_SYS=auto",
				"VRNIC_SYS_DIR=/d"},
		},
		{
			name: "sockets over RDMA",
			env:  []string{"VRNIC_RSOCKETS=old"},
			set:  Settings{Socket: "/s", RSockets: "0.a.b", Libs: dir},
			want: []string{"LD_LIBRARY_PATH=/l",
				"LD_PRELOAD=/l/libvrnic-ifaddrs.so:/l/libvrnic-rsockets.so", "VRNIC_RSOCKETS=0.a.b",
				"VRNIC_SOCKET=/s"},
		},
		{
			name: "a look for mistakes, in front of all",
			set: Settings{Socket: "/s", Check: "n", LendHeap: true, Libs: dir,
				Program: Program{RPath: true}},
			want: []string{"LD_LIBRARY_PATH=/l", "LD_PRELOAD=/l/libvrnic-check.so:/l/libibverbs.so.1:" +
				"/l/librdmacm.so.1:/l/libvrnic-ifaddrs.so:/l/libvrnic-heap.so", "VRNIC_CHECK=n",
				"VRNIC_LEND_HEAP=1", "VRNIC_SOCKET=/s"},
		},
		{
			name: "no look for mistakes any more",
			env:  []string{"LD_PRELOAD=/l/libvrnic-check.so:/l/libvrnic-ifaddrs.so", "VRNIC_CHECK=n"},
			set:  Settings{Socket: "/s", Libs: dir},
			want: []string{"LD_LIBRARY_PATH=/l", "LD_PRELOAD=/l/libvrnic-ifaddrs.so", "VRNIC_SOCKET=/s"},
		},
		{
			name: "no sockets over RDMA any more",
			env: []string{"LD_PRELOAD=/l/libvrnic-ifaddrs.so:/l/libvrnic-rsockets.so",
				"VRNIC_RSOCKETS=0.a.b"},
			set:  Settings{Socket: "/s", Libs: dir},
			want: []string{"LD_LIBRARY_PATH=/l", "LD_PRELOAD=/l/libvrnic-ifaddrs.so", "VRNIC_SOCKET=/s"},
		},
		{
			name: "what is not seen in /sys",
			env: []string{"LD_PRELOAD=/l/libvrnic-ifaddrs.so:/l/libvrnic-sys.so", "VRNIC_SYS=auto",
				"VRNIC_SYS_DIR=/d"},
			set: Settings{Socket: "/s", SysMode: "off", Libs: dir},
			want: []string{"LD_LIBRARY_PATH=/l", "LD_PRELOAD=/l/libvrnic-ifaddrs.so", "VRNIC_SOCKET=/s",
				"VRNIC_SYS=off"},
		},
		{
			name: "a program with directories of its own, twice",
			env: []string{
				"LD_PRELOAD=/x/libibverbs.so.1:/old/libibverbs.so.1:/old/librdmacm.so.1:/old/libvrnic-ifaddrs.so"},
			set: Settings{Socket: "/s", Libs: dir, Program: Program{RPath: true}},
			want: []string{"LD_LIBRARY_PATH=/l",
				"LD_PRELOAD=/x/libibverbs.so.1:/l/libibverbs.so.1:/l/librdmacm.so.1:/l/libvrnic-ifaddrs.so",
				"VRNIC_SOCKET=/s"},
		},
		{
			name: "a program with the address sanitizer",
			env:  []string{"ASAN_OPTIONS=detect_leaks=0"},
			set:  Settings{Socket: "/s", Libs: dir, Program: Program{ASAN: true}},
			want: []string{
				"ASAN_OPTIONS=detect_leaks=0:verify_asan_link_order=0",
				"LD_LIBRARY_PATH=/l", "LD_PRELOAD=/l/libvrnic-ifaddrs.so", "VRNIC_SOCKET=/s",
			},
		},
		{
			name: "and nothing set for it, or just that",
			env:  []string{"ASAN_OPTIONS=verify_asan_link_order=1"},
			set:  Settings{Socket: "/s", Libs: dir, Program: Program{ASAN: true}},
			want: []string{"ASAN_OPTIONS=verify_asan_link_order=1", "LD_LIBRARY_PATH=/l",
				"LD_PRELOAD=/l/libvrnic-ifaddrs.so", "VRNIC_SOCKET=/s"},
		},
	} {
		given := slices.Clone(tt.env)
		got := Env(tt.env, tt.set)
		slices.Sort(got)
		if !slices.Equal(got, tt.want) {
			t.Errorf("%s:\n got %q\nwant %q", tt.name, got, tt.want)
		}
		if !slices.Equal(tt.env, given) {
			t.Errorf("%s: it changed the caller's environment to %q", tt.name, tt.env)
		}
	}
	if got := Env(nil, Settings{Socket: "/s", Libs: dir, Program: Program{
		ASAN: true}}); !slices.Contains(got, "ASAN_OPTIONS=verify_asan_link_order=0") {
		t.Errorf("without options of the user's: %q", got)
	}
}

func TestAppendIfAddrs(t *testing.T) {
	s := AppendIfAddrs("", "a", []netip.Prefix{netip.MustParsePrefix("10.0.0.1/24"),
		netip.MustParsePrefix("fd00::1/64")})
	s = AppendIfAddrs(s, "b", nil)
	s = AppendIfAddrs(s, "c", []netip.Prefix{netip.MustParsePrefix("10.0.0.2/8")})
	if want := "a=10.0.0.1/24,fd00::1/64;c=10.0.0.2/8"; s != want {
		t.Errorf("got %q, want %q", s, want)
	}
}

// Whom sockets ask is another process for each program, and nobody can guess how.
func TestAskRSockets(t *testing.T) {
	a, b := AskRSockets(7), AskRSockets(7)
	if form := regexp.MustCompile(`^7\.[0-9a-f]{16}\.[0-9a-f]{32}$`); !form.MatchString(a) || a == b {
		t.Errorf("AskRSockets: %q, then %q", a, b)
	}
}
