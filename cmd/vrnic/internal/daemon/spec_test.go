package daemon

import (
	"net/netip"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/vrnic/vrnic/cmd/vrnic/internal/profile"
)

// card is a profile that there is.
func card(name string, roce bool) *profile.Profile {
	p, err := profile.Find(name, roce)
	if err != nil {
		panic(err)
	}
	return p
}

func TestParseDevice(t *testing.T) {
	for _, tt := range []struct {
		in   string
		want DeviceSpec
	}{
		{"vrnic0,addr=10.77.0.2/24,addr=fd77::2/64", DefaultDevice()},
		{"a-b_c.1,addr=10.0.0.1/31,mtu=9000,mac=02:00:5e:10:00:01", DeviceSpec{
			Name: "a-b_c.1", Addrs: []netip.Prefix{netip.MustParsePrefix("10.0.0.1/31")}, MTU: 9000,
			MAC: [6]byte{2, 0, 0x5e, 0x10, 0, 1},
		}},
		{"x,addr=192.0.2.1/32,mtu=1280", DeviceSpec{
			Name: "x", Addrs: []netip.Prefix{netip.MustParsePrefix("192.0.2.1/32")}, MTU: 1280,
		}},
		{"x,host=127.0.0.2,sctp-udp=9000", DeviceSpec{
			Name: "x", Host: netip.MustParseAddr("127.0.0.2"), SCTPUDP: 9000,
		}},
		{"x,host=::1,sctp-udp=off,loopback=wire,keepalive=5s", DeviceSpec{
			Name: "x", Host: netip.IPv6Loopback(), SCTPUDP: -1, ForceWire: true,
			KeepAlive: 5 * time.Second,
		}},
		{"x,addr=192.0.2.1/32,loopback=wire", DeviceSpec{
			Name: "x", Addrs: []netip.Prefix{netip.MustParsePrefix("192.0.2.1/32")}, ForceWire: true,
		}},
		{"x,addr=192.0.2.1/32,transport=roce,mtu=4200", DeviceSpec{
			Name: "x", Addrs: []netip.Prefix{netip.MustParsePrefix("192.0.2.1/32")}, RoCE: true, MTU: 4200,
		}},
		{"x,addr=192.0.2.1/32,transport=roce,dcqcn=on", DeviceSpec{
			Name: "x", Addrs: []netip.Prefix{netip.MustParsePrefix("192.0.2.1/32")}, RoCE: true, DCQCN: true,
		}},
		{"x,addr=192.0.2.1/32,keepalive=5s,user-timeout=20s", DeviceSpec{
			Name: "x", Addrs: []netip.Prefix{netip.MustParsePrefix("192.0.2.1/32")},
			KeepAlive: 5 * time.Second, UserTimeout: 20 * time.Second,
		}},
		{"x,addr=192.0.2.1/32,container", DeviceSpec{
			Name: "x", Addrs: []netip.Prefix{netip.MustParsePrefix("192.0.2.1/32")}, Container: true,
		}},
		{"x,addr=192.0.2.1/32,adversary=7", DeviceSpec{
			Name: "x", Addrs: []netip.Prefix{netip.MustParsePrefix("192.0.2.1/32")}, Adversary: 7,
		}},
		{"x,addr=192.0.2.1/32,profile=siw", DeviceSpec{
			Name: "x", Addrs: []netip.Prefix{netip.MustParsePrefix("192.0.2.1/32")},
			Profile: card("siw", false),
		}},
		{"x,addr=192.0.2.1/32,transport=roce,profile=irdma", DeviceSpec{
			Name: "x", Addrs: []netip.Prefix{netip.MustParsePrefix("192.0.2.1/32")}, RoCE: true,
			Profile: card("irdma", true),
		}},
		{"x,addr=192.0.2.1/32,keepalive=off,user-timeout=off", DeviceSpec{
			Name: "x", Addrs: []netip.Prefix{netip.MustParsePrefix("192.0.2.1/32")},
			KeepAlive: -1, UserTimeout: -1,
		}},
		{"x,addr=192.0.2.1/32,keepalive=5m0s,user-timeout=off", DeviceSpec{
			Name: "x", Addrs: []netip.Prefix{netip.MustParsePrefix("192.0.2.1/32")},
			KeepAlive: 5 * time.Minute, UserTimeout: -1,
		}},
	} {
		got, err := ParseDevice(tt.in)
		if err != nil || !reflect.DeepEqual(got, tt.want) {
			t.Errorf("ParseDevice(%q) = %+v, %v; want %+v", tt.in, got, err, tt.want)
		}
		if s := got.String(); s != tt.in {
			t.Errorf("%q prints as %q", tt.in, s)
		}
	}
}

