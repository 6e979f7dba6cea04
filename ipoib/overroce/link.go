// Package overroce carries an ipoib.Interface over a device of RoCE: resolution, groups and
// datagrams by a UD queue pair, connections by RC queue pairs that the connection manager's own
// messages make. What the host sends and gets goes through a Host, such as a TUN device.
//
// A goroutine reads the host's packets and posts each, where it lies, as the Interface says. One
// takes what comes, one what has been sent. A fourth does all else: it asks for connections and
// joins groups, hears of events, and watches the time; what may wait for the network it leaves to
// goroutines of a bounded number.
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
	Write(p []byte) (int, error)
	// Close ends a Read that waits.
	Close() error
}

// A Config describes a Link.
type Config struct {
	Name   string
	Device *vnic.Device // of RoCE
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
	ctx  *vnic.Context
	life context.Context
	end  context.CancelFunc
	wg   sync.WaitGroup

	pd        rdma.PD
	sendCQ    rdma.CQ
	recvCQ    rdma.CQ
	ud        rdma.QP
	srq       rdma.SRQ // nil without connections
	listener  *vnic.ServiceListener
	slots     *slots
	datagrams *receives
	connected *receives
	ways      *ways

	mu    sync.Mutex
	iface *ipoib.Interface            // +checklocks:mu
	byQPN map[uint32]*conn            // +checklocks:mu
	lost  Drops                       // +checklocks:mu
	news  []news                      // +checklocks:mu
	wake  chan struct{}               // one slot: there is something for the goroutine that manages
	conns map[*vnic.ServiceConn]*conn // of that goroutine
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
		conns: map[*vnic.ServiceConn]*conn{}}
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
	l.wg.Go(l.complete)
	l.wg.Go(l.receive)
	return l, nil
}

// open makes the queues and the memory.
func (l *Link) open() error {
	var err error
	if l.ctx, err = l.cfg.Device.Open(vnic.ContextConfig{
		Comm: "ipoib " + l.cfg.Name, Privileged: true, OnAsync: l.happened,
	}); err != nil {
		return err
	}
	if l.pd, err = l.ctx.AllocPD(); err != nil {
		return err
	}
	if l.slots, err = newSlots(l.pd, ipoib.HeaderLen+l.cfg.MTU); err != nil {
		return err
	}
	l.datagrams, err = newReceives(l.pd, rdma.NetworkHeaderLen+ipoib.HeaderLen+l.cfg.LinkMTU, 0)
	if err != nil {
		return err
	}
	depth := l.datagrams.n
	if l.cfg.Connected {
		if l.connected, err = newReceives(l.pd, ipoib.HeaderLen+l.cfg.MTU, connectedID); err != nil {
			return err
		}
		depth += l.connected.n
		if l.srq, err = l.pd.CreateSRQ(rdma.SRQConfig{MaxWR: l.connected.n, MaxSGE: 1}); err != nil {
			return err
		}
		if err := l.connected.postAll(l.srq); err != nil {
			return err
		}
	}
	if l.sendCQ, err = l.ctx.CreateCQ(l.slots.n); err != nil {
		return err
	}
	if l.recvCQ, err = l.ctx.CreateCQ(depth); err != nil {
		return err
	}
	l.slots.cq = l.sendCQ
	return l.openUD()
}

// openUD makes the UD queue pair.
func (l *Link) openUD() (err error) {
	l.ud, err = l.pd.CreateQP(rdma.QPConfig{Type: rdma.UD, SendCQ: l.sendCQ, RecvCQ: l.recvCQ,
		MaxSendWR: l.slots.n, MaxRecvWR: l.datagrams.n, MaxSendSGE: 1, MaxRecvSGE: 1, SignalAll: true})
	if err != nil {
		return err
	}
	for _, step := range []struct {
		to   rdma.QPState
		mask rdma.QPAttrMask
	}{
		{rdma.QPInit, rdma.AttrPKeyIndex | rdma.AttrPort | rdma.AttrQKey},
		{rdma.QPRTR, 0},
		{rdma.QPRTS, rdma.AttrSQPSN},
	} {
		a := rdma.QPAttr{State: step.to, Port: 1, QKey: l.cfg.QKey}
		if err := l.ud.Modify(&a, rdma.AttrState|step.mask); err != nil {
			return err
		}
		if step.to == rdma.QPInit {
			if err := l.datagrams.postAll(l.ud); err != nil {
				return err
			}
		}
	}
	return nil
}

// begin makes the Interface, and listens for connections.
func (l *Link) begin() error {
	e, err := l.cfg.Device.GID(gidIndex)
	if err != nil {
		return err
	}
	c := &l.cfg
	l.mu.Lock()
	l.iface = ipoib.New(ipoib.Config{QPN: l.ud.Num(), GID: ipoib.GID(e.GID), Addrs: c.Addrs,
		PKey: c.PKey, Scope: c.Scope, LinkMTU: c.LinkMTU, Connected: c.Connected, MTU: c.MTU})
	l.mu.Unlock()
	l.rouse()
	if !c.Connected {
		return nil
	}
	l.listener, err = l.ctx.ListenService(ipoib.ServiceID(l.ud.Num()), requestBacklog, l.told)
	return err
}

// requestBacklog is how many requests for connections wait for an answer.
const requestBacklog = 64

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
	if l.listener != nil {
		l.listener.Close()
	}
	err := l.host.Close()
	l.wg.Wait()
	if l.ctx != nil {
		l.ctx.Shutdown()
		<-l.ctx.Done()
	}
	return err
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
