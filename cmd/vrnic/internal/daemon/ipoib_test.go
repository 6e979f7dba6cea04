package daemon

import (
	"errors"
	"net/netip"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
)

// What --ipoib says. IPOIB-009.
func TestParseIPoIB(t *testing.T) {
	addr := []netip.Prefix{netip.MustParsePrefix("10.78.0.1/24")}
	for in, want := range map[string]IPoIBSpec{
		"i,dev=d,addr=10.78.0.1/24,tun=ib0": {Name: "i", Device: "d", Addrs: addr, TUN: "ib0"},
		"i,dev=d,addr=10.78.0.1/24":         {Name: "i", Device: "d", Addrs: addr},
		"i,dev=d,addr=10.78.0.1/24,mode=connected,stream=sctp": {Name: "i", Device: "d", Addrs: addr,
			Connected: true, SCTP: true},
		"i,tun=ib0,dev=d,addr=10.78.0.1/24,mode=connected,mtu=65520,pkey=0x8001,qkey=2843,scope=5": {
			Name: "i", Device: "d", Addrs: addr, TUN: "ib0", Connected: true, MTU: 65520, PKey: 0x8001,
			QKey: 0xb1b, Scope: 5},
	} {
		if got, err := ParseIPoIB(in); err != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("%q: %+v, %v, want %+v", in, got, err, want)
		}
		if got, err := ParseIPoIB(want.String()); err != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("%q is printed as %q", in, want)
		}
	}
	for in, names := range map[string]string{
		"":                                  "no name",
		"i":                                 "no device",
		"i,dev=d,tun=x":                     "no address",
		"i,dev=d,addr=10.78.0.1,tun=x":      "not an address with a prefix",
		"i,dev=d,tun=x,tun=y":               "tun is given twice",
		"i,tun=averylonginterfacename":      "longer than 15",
		"i,mode=fast":                       "mode=fast: want datagram or connected",
		"i,stream=udp":                      "stream=udp: want tcp or sctp",
		"i,mode=datagram,mode=connected":    "mode is given twice",
		"i,mtu=1000":                        `mtu "1000" is not a number from 1280`,
		"i,pkey=0x0001":                     "want a P_Key with the top bit, such as 0x8001",
		"i,pkey=0x18001":                    "pkey=0x18001",
		"i,qkey=0":                          "qkey=0: want a number",
		"i,scope=15":                        "scope=15: want a scope",
		"i,scope=0":                         "scope=0",
		"i,colour=red":                      `unknown option "colour"`,
		"i,dev=d,addr=10.78.0.1/24,tun=x,=": `unknown option ""`,
		"i,dev=d,addr=10.78.0.1/24,tun=x,mtu=65535": "more than the 65520",
	} {
		if _, err := ParseIPoIB(in); err == nil || !strings.Contains(err.Error(), names) {
			t.Errorf("%q: %v, want an error with %q", in, err, names)
		}
	}
}

// What several may be, and what a device carries. The defaults are an MTU of 2044 and a controlled
// Q_Key. IPOIB-006, IPOIB-010.
func TestIPoIBConfig(t *testing.T) {
	roce := DeviceSpec{Name: "r", RoCE: true,
		Addrs: []netip.Prefix{netip.MustParsePrefix("10.77.0.2/24")}}
	devices := []DeviceSpec{roce, {Name: "w"}, {Name: "h", Host: netip.IPv6Loopback()},
		{Name: "w6", Addrs: []netip.Prefix{netip.MustParsePrefix("fd77::2/64")}}}
	spec := func(change func(*IPoIBSpec)) IPoIBSpec {
		s := IPoIBSpec{Name: "i", Device: "r", TUN: "ib0",
			Addrs: []netip.Prefix{netip.MustParsePrefix("10.78.0.1/24")}}
		change(&s)
		return s
	}
	one := spec(func(*IPoIBSpec) {})
	for names, specs := range map[string][]IPoIBSpec{
		"there is no device x": {spec(func(s *IPoIBSpec) { s.Device = "x" })},
		"no IPv6 address, which the streams of neighbours go to": {spec(func(s *IPoIBSpec) {
			s.Device, s.Connected = "w", true
		})},
		"an address of the host":  {spec(func(s *IPoIBSpec) { s.Device = "h" })},
		"speaks RoCE, and has no": {spec(func(s *IPoIBSpec) { s.SCTP = true })},
		"mode=connected over w6 is given twice": {
			spec(func(s *IPoIBSpec) { s.Device, s.Connected = "w6", true }),
			spec(func(s *IPoIBSpec) {
				s.Name, s.Device, s.Connected, s.TUN = "j", "w6", true, "y"
				s.Addrs = []netip.Prefix{netip.MustParsePrefix("10.78.0.2/24")}
			})},
		"name i is given twice":            {one, one},
		"tun ib0 is given twice":           {one, spec(func(s *IPoIBSpec) { s.Name = "j" })},
		"tun tap0 is given twice":          {spec(func(s *IPoIBSpec) { s.TUN = "tap0" })},
		"address 10.78.0.1 is given twice": {one, spec(func(s *IPoIBSpec) { s.Name, s.TUN = "j", "y" })},
		"device r is given twice":          {spec(func(s *IPoIBSpec) { s.Name, s.TUN = "r", "" })},
		"address 10.77.0.2 is given twice": {spec(func(s *IPoIBSpec) { s.Addrs = roce.Addrs })},
	} {
		err := checkIPoIB(specs, devices,
			[]PortSpec{{Kind: PortTap, Name: "tap0"}})
		if err == nil || !strings.Contains(err.Error(), names) {
			t.Errorf("%v, want an error with %q", err, names)
		}
	}
	d, err := New(Config{Socket: filepath.Join(t.TempDir(), "s"), Devices: []DeviceSpec{
		{Name: "r", RoCE: true, MTU: 9000, Addrs: []netip.Prefix{netip.MustParsePrefix("10.77.0.2/24")}},
		{Name: "s", RoCE: true, MTU: 1500, Addrs: []netip.Prefix{netip.MustParsePrefix("10.77.0.3/24")}},
	}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { d.Close() })
	c, err := one.config(d.devices[0], d.devices[0].vnic)
	if err != nil || c.MTU != 2044 || c.LinkMTU != 2044 || c.PKey != 0xffff || c.QKey>>31 != 1 ||
		c.Scope != 2 || c.Connected || len(c.Addrs) != 1 {
		t.Errorf("%+v, %v", c, err)
	}
	six := spec(func(s *IPoIBSpec) {
		s.Connected, s.MTU = true, 65520
		s.Addrs = append(s.Addrs, netip.MustParsePrefix("fd78::1/64"))
	})
	c, err = six.config(d.devices[0], d.devices[0].vnic)
	if err != nil || c.MTU != 65520 || c.LinkMTU != 2044 || len(c.Addrs) != 3 ||
		!c.Addrs[2].Addr().IsLinkLocalUnicast() || c.Addrs[2].Bits() != 64 {
		t.Errorf("%+v, %v", c, err)
	}
	usage := (*ConfigError)(nil)
	if _, err = one.config(d.devices[1], d.devices[1].vnic); !errors.As(err, &usage) ||
		!strings.Contains(err.Error(), "2128 there are enough") {
		t.Errorf("an MTU of 1500: %v", err)
	}
	long := spec(func(s *IPoIBSpec) { s.MTU = 4093 })
	if _, err = long.config(d.devices[0], d.devices[0].vnic); !errors.As(err, &usage) {
		t.Errorf("datagrams of 4093 octets: %v", err)
	}
}
