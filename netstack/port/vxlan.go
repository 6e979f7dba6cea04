package port

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/vrnic/vrnic/netstack/frame"
)

// VXLANPort is the UDP port that is assigned to VXLAN (RFC 7348, section 5).
const VXLANPort = 4789

// VXLANConfig describes a port whose link is a segment of VXLAN (RFC 7348): Ethernet in datagrams
// between hosts, as Linux's and other switches have it.
type VXLANConfig struct {
	VNI   uint32 // of the segment, 24 bits
	Local netip.AddrPort
	// Remotes are the other ends. Nobody else is heard. What is for a station of which nobody has
	// heard, or for a group, each of them gets (section 4.2, without multicast).
	Remotes []netip.AddrPort
	Name    string // of the port on the switch; "": "vxlan:VNI"
}

const (
	vxlanHeaderLen = 8
	// vxlanFlagVNI says that a VNI is there; what else is in its octet is for later and ignored.
	vxlanFlagVNI = 0x08
	// MaxVNI is the largest number of a segment.
	MaxVNI = 1<<24 - 1
)

// Check says what cannot be.
func (c *VXLANConfig) Check() error {
	switch {
	case c.VNI > MaxVNI:
		return fmt.Errorf("VNI %d is larger than %d", c.VNI, MaxVNI)
	case len(c.Remotes) == 0:
		return fmt.Errorf("no remote end")
	}
	for i, r := range c.Remotes {
		switch {
		case r.Addr().Is4() != c.Local.Addr().Is4():
			return fmt.Errorf("%v and %v are not of one kind", c.Local.Addr(), r.Addr())
		case r.Addr() == c.Local.Addr():
			return fmt.Errorf("%v is at both ends", r.Addr())
		case slices.ContainsFunc(c.Remotes[:i], func(o netip.AddrPort) bool {
			return o.Addr() == r.Addr()
		}):
			return fmt.Errorf("the remote end %v is given twice", r.Addr())
		}
	}
	return nil
}

// putVXLAN writes the header of a segment.
func putVXLAN(b *[vxlanHeaderLen]byte, vni uint32) {
	binary.BigEndian.PutUint32(b[:], vxlanFlagVNI<<24)
	binary.BigEndian.PutUint32(b[4:], vni<<8)
}

// parseVXLAN is the frame in a datagram of the segment; false: there is none. The tag of a VLAN in
// it names one of another network (section 6.1).
func parseVXLAN(b []byte, vni uint32) (inner []byte, ok bool) {
	if len(b) < vxlanHeaderLen+frame.EtherHeaderLen || b[0]&vxlanFlagVNI == 0 ||
		binary.BigEndian.Uint32(b[4:])>>8 != vni {
		return nil, false
	}
	inner = b[vxlanHeaderLen:]
	return inner, !tagged(binary.BigEndian.Uint16(inner[12:]))
}

// tagged reports whether an EtherType is that of a VLAN's tag.
func tagged(etherType uint16) bool { return etherType == 0x8100 || etherType == 0x88a8 }

// vxlanOverhead is what surrounds the IP packet in a frame in a datagram.
func vxlanOverhead(outer netip.Addr) int {
	const udp = 8
	if outer.Is4() {
		return frame.IPv4MinLen + udp + vxlanHeaderLen + frame.EtherHeaderLen
	}
	return frame.IPv6Len + udp + vxlanHeaderLen + frame.EtherHeaderLen
}

const (
	// maxBehind is how many stations behind remote ends are known; those beyond get theirs by all.
	maxBehind = 8192
	// behindTime is for how long, as the switch does.
	behindTime = 5 * time.Minute
	// sweepEvery is how seldom a full table is looked through: a remote end that makes addresses up
	// has a frame for each.
	sweepEvery = time.Second
)

// behind knows which station is behind which remote end (section 4.1), by what they send.
type behind struct {
	now   func() time.Time
	mu    sync.Mutex
	at    map[frame.MAC]place // +checklocks:mu
	swept time.Time           // +checklocks:mu
}

type place struct {
	remote int
	seen   time.Time
}

// learn notes that a frame from mac has come from a remote end.
func (b *behind) learn(mac frame.MAC, remote int) {
	if mac.IsGroup() {
		return
	}
	now := b.now()
	b.mu.Lock()
	defer b.mu.Unlock()
	if _, known := b.at[mac]; !known && len(b.at) >= maxBehind {
		if now.Sub(b.swept) < sweepEvery {
			return
		}
		b.swept = now
		for m, p := range b.at {
			if now.Sub(p.seen) > behindTime {
				delete(b.at, m)
			}
		}
		if len(b.at) >= maxBehind {
			return
		}
	}
	b.at[mac] = place{remote, now}
}

// find is the remote end of a station; false: it is not known.
func (b *behind) find(mac frame.MAC) (remote int, known bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	p, known := b.at[mac]
	return p.remote, known && b.now().Sub(p.seen) <= behindTime
}
