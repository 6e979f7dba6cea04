package daemon

import (
	"fmt"
	"iter"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/vrnic/vrnic/cmd/vrnic/internal/logs"
	"github.com/vrnic/vrnic/ipoib"
	"github.com/vrnic/vrnic/ipoib/overroce"
	"github.com/vrnic/vrnic/netstack/ethswitch"
	"github.com/vrnic/vrnic/netstack/port"
	"github.com/vrnic/vrnic/shm/rpc"
	"github.com/vrnic/vrnic/vnic"
)

// An IPoIBSpec says what an IP interface over a device is made of.
type IPoIBSpec struct {
	Name   string
	Device string
	Addrs  []netip.Prefix
	// TUN is the network device that gives it to the kernel; "": it is a device of iWARP, of its name.
	TUN string
	// Connected has it make and take connections; MTU is the longest IP packet, 0: 2044. Over a device
	// of iWARP they are streams, of SCTP or else of TCP.
	Connected bool
	SCTP      bool
	MTU       int
	PKey      uint16 // 0: overroce.DefaultPKey
	QKey      uint32 // 0: overroce.DefaultQKey
	Scope     uint8  // 0: overroce.DefaultScope
}

// ParseIPoIB reads NAME,dev=DEVICE,addr=CIDR[,addr=CIDR]...[,tun=NAME][,mode=datagram|connected]
// [,stream=tcp|sctp][,mtu=N][,pkey=N][,qkey=N][,scope=N].
func ParseIPoIB(s string) (IPoIBSpec, error) {
	name, rest, any := strings.Cut(s, ",")
	i := IPoIBSpec{Name: name}
	err := checkName(name, maxDeviceName)
	seen := map[string]bool{}
	if err == nil {
		err = eachOption(rest, any, func(key, value string) error {
			if seen[key] && key != "addr" {
				return fmt.Errorf("%s is given twice", key)
			}
			seen[key] = true
			return i.set(key, value)
		})
	}
	switch {
	case err != nil:
	case i.Device == "":
		err = fmt.Errorf("no device; add ,dev=NAME")
	case len(i.Addrs) == 0:
		err = fmt.Errorf("no address; add ,addr=CIDR, for example ,addr=10.78.0.2/24")
	case i.MTU > overroce.MaxMTU:
		err = fmt.Errorf("mtu %d is more than the %d that connections carry", i.MTU, overroce.MaxMTU)
	}
	if err != nil {
		return IPoIBSpec{}, fmt.Errorf("ipoib %q: %w", s, err)
	}
	return i, nil
}

// String is the form that ParseIPoIB reads.
func (i IPoIBSpec) String() string {
	b := appendAddrs([]byte(i.Name+",dev="+i.Device), i.Addrs)
	if i.TUN != "" {
		b = append(b, ",tun="+i.TUN...)
	}
	if i.Connected {
		b = append(b, ",mode=connected"...)
	}
	if i.SCTP {
		b = append(b, ",stream=sctp"...)
	}
	if i.MTU != 0 {
		b = fmt.Appendf(b, ",mtu=%d", i.MTU)
	}
	if i.PKey != 0 {
		b = fmt.Appendf(b, ",pkey=%#x", i.PKey)
	}
	if i.QKey != 0 {
		b = fmt.Appendf(b, ",qkey=%#x", i.QKey)
	}
	if i.Scope != 0 {
		b = fmt.Appendf(b, ",scope=%d", i.Scope)
	}
	return string(b)
}

// set takes an option.
func (i *IPoIBSpec) set(key, value string) (err error) {
	switch key {
	case "dev":
		i.Device, err = value, checkName(value, maxDeviceName)
	case "addr":
		i.Addrs, err = addAddr(i.Addrs, value)
	case "tun":
		i.TUN, err = value, checkName(value, maxTapName)
	case "mtu":
		i.MTU, err = parseMTU(0, value)
	case "mode":
		if value != "datagram" && value != "connected" {
			return fmt.Errorf("mode=%s: want datagram or connected", value)
		}
		i.Connected = value == "connected"
	case "stream":
		if value != "tcp" && value != "sctp" {
			return fmt.Errorf("stream=%s: want tcp or sctp", value)
		}
		i.SCTP = value == "sctp"
	case "pkey":
		var n uint64
		// RFC 4391, section 4.1: a full member's.
		if n, err = strconv.ParseUint(value, 0, 16); err != nil || n&0x8000 == 0 {
			return fmt.Errorf("pkey=%s: want a P_Key with the top bit, such as 0x8001", value)
		}
		i.PKey = uint16(n)
	case "qkey":
		var n uint64
		if n, err = strconv.ParseUint(value, 0, 32); err != nil || n == 0 {
			return fmt.Errorf("qkey=%s: want a number such as %#x", value, overroce.DefaultQKey)
		}
		i.QKey = uint32(n)
	case "scope":
		var n uint64
		if n, err = strconv.ParseUint(value, 0, 4); err != nil || n == 0 || n == 15 {
			return fmt.Errorf("scope=%s: want a scope of multicast from 1 to 14, such as 2 (link)", value)
		}
		i.Scope = uint8(n)
	default:
		return fmt.Errorf("unknown option %q (known: dev, addr, tun, mode, stream, mtu, pkey, qkey, "+
			"scope)", key)
	}
	return err
}