// Each wrong specification is refused with a sentence that names the bad part.
func TestParseDeviceErrors(t *testing.T) {
	for _, tt := range []struct{ in, names string }{
		{"", "no name"},
		{",addr=10.0.0.1/24", "no name"},
		{"vrnic0", "no address"},
		{"vrnic0,", `"" is not of the form`},
		{"vrnic0,addr", `"addr" is not of the form`},
		{"vr/nic,addr=10.0.0.1/24", `"vr/nic"`},
		{"-x,addr=10.0.0.1/24", `"-x"`},
		{strings.Repeat("a", 32) + ",addr=10.0.0.1/24", "longer than 31"},
		{"v,addr=10.0.0.1/24,adversary=0", "adversary=0"},
		{"v,addr=10.0.0.1/24,adversary=x", "adversary=x"},
		{"v,addr=10.0.0.1/24,adversary=1,adversary=1", "once"},
		{"v,addr=10.0.0.1/24,profile=siw,profile=siw", "once"},
		{"v,addr=10.0.0.1/24,profile=", "siw, rxe"},
		{"v,addr=10.0.0.1/24,profile=connectx", "siw, cxgb4, irdma"},
		{"v,addr=10.0.0.1/24,profile=mlx5", "does not speak what transport=iwarp says"},
		{"v,addr=10.0.0.1/24,transport=roce,profile=siw", "rxe, irdma, mlx5"},
		{"v,addr=10.0.0.1", `"10.0.0.1"`},
		{"v,addr=10.0.0.1/33", `"10.0.0.1/33"`},
		{"v,addr=10.0.0.0/24", "network's own"},
		{"v,addr=10.0.0.255/24", "broadcast"},
		{"v,addr=0.0.0.0/8", "not the address of a host"},
		{"v,addr=224.0.0.1/8", "not the address of a host"},
		{"v,addr=127.0.0.1/8", "not the address of a host"},
		{"v,addr=::1/128", "not the address of a host"},
		{"v,addr=::ffff:10.0.0.1/120", "write it as IPv4"},
		{"v,addr=fe80::1%eth0/64", "not an address with a prefix"},
		{"v,addr=10.0.0.1/24,addr=10.0.0.1/16", "10.0.0.1 is given twice"},
		{"v,addr=10.0.0.1/24,mtu=x", `mtu "x"`},
		{"v,addr=10.0.0.1/24,mtu=1279", `mtu "1279"`},
		{"v,addr=10.0.0.1/24,mtu=65536", `mtu "65536"`},
		{"v,addr=10.0.0.1/24,mtu=1500,mtu=1500", "mtu is given twice"},
		{"v,addr=10.0.0.1/24,mac=02:00", `mac "02:00"`},
		{"v,addr=10.0.0.1/24,mac=01:00:5e:00:00:01", "one station"},
		{"v,addr=10.0.0.1/24,mac=00:00:00:00:00:00", "one station"},
		{"v,addr=10.0.0.1/24,mac=02:00:00:00:00:01,mac=02:00:00:00:00:02", "mac is given twice"},
		{"v,addr=10.0.0.1/24,colour=blue", `unknown option "colour"`},
		{"v,host=10.0.0.1/24", "host=10.0.0.1/24: want an address of this host, without a prefix"},
		{"v,host=0.0.0.0", "want one address"},
		{"v,host=224.0.0.1", "want one address"},
		{"v,host=::ffff:10.0.0.1", "write it as IPv4"},
		{"v,host=fe80::1%eth0", "is for one link only"},
		{"v,host=10.0.0.1,host=10.0.0.2", "host is given twice; make two devices"},
		{"v,host=10.0.0.1,addr=10.0.0.2/24", "make two devices"},
		{"v,host=10.0.0.1,mtu=1500", "leave mtu=1500 out"},
		{"v,host=10.0.0.1,sctp-udp=10.0.0.1", "want a UDP port, or off; the address is host=ADDR"},
		{"v,host=10.0.0.1,sctp-udp=0", "want a UDP port"},
		{"v,host=10.0.0.1,sctp-udp=65536", "want a UDP port"},
		{"v,host=10.0.0.1,sctp-udp=1,sctp-udp=2", "sctp-udp is given twice"},
		{"v,addr=10.0.0.1/24,sctp-udp=9899", "add ,host=ADDR"},
		{"v,addr=10.0.0.1/24,loopback=tcp", "loopback=tcp: want copy"},
		{"v,addr=10.0.0.1/24,loopback=", "loopback=: want copy"},
		{"v,addr=10.0.0.1/24,loopback=copy,loopback=wire", "loopback is given twice"},
		{"v,addr=10.0.0.1/24,transport=tcp", "transport=tcp: want iwarp (RDMA over TCP or SCTP) or roce"},
		{"v,addr=10.0.0.1/24,transport=", "transport=: want iwarp"},
		{"v,addr=10.0.0.1/24,transport=roce,transport=iwarp", "transport is given twice"},
		{"v,addr=10.0.0.1/24,transport=roce,mtu=1000", `mtu "1000" is not a number from 1280`},
		{"v,addr=10.0.0.1/24,keepalive=off,transport=roce", "times of TCP"},
		{"v,addr=10.0.0.1/24,dcqcn=on", "dcqcn is a way of RoCE"},
		{"v,addr=10.0.0.1/24,dcqcn=off,transport=iwarp", "add ,transport=roce"},
		{"v,addr=10.0.0.1/24,transport=roce,dcqcn=1", "dcqcn=1: want on"},
		{"v,addr=10.0.0.1/24,transport=roce,dcqcn=on,dcqcn=off", "dcqcn is given twice"},
		{"v,addr=10.0.0.1/24,keepalive=5", "keepalive=5: want a time such as 30s"},
		{"v,addr=10.0.0.1/24,keepalive=-5s", "keepalive=-5s: want a time"},
		{"v,addr=10.0.0.1/24,user-timeout=10h", "user-timeout=10h: want a time"},
		{"v,addr=10.0.0.1/24,keepalive=5s,keepalive=off", "keepalive is given twice"},
		{"v,addr=10.0.0.1/24,keepalive=60s", "has to be less than user-timeout=1m0s"},
		{"v,addr=10.0.0.1/24,keepalive=9s,user-timeout=9s", "less than user-timeout=9s"},
		{"v,addr=10.0.0.1/24,container,container", "container is given once"},
		{"v,addr=10.0.0.1/24,container=yes", "and has no value"},
	} {
		_, err := ParseDevice(tt.in)
		if err == nil || !strings.Contains(err.Error(), tt.names) {
			t.Errorf("ParseDevice(%q): %v; want an error with %q", tt.in, err, tt.names)
		}
	}
}

