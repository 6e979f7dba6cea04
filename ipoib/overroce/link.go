// Package overroce carries an ipoib.Interface over a device of RoCE: resolution, groups and
// datagrams by a UD queue pair, connections by RC queue pairs that the connection manager's own
// messages make, or by those of a device of iWARP, one stream for each neighbour. What the host
// sends and gets goes through a Host, such as a TUN device.
//
// A goroutine reads the host's packets and posts each, where it lies, as the Interface says. One of
// each device takes what comes, one what has been sent. A last one does all else: it asks for
// connections and joins groups, hears of events, and watches the time; what may wait for the
// network it leaves to goroutines of a bounded number.
package overroce

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"sync"
	"time"

	"github.com/vrnic/vrnic/ipoib"
	"github.com/vrnic/vrnic/rdma"
	"github.com/vrnic/vrnic/vnic"
)

// A Host is where the IP packets come from and go to.
type Host interface {
	// Read waits for a packet, and reads it into b.
	Read(b []byte) (int, error)
	// More reports whether Read will find a packet at once. It is of the goroutine that reads.
	More() bool
	Write(p []byte) (int, error)
	// Close ends a Read that waits.
	Close() error
}

// A Config describes a Link.
type Config struct {
	Name   string
	Device *vnic.Device // of RoCE
	// Streams is the device of iWARP that carries connections, nil: Device does. Both have the same
	// addresses. SCTP has streams that this end begins be of SCTP, not of TCP.
	Streams *vnic.Device
	SCTP    bool
	// Addrs are the interface's, LinkLocal among them if it has IPv6.
	Addrs []netip.Prefix
	// Connected has it make and take connections. MTU is the longest IP packet; in datagrams it is
	// LinkMTU at most.
	Connected    bool
	MTU, LinkMTU int
	PKey         uint16
	QKey         uint32
	Scope        uint8
	Log          *slog.Logger // nil: none
}

// Defaults, and bounds.
const (
	DefaultMTU   = 2044       // RFC 4391, section 7
	MaxMTU       = 65520      // of connections: as Linux has it
	DefaultPKey  = 0xffff     // the full members of the default partition
	DefaultQKey  = 0x80000b1b // controlled: programs without privilege cannot send to it
	DefaultScope = 2          // the link
)

// gidIndex is of the port's link-local address: its subnet prefix and GUID
// (docs/decisions.md#I1).
const gidIndex = 0

// LinkLocal is the link-local address of an interface over a device: of the port's GUID, which is
// the modified EUI-64 in its first GID.
func LinkLocal(d *vnic.Device) (netip.Prefix, error) {
	e, err := d.GID(gidIndex)
	if err != nil {
		return netip.Prefix{}, err
	}
	var guid uint64
	for _, b := range e.GID[8:] {
		guid = guid<<8 | uint64(b)
	}
	return netip.PrefixFrom(ipoib.LinkLocal(ipoib.InterfaceID(guid, true)), 64), nil
}

// A Link is a running interface.
type Link struct {
	cfg  Config
	log  *slog.Logger
	host Host
	life context.Context
	end  context.CancelFunc
	wg   sync.WaitGroup

	sides     []*side // of datagrams first
	connSide  *side   // of connections
	gidIndex  uint8   // of the port's GID
	ud        *sender
	srq       rdma.SRQ // nil without connections
	carrier   carrier  // nil without connections
	slots     *slots
	datagrams *receives
	connected *receives
	ways      *ways

	mu    sync.Mutex
	iface *ipoib.Interface  // +checklocks:mu
	byQPN map[uint32]*conn  // +checklocks:mu
	lost  Drops             // +checklocks:mu
	news  []news            // +checklocks:mu
	wake  chan struct{}     // one slot: there is something for the goroutine that manages
	conns map[attempt]*conn // of that goroutine
}

// Drops count what the carrier has dropped.
type Drops struct {
	NoBuffer uint64 // all buffers for sending were in use
	NoRoute  uint64 // nobody reaches the neighbour's port, or too many are looked for
	Refused  uint64 // the queue pair did not take it
	Host     uint64 // the host did not take it
}