// checkIPoIB says what of several interfaces, devices and ports cannot stand together.
func checkIPoIB(specs []IPoIBSpec, devices []DeviceSpec, ports []PortSpec) error {
	names := map[string]bool{}
	for _, p := range ports {
		if p.Kind == PortTap && p.NetNS == "" {
			names["tun "+p.Name] = true
		}
	}
	for _, d := range devices {
		names["device "+d.Name] = true
		for _, a := range d.own() {
			names["address "+a.Addr().String()] = true
		}
	}
	own := len(devices)
	for _, s := range specs {
		at := slices.IndexFunc(devices, func(d DeviceSpec) bool { return d.Name == s.Device })
		var err error
		switch {
		case at < 0:
			err = fmt.Errorf("there is no device %s", s.Device)
		case devices[at].RoCE && s.SCTP:
			err = fmt.Errorf("device %s speaks RoCE, and has no streams: leave stream= out", s.Device)
		case !devices[at].RoCE:
			err = s.checkStreams(devices[at])
		}
		taken := []string{"name " + s.Name, "tun " + s.TUN}
		if err == nil && s.Connected && !devices[at].RoCE {
			taken = append(taken, "mode=connected over "+s.Device) // there is one port of TCP for them
		}
		if s.TUN == "" {
			taken[1] = "device " + s.Name
		}
		for _, a := range s.Addrs {
			taken = append(taken, "address "+a.Addr().String())
		}
		for _, n := range taken {
			if err == nil && names[n] {
				err = fmt.Errorf("%s is given twice", n)
			}
			names[n] = true
		}
		if s.TUN == "" {
			own++
		}
		if err == nil && own > rpc.MaxDevices {
			err = fmt.Errorf("a daemon has at most %d devices; add ,tun=NAME", rpc.MaxDevices)
		}
		if err != nil {
			return fmt.Errorf("ipoib %s: %w", s.Name, err)
		}
	}
	return nil
}

// checkStreams says what a device of iWARP lacks.
func (spec *IPoIBSpec) checkStreams(d DeviceSpec) error {
	if d.Host.IsValid() {
		return fmt.Errorf("device %s has an address of the host: datagrams need one with addr=", d.Name)
	}
	if spec.Connected && !slices.ContainsFunc(d.own(), func(p netip.Prefix) bool {
		return p.Addr().Is6() && !p.Addr().IsLinkLocalUnicast()
	}) {
		return fmt.Errorf("device %s has no IPv6 address, which the streams of neighbours go to; add "+
			"one, such as ,addr=fd77::2/64", d.Name)
	}
	return nil
}

// datagrams is the device of RoCE at dev's station: dev, the one that shares its addresses, or one
// that is made for this and that programs do not see.
func (d *Daemon) datagrams(dev *device) (*vnic.Device, error) {
	if dev.roce() {
		return dev.vnic, nil
	}
	for _, other := range d.deviceList() {
		if other.roce() && other.station == dev.station {
			return other.vnic, nil
		}
	}
	if dev.beside == nil {
		spec := DeviceSpec{Name: dev.spec.Name, RoCE: true}
		var err error
		if dev.beside, err = d.newRNIC(spec, dev.mac, dev.addrs, dev.station); err != nil {
			return nil, err
		}
		d.undo.add(dev.beside.Close)
	}
	return dev.beside, nil
}

// config is what spec asks for over dev, whose datagrams are roce's. A ConfigError: dev does not
// carry it.
func (spec *IPoIBSpec) config(dev *device, roce *vnic.Device) (overroce.Config, error) {
	c := overroce.Config{
		Name: spec.Name, Device: roce, SCTP: spec.SCTP, Addrs: slices.Clone(spec.Addrs),
		Connected: spec.Connected, MTU: spec.MTU, PKey: spec.PKey, QKey: spec.QKey, Scope: spec.Scope,
	}
	if !dev.roce() {
		c.Streams = dev.vnic
	}
	orNumber(&c.MTU, overroce.DefaultMTU)
	orNumber(&c.PKey, overroce.DefaultPKey)
	orNumber(&c.QKey, overroce.DefaultQKey)
	orNumber(&c.Scope, overroce.DefaultScope)
	active, _ := roce.RoCEPort()
	most := active.Octets() - ipoib.HeaderLen
	c.LinkMTU = c.MTU
	if c.Connected {
		c.LinkMTU = min(c.MTU, overroce.DefaultMTU)
	}
	if c.LinkMTU > most {
		return c, &ConfigError{fmt.Errorf("datagrams of %d octets are more than the %d that device %s "+
			"carries at its MTU of %d: 2128 there are enough for 2044, 4176 for 4092", c.LinkMTU, most,
			dev.spec.Name, dev.mtu())}
	}
	if slices.ContainsFunc(c.Addrs, func(p netip.Prefix) bool { return p.Addr().Is6() }) {
		local, err := overroce.LinkLocal(roce)
		if err != nil {
			return c, err
		}
		c.Addrs = append(c.Addrs, local)
	}
	return c, nil
}