func TestParsePort(t *testing.T) {
	for _, tt := range []struct {
		in   string
		want PortSpec
	}{
		{"tap:vtap0", PortSpec{Kind: PortTap, Name: "vtap0"}},
		{"tap:vtap0,share", PortSpec{Kind: PortTap, Name: "vtap0", Share: true}},
		{"tap:vtap0,mtu=9000,container",
			PortSpec{Kind: PortTap, Name: "vtap0", MTU: 9000, Container: true}},
		{"tap:vtap0,share,container,netns-cookie=18446744073709551615", PortSpec{Kind: PortTap,
			Name: "vtap0", Share: true, Container: true, Cookie: 1<<64 - 1}},
		{"tap:vtap0,mtu=9000,share=vrnic0", PortSpec{Kind: PortTap, Name: "vtap0", MTU: 9000, Share: true,
			ShareWith: "vrnic0"}},
		{"tap:vtap0,netns=/run/netns/a,addr=10.77.0.1/24,addr=fd77::1/64,mtu=9000", PortSpec{
			Kind: PortTap, Name: "vtap0", NetNS: "/run/netns/a", MTU: 9000,
			Addrs: []netip.Prefix{netip.MustParsePrefix("10.77.0.1/24"),
				netip.MustParsePrefix("fd77::1/64")},
		}},
		{"unix-listen:/tmp/a,b:c", PortSpec{Kind: PortUnixListen, Path: "/tmp/a,b:c"}},
		{"unix-connect:l.sock", PortSpec{Kind: PortUnixConnect, Path: "l.sock"}},
		{"vxlan:16777215,local=192.0.2.1,remote=192.0.2.2,remote=192.0.2.3,port=8472", PortSpec{
			Kind: PortVXLAN, Name: "16777215", VXLAN: 1<<24 - 1, UDPPort: 8472,
			Local:   netip.MustParseAddr("192.0.2.1"),
			Remotes: []netip.Addr{netip.MustParseAddr("192.0.2.2"), netip.MustParseAddr("192.0.2.3")},
		}},
		{"vxlan:0,local=2001:db8::1,remote=2001:db8::2", PortSpec{
			Kind: PortVXLAN, Name: "0", Local: netip.MustParseAddr("2001:db8::1"),
			Remotes: []netip.Addr{netip.MustParseAddr("2001:db8::2")},
		}},
	} {
		got, err := ParsePort(tt.in)
		if err != nil || !reflect.DeepEqual(got, tt.want) {
			t.Errorf("ParsePort(%q) = %+v, %v; want %+v", tt.in, got, err, tt.want)
		}
		if s := got.String(); s != tt.in {
			t.Errorf("%q prints as %q", tt.in, s)
		}
	}
	for _, tt := range []struct{ in, names string }{
		{"", "want tap:NAME"},
		{"vtap0", "want tap:NAME"},
		{":x", "want tap:NAME"},
		{"veth:x", "want tap:NAME"},
		{"tap:", "no name"},
		{"tap:0123456789abcdef", "longer than 15"},
		{"tap:a b", `"a b"`},
		{"tap:x,", "not of the form"},
		{"tap:x,netns=", "netns wants a path"},
		{"tap:x,netns", "not of the form"},
		{"tap:x,share,share=a", "share is given twice"},
		{"tap:x,share=a b", `"a b"`},
		{"tap:x,share,addr=10.0.0.1/24", "leave addr=10.0.0.1/24 out"},
		{"tap:x,netns-cookie=7", "add share"},
		{"tap:x,share,netns-cookie=0", "want the number of a network namespace"},
		{"tap:x,share,netns-cookie=7,netns-cookie=8", "netns-cookie is given twice"},
		{"tap:x,netns=a,netns=b", "netns is given twice"},
		{"tap:x,mac=02:00:00:00:00:01", `unknown option "mac"`},
		{"tap:x,addr=10.0.0.300/24", `"10.0.0.300/24"`},
		{"unix-listen:", "no path"},
		{"unix-connect:a\x00b", "zero octet"},
		{"vxlan:", `VNI ""`},
		{"vxlan:16777216,local=192.0.2.1,remote=192.0.2.2", "from 0 to 16777215"},
		{"vxlan:-1,local=192.0.2.1,remote=192.0.2.2", `VNI "-1"`},
		{"vxlan:7", "add local=ADDR"},
		{"vxlan:7,local=192.0.2.1", "remote=ADDR"},
		{"vxlan:7,remote=192.0.2.1", "local=ADDR"},
		{"vxlan:7,local=192.0.2.1,local=192.0.2.3,remote=192.0.2.2", "local is given twice"},
		{"vxlan:7,local=0.0.0.0,remote=192.0.2.2", "the address of one host"},
		{"vxlan:7,local=192.0.2.1/24,remote=192.0.2.2", "without a prefix length"},
		{"vxlan:7,local=192.0.2.1,remote=239.1.1.1", "the address of one host"},
		{"vxlan:7,local=192.0.2.1,remote=fe80::1%eth0", "the address of one host"},
		{"vxlan:7,local=192.0.2.1,remote=2001:db8::1", "not of one kind"},
		{"vxlan:7,local=192.0.2.1,remote=192.0.2.1", "at both ends"},
		{"vxlan:7,local=192.0.2.1,remote=192.0.2.2,remote=192.0.2.2", "is given twice"},
		{"vxlan:7,local=192.0.2.1,remote=192.0.2.2,port=0", "want one UDP port"},
		{"vxlan:7,local=192.0.2.1,remote=192.0.2.2,port=1,port=2", "want one UDP port"},
		{"vxlan:7,local=192.0.2.1,remote=192.0.2.2,mtu=9", `unknown option "mtu"`},
		{"vxlan:7,local=192.0.2.1" + strings.Repeat(",remote=192.0.2.2", 17), "more than 16"},
		{"unix-connect:" + strings.Repeat("a", 108), "107"},
	} {
		_, err := ParsePort(tt.in)
		if err == nil || !strings.Contains(err.Error(), tt.names) {
			t.Errorf("ParsePort(%q): %v; want an error with %q", tt.in, err, tt.names)
		}
	}
}

