package sysfs

import (
	"encoding/json"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"slices"
	"strings"
)

// A Source is a daemon: what `vrnic show` and `vrnic stat` print.
type Source interface {
	List(kind string) ([]json.RawMessage, error)
	Stat() ([]json.RawMessage, error)
}

// A device is what a daemon says of one.
type device struct {
	Name      string `json:"dev"`
	Transport string `json:"transport"`
	MAC       string `json:"mac"`
	MTU       int    `json:"mtu"`
	State     string `json:"state"`
	GIDs      int    `json:"gids"` // entries of the table
	// Of a device that shows itself as a card of others.
	Firmware string `json:"firmware"`
	HCAType  string `json:"hca_type"`
	BoardID  string `json:"board_id"`
	PCI      string `json:"pci"` // VENDOR:DEVICE
	Revision uint32 `json:"hw_rev"`

	Addrs []netip.Prefix `json:"addrs"`

	// netdev is the interface of its addresses: the kernel's, or one of its own name.
	netdev string

	gids map[int][16]byte // those that are not empty
	// Counters by the daemon's names, nil if it does not tell this user, and those of messages of
	// connection management, as DIRECTORY/NAME.
	hw, messages map[string]uint64
}

func (d *device) roce() bool   { return d.Transport == "roce" }
func (d *device) active() bool { return d.State == "ACTIVE" }

// mac is six octets, whatever the daemon says.
func (d *device) mac() (m [6]byte) {
	if hw, err := net.ParseMAC(d.MAC); err == nil {
		copy(m[:], hw)
	}
	return m
}

// guid is the EUI-64 of the MAC address.
func (d *device) guid() []byte {
	m := d.mac()
	return []byte{m[0] ^ 2, m[1], m[2], 0xff, 0xfe, m[3], m[4], m[5]}
}

// portCounters are by the names of InfiniBand, which count octets by fours.
func (d *device) portCounters() map[string]uint64 {
	sent, received := d.hw["sent_pkts"], d.hw["rcvd_pkts"]
	if !d.roce() {
		sent = d.hw["tcp_segments_out"] + d.hw["sctp_packets_out"]
		received = d.hw["tcp_segments_in"] + d.hw["sctp_packets_in"]
	}
	return map[string]uint64{
		"port_xmit_data":    (d.hw["sent_octets"] + d.hw["served_octets"]) / 4,
		"port_rcv_data":     (d.hw["received_octets"] + d.hw["read_octets"]) / 4,
		"port_xmit_packets": sent,
		"port_rcv_packets":  received,
		"port_rcv_errors": d.hw["drop_bad_icrc"] + d.hw["drop_bad_checksum"] +
			d.hw["sctp_bad_checksums"],
	}
}

// Interfaces are network interfaces of the kernel's, by their addresses.
type Interfaces map[netip.Addr]string

// HostInterfaces are those that getifaddrs(3) tells programs of in place of a device's own: they
// are up, and not the loopback interface.
func HostInterfaces() Interfaces {
	list, err := net.Interfaces()
	if err != nil {
		return nil
	}
	host := make(Interfaces)
	for _, i := range list {
		addrs, err := i.Addrs()
		if err != nil || i.Flags&net.FlagUp == 0 || i.Flags&net.FlagLoopback != 0 {
			continue
		}
		for _, a := range addrs {
			if p, err := netip.ParsePrefix(a.String()); err == nil {
				host[p.Addr().Unmap()] = i.Name
			}
		}
	}
	return host
}

// Ask makes the Tree of the devices of a daemon: one, or all for "". host are the interfaces that
// programs see.
func Ask(src Source, only string, host Interfaces) (Tree, error) {
	devices, err := askDevices(src, only)
	if err != nil {
		return nil, err
	}
	for i := range devices {
		d := &devices[i]
		d.netdev = d.Name
		for _, a := range d.Addrs {
			if name := host[a.Addr()]; name != "" {
				d.netdev = name
				break
			}
		}
	}
	if err := askGIDs(src, devices); err != nil {
		return nil, err
	}
	if err := askCounters(src, devices); err != nil {
		return nil, err
	}
	return newTree(devices), nil
}

// usable refuses names that are no names of a file.
func usable(name string) bool {
	return name != "" && name != "." && name != ".." && !strings.ContainsAny(name, "/\x00\n")
}

// maxGIDs bounds what is believed of a daemon.
const maxGIDs = 1024

func askDevices(src Source, only string) (devices []device, err error) {
	rows, err := src.List("dev")
	if err != nil {
		return nil, err
	}
	for _, row := range rows {
		d := device{gids: make(map[int][16]byte)}
		if err := json.Unmarshal(row, &d); err != nil {
			return nil, fmt.Errorf("the daemon's row of a device: %w", err)
		}
		if usable(d.Name) && (only == "" || d.Name == only) {
			d.GIDs = min(d.GIDs, maxGIDs)
			devices = append(devices, d)
		}
	}
	return devices, nil
}

// find is the device of a row, or nil.
func find(devices []device, name string) *device {
	i := slices.IndexFunc(devices, func(d device) bool { return d.Name == name })
	if i < 0 {
		return nil
	}
	return &devices[i]
}

func askGIDs(src Source, devices []device) error {
	rows, err := src.List("gid")
	if err != nil {
		return err
	}
	for _, row := range rows {
		var g struct {
			Dev   string     `json:"dev"`
			Index int        `json:"index"`
			GID   netip.Addr `json:"gid"`
		}
		if err := json.Unmarshal(row, &g); err != nil {
			return fmt.Errorf("the daemon's row of a GID: %w", err)
		}
		if d := find(devices, g.Dev); d != nil {
			d.gids[g.Index] = g.GID.As16()
		}
	}
	for i := range devices {
		if d := &devices[i]; !d.roce() { // the MAC address is its only one
			var gid [16]byte
			m := d.mac()
			copy(gid[:], m[:])
			d.gids[0] = gid
		}
	}
	return nil
}

func askCounters(src Source, devices []device) error {
	rows, err := src.Stat()
	if err != nil {
		return err
	}
	for _, raw := range rows {
		var row map[string]any
		if err := json.Unmarshal(raw, &row); err != nil {
			return fmt.Errorf("the daemon's row of counters: %w", err)
		}
		name, _ := row["dev"].(string)
		d := find(devices, name)
		if d == nil {
			continue
		}
		switch n := numbers(raw); row["kind"] {
		case "dev":
			if len(n) > 0 {
				d.hw = n
			}
		case "cm":
			d.messages = byMessage(n)
		}
	}
	return nil
}

// numbers are the counters of a row.
func numbers(raw json.RawMessage) map[string]uint64 {
	var row map[string]json.RawMessage
	_ = json.Unmarshal(raw, &row) // it was an object before
	out := make(map[string]uint64)
	for name, value := range row {
		var n uint64
		if usable(name) && json.Unmarshal(value, &n) == nil {
			out[name] = n
		}
	}
	return out
}

// byMessage makes cm_rx_msgs/req of cm_rx_msgs_req.
func byMessage(n map[string]uint64) map[string]uint64 {
	out := make(map[string]uint64)
	for name, value := range maps.All(n) {
		for _, dir := range []string{"cm_rx_msgs", "cm_rx_duplicates", "cm_tx_msgs", "cm_tx_retries"} {
			if kind, ok := strings.CutPrefix(name, dir+"_"); ok {
				out[dir+"/"+kind] = value
			}
		}
	}
	return out
}