func orNumber[N int | uint8 | uint16 | uint32](v *N, otherwise N) {
	if *v == 0 {
		*v = otherwise
	}
}

// An ipoibInterface is an IP interface in the making.
type ipoibInterface struct {
	spec   *IPoIBSpec
	config overroce.Config
	host   overroce.Host // nil: a TUN, which comes last
}

// openIPoIB is what IP interfaces need of the devices, before there is a network. Those without a
// TUN are devices of their own, of iWARP.
func (d *Daemon) openIPoIB() ([]ipoibInterface, error) {
	var all []ipoibInterface
	for at := range d.cfg.IPoIB {
		i := ipoibInterface{spec: &d.cfg.IPoIB[at]}
		devices := d.deviceList()
		below := slices.IndexFunc(devices, func(dev *device) bool {
			return dev.spec.Name == i.spec.Device // checkIPoIB has found it
		})
		roce, err := d.datagrams(devices[below])
		if err == nil {
			i.config, err = i.spec.config(devices[below], roce)
		}
		if err == nil && i.spec.TUN == "" {
			i.host, err = d.addDeviceOver(&i.config)
		}
		if err != nil {
			return nil, fmt.Errorf("ipoib %s: %w", i.spec.Name, err)
		}
		i.config.Log = d.log.With(logs.Part, "ipoib")
		all = append(all, i)
	}
	return all, nil
}

// addDeviceOver makes the device of an interface: its stack has no other way than the interface.
func (d *Daemon) addDeviceOver(c *overroce.Config) (overroce.Host, error) {
	spec := DeviceSpec{Name: c.Name, Addrs: c.Addrs, MTU: c.MTU}
	spec.MAC = spec.HardwareAddr()
	sw := ethswitch.New(ethswitch.Config{})
	d.undo.add(sw.Close)
	st, err := newStation(sw, spec)
	if err != nil {
		return nil, err
	}
	d.undo.add(st.Close)
	d.undo.add(st.Finish)
	p, err := port.AttachIP(sw, port.IPConfig{Name: "ipoib", Stack: spec.MAC, Addrs: c.Addrs})
	if err != nil {
		return nil, err
	}
	d.undo.add(p.Close)
	dev, err := d.addDeviceAt(spec, spec.MAC, st)
	if err != nil {
		return nil, err
	}
	dev.over = true
	d.undo.add(dev.vnic.Close)
	return p, nil
}

// addIPoIB makes an IP interface.
func (d *Daemon) addIPoIB(i ipoibInterface) error {
	if i.host == nil {
		tun, err := port.OpenTUN(port.TUNConfig{Name: i.spec.TUN, Addrs: i.config.Addrs,
			MTU: i.config.MTU})
		if err != nil {
			return err
		}
		i.host = tun
	}
	l, err := overroce.New(i.config, i.host)
	if err != nil {
		return err
	}
	d.undo.add(l.Close)
	d.ipoib = append(d.ipoib, l)
	return nil
}