func TestCheckSpecs(t *testing.T) {
	device := func(s string) DeviceSpec {
		d, err := ParseDevice(s)
		if err != nil {
			t.Fatal(err)
		}
		return d
	}
	port := func(s string) PortSpec {
		p, err := ParsePort(s)
		if err != nil {
			t.Fatal(err)
		}
		return p
	}
	a, b := device("a,addr=10.0.0.1/24"), device("b,addr=10.0.0.2/24")
	for _, tt := range []struct {
		devices []DeviceSpec
		ports   []PortSpec
		names   string
	}{
		{[]DeviceSpec{a, b}, []PortSpec{port("tap:t,addr=10.0.0.3/24"), port("tap:t,netns=/n"),
			port("unix-listen:/x")}, ""},
		{[]DeviceSpec{a, device("a,addr=10.0.0.2/24")}, nil, `device name "a" is given twice`},
		{[]DeviceSpec{a, device("b,addr=10.0.0.1/16")}, nil,
			"address 10.0.0.1 is given to device a and to device b"},
		{[]DeviceSpec{a}, []PortSpec{port("tap:t,addr=10.0.0.1/24")}, "to device a and to port t"},
		{[]DeviceSpec{device("a,addr=10.0.0.1/24,mac=02:00:00:00:00:01"),
			device("b,addr=10.0.0.2/24,mac=02:00:00:00:00:01")}, nil, "same MAC"},
		{[]DeviceSpec{a, b, device("r,transport=roce,addr=10.0.0.1/24")}, nil, ""},
		{[]DeviceSpec{device("r,transport=roce,addr=10.0.0.1/24,mac=02:00:00:00:00:01"), a,
			device("b,addr=10.0.0.2/24,mac=02:00:00:00:00:01")}, nil, "same MAC"},
		{[]DeviceSpec{a, device("r,transport=roce,addr=10.0.0.1/24"),
			device("s,transport=roce,addr=10.0.0.1/24")}, nil,
			"to device r and to device s, which both speak RoCE"},
		{[]DeviceSpec{a, device("r,transport=roce,addr=10.0.0.1/24"), device("c,addr=10.0.0.1/24")}, nil,
			"to device a and to device c; give each its own"},
		{[]DeviceSpec{a, device("r,transport=roce,addr=10.0.0.1/24,addr=10.0.0.9/24")}, nil,
			"share address 10.0.0.1, but not all addresses"},
		{[]DeviceSpec{a, device("r,transport=roce,addr=10.0.0.1/16")}, nil, "but not all addresses"},
		{[]DeviceSpec{device("a,addr=10.0.0.1/24,mtu=9000"),
			device("r,transport=roce,addr=10.0.0.1/24,mtu=1500")}, nil, "an MTU of 9000 and of 1500"},
		{[]DeviceSpec{device("a,addr=10.0.0.1/24,mac=02:00:00:00:00:02"),
			device("r,transport=roce,addr=10.0.0.1/24,mac=02:00:00:00:00:01")}, nil,
			"have MACs 02:00:00:00:00:02 and 02:00:00:00:00:01"},
		{[]DeviceSpec{a}, []PortSpec{port("tap:t"), port("tap:t")}, `port "tap:t" is given twice`},
		{[]DeviceSpec{a}, []PortSpec{port("tap:a")}, `both named "a"`},
		{[]DeviceSpec{a, device("r,addr=10.0.0.1/24,transport=roce"), device("h,host=127.0.0.1")},
			[]PortSpec{port("tap:t,share")}, ""},
		{[]DeviceSpec{a, b}, []PortSpec{port("tap:t,share=a"), port("tap:u,share=b")}, ""},
		{[]DeviceSpec{a, b}, []PortSpec{port("tap:t,share")}, "with whom of a and b?"},
		{[]DeviceSpec{a, b}, []PortSpec{port("tap:t,share=c")}, "there is no such device"},
		{[]DeviceSpec{device("h,host=127.0.0.1")}, []PortSpec{port("tap:t,share")},
			"there is no such device"},
		{[]DeviceSpec{a, device("h,host=127.0.0.1")}, []PortSpec{port("tap:t,share=h")},
			"h has an address of the host"},
		{[]DeviceSpec{a, device("r,addr=10.0.0.1/24,transport=roce")},
			[]PortSpec{port("tap:t,share=a"), port("tap:u,share=r")}, "ports t and u share one address"},
	} {
		err := checkSpecs(tt.devices, tt.ports)
		if tt.names == "" && err != nil || tt.names != "" && (err == nil || !strings.Contains(err.Error(),
			tt.names)) {
			t.Errorf("%v %v: %v; want %q", tt.devices, tt.ports, err, tt.names)
		}
	}
	if a.HardwareAddr() == b.HardwareAddr() || a.HardwareAddr()[0]&3 != 2 {
		t.Errorf("MACs %x %x: want two different, locally administered and unicast", a.HardwareAddr(),
			b.HardwareAddr())
	}
}