// New makes a Link of c, whose host's packets go through host, which it closes.
func New(c Config, host Host) (*Link, error) {
	l := &Link{cfg: c, log: c.Log, host: host, byQPN: map[uint32]*conn{}, wake: make(chan struct{}, 1),
		conns: map[attempt]*conn{}}
	if l.log == nil {
		l.log = slog.New(slog.DiscardHandler)
	}
	l.log = l.log.With("ipoib", c.Name)
	l.life, l.end = context.WithCancel(context.Background())
	l.ways = newWays(l)
	err := l.open()
	if err == nil {
		err = l.begin()
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("ipoib: %s: %w", c.Name, err), l.Close())
	}
	l.wg.Go(l.manage)
	for _, s := range l.sides {
		l.wg.Go(func() { l.complete(s) })
		l.wg.Go(func() { l.receive(s) })
	}
	return l, nil
}

// begin makes the Interface, and listens for connections.
func (l *Link) begin() error {
	c := &l.cfg
	own := ipoib.LinkAddr{QPN: l.ud.Num()}
	var err error
	if l.gidIndex, own.GID, err = l.findGID(); err != nil {
		return err
	}
	l.mu.Lock()
	l.iface = ipoib.New(ipoib.Config{QPN: own.QPN, GID: own.GID, Addrs: c.Addrs, PKey: c.PKey,
		Scope: c.Scope, LinkMTU: c.LinkMTU, Connected: c.Connected, MTU: c.MTU})
	l.mu.Unlock()
	l.rouse()
	if !c.Connected {
		return nil
	}
	return l.listen(own)
}

// listen makes the carrier.
func (l *Link) listen(own ipoib.LinkAddr) error {
	if l.cfg.Streams != nil {
		s, err := newStreams(l, own)
		if err == nil {
			l.carrier = s
		}
		return err
	}
	s, err := newService(l, own)
	if err == nil {
		l.carrier = s
	}
	return err
}

// findGID is the port's GID: the link-local address, or if connections are streams the first IPv6
// address that streams go to.
func (l *Link) findGID() (index uint8, g ipoib.GID, err error) {
	_, n := l.cfg.Device.RoCEPort()
	for index = range uint8(n) {
		e, err := l.cfg.Device.GID(int(index))
		if err != nil {
			return 0, g, err
		}
		g = ipoib.GID(e.GID)
		if a := g.Addr(); l.cfg.Streams == nil || !a.Is4In6() && !a.IsLinkLocalUnicast() {
			return index, g, nil
		}
	}
	return 0, g, errors.New("the device has no IPv6 address, which streams of neighbours go to")
}

// rouse has the goroutine that manages look.
func (l *Link) rouse() {
	select {
	case l.wake <- struct{}{}:
	default:
	}
}

// pendingLocked is what who has called iface does last.
//
// +checklocks:l.mu
func (l *Link) pendingLocked() {
	if l.iface.Pending() {
		l.rouse()
	}
}

// Close ends the connections, leaves the groups and closes the host.
func (l *Link) Close() error {
	l.end()
	if l.carrier != nil {
		l.carrier.close()
	}
	err := l.host.Close()
	l.wg.Wait()
	l.shutDown()
	for _, s := range l.sides {
		<-s.ctx.Done()
	}
	return err
}

// shutDown ends what the Link has of devices: nobody waits for the network any longer.
func (l *Link) shutDown() {
	for _, s := range l.sides {
		s.ctx.Shutdown()
	}
}

// Info is what tools show of a Link.
type Info struct {
	Config     Config
	Addr       ipoib.LinkAddr
	Stats      ipoib.Stats
	Drops      Drops
	Neighbours []ipoib.NeighbourInfo
}

// Info says how l is.
func (l *Link) Info() Info {
	l.mu.Lock()
	defer l.mu.Unlock()
	return Info{Config: l.cfg, Addr: l.iface.Addr(), Stats: l.iface.Stats(), Drops: l.lost,
		Neighbours: l.iface.Neighbours(time.Now())}
}