// An ipoibRow is an IP interface. What it has dropped is by reason.
type ipoibRow struct {
	Name       string         `json:"ipoib"`
	Dev        string         `json:"dev"`
	TUN        string         `json:"tun"`
	Mode       string         `json:"mode"`
	Carrier    string         `json:"carrier"` // of connections
	MTU        int            `json:"mtu"`
	LinkMTU    int            `json:"datagram_mtu"`
	PKey       string         `json:"pkey"`
	Addrs      []netip.Prefix `json:"addrs"`
	GID        netip.Addr     `json:"gid"`
	QPN        uint32         `json:"qpn"`
	Flags      string         `json:"flags"`
	Neighbours int            `json:"neighbours"`

	TxDatagrams uint64 `json:"tx_datagrams"`
	TxGroups    uint64 `json:"tx_multicast"`
	TxConnected uint64 `json:"tx_connected"`
	RxDatagrams uint64 `json:"rx_datagrams"`
	RxConnected uint64 `json:"rx_connected"`
	Solicits    uint64 `json:"solicitations"`
	Connects    uint64 `json:"connects"`
	Accepts     uint64 `json:"accepts"`
	Rejects     uint64 `json:"rejects"`
	Failures    uint64 `json:"connect_failures"`

	DropUnknownType uint64 `json:"drop_unknown_type"`
	DropMalformed   uint64 `json:"drop_malformed"`
	DropTooBig      uint64 `json:"drop_too_big"`
	DropUnresolved  uint64 `json:"drop_unresolved"`
	DropWaiting     uint64 `json:"drop_waiting"`
	DropNotJoined   uint64 `json:"drop_not_joined"`
	DropConnected   uint64 `json:"drop_not_for_connections"`
	DropForeign     uint64 `json:"drop_foreign_address"`
	DropNeighbours  uint64 `json:"drop_neighbours"`
	DropGroups      uint64 `json:"drop_groups"`
	DropNoBuffer    uint64 `json:"drop_no_buffer"`
	DropNoRoute     uint64 `json:"drop_no_route"`
	DropRefused     uint64 `json:"drop_refused"`
	DropHost        uint64 `json:"drop_host"`
}

// A neighbourRow is a neighbour of an IP interface.
type neighbourRow struct {
	Name       string      `json:"ipoib"`
	Dev        string      `json:"dev"`
	Neighbour  netip.Addr  `json:"neighbour"`
	State      string      `json:"state"`
	GID        *netip.Addr `json:"gid"` // null while nothing is known
	QPN        *uint32     `json:"qpn"`
	Flags      string      `json:"flags"`
	MTU        int         `json:"mtu"`
	Connection string      `json:"connection"`
}

// ipoibFlags are the connections that the owner of a link-layer address takes.
func ipoibFlags(a ipoib.LinkAddr) string {
	var s []string
	if a.Flags&ipoib.FlagRC != 0 {
		s = append(s, "rc")
	}
	if a.Flags&ipoib.FlagUC != 0 {
		s = append(s, "uc")
	}
	return strings.Join(s, ",")
}

func (d *Daemon) ipoibRows() iter.Seq[any] {
	return func(yield func(any) bool) {
		for at, l := range d.ipoib {
			i := l.Info()
			if !yield(newIPoIBRow(&d.cfg.IPoIB[at], &i)) {
				return
			}
			for _, n := range i.Neighbours {
				row := neighbourRow{Name: i.Config.Name, Dev: d.cfg.IPoIB[at].Device, Neighbour: n.IP,
					State: n.State, Flags: ipoibFlags(n.Addr), MTU: n.MTU, Connection: n.Conn}
				if n.Addr != (ipoib.LinkAddr{}) {
					gid, qpn := n.Addr.GID.Addr(), n.Addr.QPN
					row.GID, row.QPN = &gid, &qpn
				}
				if !yield(row) {
					return
				}
			}
		}
	}
}

func newIPoIBRow(spec *IPoIBSpec, i *overroce.Info) ipoibRow {
	c, s := &i.Config, &i.Stats
	mode, carrier := "datagram", ""
	if c.Connected {
		mode = "connected"
		switch {
		case c.Streams == nil:
			carrier = "rc"
		case c.SCTP:
			carrier = "sctp"
		default:
			carrier = "tcp"
		}
	}
	return ipoibRow{
		Name: c.Name, Dev: spec.Device, TUN: spec.TUN, Mode: mode, Carrier: carrier, MTU: c.MTU,
		LinkMTU: c.LinkMTU,
		PKey:    fmt.Sprintf("%#04x", c.PKey), Addrs: c.Addrs, GID: i.Addr.GID.Addr(), QPN: i.Addr.QPN,
		Flags: ipoibFlags(i.Addr), Neighbours: len(i.Neighbours),
		TxDatagrams: s.TxDatagrams, TxGroups: s.TxGroups, TxConnected: s.TxConnected,
		RxDatagrams: s.RxDatagrams, RxConnected: s.RxConnected, Solicits: s.Solicits,
		Connects: s.Connects, Accepts: s.Accepts, Rejects: s.Rejects, Failures: s.Failures,
		DropUnknownType: s.DropUnknownType, DropMalformed: s.DropMalformed, DropTooBig: s.DropTooBig,
		DropUnresolved: s.DropUnresolved, DropWaiting: s.DropWaiting, DropNotJoined: s.DropNotJoined,
		DropConnected: s.DropConnected, DropForeign: s.DropForeign, DropNeighbours: s.DropNeighbours,
		DropGroups: s.DropGroups, DropNoBuffer: i.Drops.NoBuffer, DropNoRoute: i.Drops.NoRoute,
		DropRefused: i.Drops.Refused, DropHost: i.Drops.Host,
	}
}