// What parses prints as something that parses to the same, and prints the same.
func FuzzSpec(f *testing.F) {
	for _, s := range []string{
		"vrnic0,addr=10.77.0.2/24,addr=fd77::2/64,mtu=1500,mac=02:00:00:00:00:01",
		"vrnic0,mac=02-00-00-00-00-01,addr=FD77::0:2/64,mtu=01500",
		"tap:vtap0,netns=/run/netns/a,addr=10.77.0.1/24,mtu=9000", "unix-listen:/tmp/a,b",
		"tap:vtap0,share", "tap:vtap0,share=vrnic0,mtu=9000",
		"unix-connect:x",
	} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		if d, err := ParseDevice(s); err == nil {
			again, err := ParseDevice(d.String())
			if err != nil || !reflect.DeepEqual(d, again) || again.String() != d.String() {
				t.Fatalf("%q is %+v, prints %q, which is %+v, %v", s, d, d, again, err)
			}
			if err := checkSpecs([]DeviceSpec{d}, nil); err != nil {
				t.Fatalf("%q parses, and then: %v", s, err)
			}
		}
		if p, err := ParsePort(s); err == nil {
			again, err := ParsePort(p.String())
			if err != nil || !reflect.DeepEqual(p, again) || again.String() != p.String() {
				t.Fatalf("%q is %+v, prints %q, which is %+v, %v", s, p, p, again, err)
			}
		}
	})
}
