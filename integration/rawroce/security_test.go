package rawroce_test

import (
	"context"
	"math/rand/v2"
	"net/netip"
	"runtime"
	"testing"
	"time"

	"github.com/vrnic/vrnic/integration/rawhost"
	"github.com/vrnic/vrnic/lab/rawroce"
	"github.com/vrnic/vrnic/netstack/netstacktest"
	"github.com/vrnic/vrnic/rdma"
	"github.com/vrnic/vrnic/roce/mad"
	"github.com/vrnic/vrnic/vnic"
	"github.com/vrnic/vrnic/vnic/vnictest"
)

const (
	gsiQKey  = 0x80010000
	service  = 0x0000000001061d2f // port 7471 of RDMA_PS_TCP
	peerGUID = 0x1122334455667788
)

// A manager is the raw peer as another device's connection manager.
type manager struct {
	*rig
	conn *conn // by which the device shows that it is well
	psn  uint32
	id   uint32 // of the last question
}

func newManager(t *testing.T) *manager {
	r := newRig(t)
	return &manager{rig: r, conn: r.connect(rdma.RC, 0, rdma.QPRTS)}
}

// datagram is a packet of a UD QP's to another.
func (m *manager) datagram(from netip.Addr, to, source, qkey uint32, payload []byte) []byte {
	m.psn++
	return rawroce.Packet{Src: from, Dst: rawAddrs(1)[0], Opcode: rawroce.UDSendOnly, QPN: to,
		PSN: m.psn, Ext: rawroce.DETH(qkey, source), Payload: payload}.Bytes()
}

// says sends a message of connection management from an address.
func (m *manager) says(from netip.Addr, msg mad.Message) {
	m.raw.Send(m.st.MAC(), m.datagram(from, 1, 1, gsiQKey, mad.Append(nil, 0xabcdef, msg)))
}

// heard is the next message of the device's, that must go to an address of the peer's.
func (m *manager) heard() (to netip.Addr, msg mad.Message) {
	m.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	p, err := m.raw.Next(ctx)
	if err != nil {
		m.Fatalf("no message: %v", err)
	}
	if p.Opcode != rawroce.UDSendOnly || p.QPN != 1 {
		m.Fatalf("%v is no message", p)
	}
	if _, msg, err = mad.Parse(p.Payload); err != nil {
		m.Fatal(err)
	}
	return p.Dst, msg
}

// req is a REQ that is right, from the peer's address.
func (m *manager) req(id, qpn uint32) *mad.REQ {
	head := mad.Address{Source: rawAddrs(9)[0], Dest: rawAddrs(1)[0], Port: 4000}
	return &mad.REQ{
		LocalID: id, ServiceID: service, GUID: peerGUID, QPN: qpn, ResponderResources: 4,
		InitiatorDepth: 4, RemoteCMTimeout: 20, LocalCMTimeout: 20, StartingPSN: 7, Retries: 7,
		RNRRetries: 7, PKey: 0xffff, PathMTU: 3, MaxCMRetries: 15, PrivateData: head.Append(nil),
		Primary: mad.Path{LocalGID: mad.GIDOf(head.Source), RemoteGID: mad.GIDOf(head.Dest),
			ACKTimeout: 19, HopLimit: 64},
	}
}

// from is q as if it came from another address, in all that it says.
func from(a netip.Addr, q *mad.REQ) *mad.REQ {
	head := mad.Address{Source: a, Dest: rawAddrs(1)[0], Port: 4000}
	q.Primary.LocalGID, q.PrivateData = mad.GIDOf(a), head.Append(nil)
	return q
}

// RCM-002, 003, ROCE-212: QP 0 is nobody's, QP 1 takes what has its Q_Key and comes from a QP 1,
// and neither says a word to anything else; the numbers below those of programs are nobody's, too.
func TestManagementQPs(t *testing.T) {
	m := newManager(t)
	probe := mad.Append(nil, 1, &mad.DREQ{LocalID: 1, RemoteID: 2}) // is answered by a DREP
	for _, x := range []struct {
		what             string
		to, source, qkey uint32
	}{
		{"to QP 0", 0, 0, 0}, {"to QP 0 from QP 1", 0, 1, gsiQKey}, {"to QP 0 from a program", 0, 99, 5},
		{"another Q_Key", 1, 1, 0x80010001}, {"no Q_Key", 1, 1, 0},
		{"from a program's QP", 1, 99, gsiQKey}, {"from QP 0", 1, 0, gsiQKey},
		{"to QP 2", 2, 1, gsiQKey}, {"to QP 15", 15, 1, gsiQKey},
		{"to the number of groups", 0xffffff, 1, gsiQKey},
	} {
		m.raw.Send(m.st.MAC(), m.datagram(m.raw.Addrs[0], x.to, x.source, x.qkey, probe))
		m.conn.clean(x.what)
	}
	for _, n := range []int{0, 1, 23, 24, 255, 257, 512, 1200} { // lengths that no message has
		long := append(probe[:min(n, 256)], make([]byte, max(n-256, 0))...)
		m.raw.Send(m.st.MAC(), m.datagram(m.raw.Addrs[0], 1, 1, gsiQKey, long))
		m.conn.clean("a message that has another length")
	}
	m.raw.Send(m.st.MAC(), m.datagram(m.raw.Addrs[0], 1, 1, gsiQKey, probe))
	if _, msg := m.heard(); msg.Attribute() != mad.AttrDREP {
		t.Errorf("QP 1 says %T to a DREQ", msg)
	}
}

// ROCE-207, 208, 209: a flood of REQs with sources and ids of all kinds takes a bounded amount of
// memory and draws no storm, and programs connect meanwhile, and find their connections as they
// were.
func TestREQFlood(t *testing.T) {
	m := newManager(t)
	host := vnictest.Open(t, m.ctx.Device(), vnic.ContextConfig{})
	l, err := host.Listen(netip.AddrPortFrom(rawAddrs(1)[0], 7471), 0)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	n := 10000
	if netstacktest.RaceEnabled || testing.Short() {
		n = 2000
	}
	random := rand.New(rand.NewPCG(1, 2))
	flood := func(n int) {
		for i := range n {
			a := rawAddrs(9)[0]
			switch i % 4 {
			case 0: // a neighbour's, mostly of nobody
				a = netip.AddrFrom4([4]byte{10, 77, 0, byte(16 + random.IntN(200))})
			case 1, 2: // behind a router that is not there
				a = netip.AddrFrom4([4]byte{10, 78, byte(i), byte(random.IntN(250))})
			}
			m.says(a, from(a, m.req(random.Uint32(), 16+random.Uint32N(1<<24-17))))
		}
	}
	flood(n / 10) // all that there is room for
	heap := func() int64 {
		runtime.GC()
		var s runtime.MemStats
		runtime.ReadMemStats(&s)
		return int64(s.HeapAlloc)
	}
	before := heap()
	flood(n)
	if grown := heap() - before; grown > 4<<20 {
		t.Errorf("%d more REQs: the heap has grown by %d octets", n, grown)
	}
	i := m.ctx.Device().DevInfo()
	if i.Pending > 1024 || i.Pending < 100 || i.Refused.Backlog+i.Refused.Peer == 0 {
		t.Errorf("%d requests wait, refused %+v", i.Pending, i.Refused)
	}
	drawn := 0
	for _, ok, err := m.raw.Take(); ok; _, ok, err = m.raw.Take() {
		if err != nil {
			t.Fatal(err)
		}
		drawn++
	}
	if drawn > n/100 {
		t.Errorf("%d REQs have drawn %d packets", n+n/10, drawn)
	}
	m.conn.clean("a flood of REQs")

	// A program of the device connects to one at another station, and one there to this.
	_, other := m.device(2)
	for _, from := range []*vnic.Context{m.ctx, other} {
		to := other
		if from == other {
			to = m.ctx
		}
		m.connects(vnictest.NewPeer(t, from, vnictest.PeerConfig{}),
			vnictest.NewPeer(t, to, vnictest.PeerConfig{}))
	}
}

// connects connects two programs by their connection managers, and has one write to the other.
func (m *manager) connects(x, y *vnictest.Peer) {
	m.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	l, err := y.Ctx.Listen(netip.AddrPortFrom(y.Ctx.Attr().Addrs[0].Addr(), 4711), 0)
	if err != nil {
		m.Fatal(err)
	}
	defer l.Close()
	done := make(chan error, 1)
	go func() {
		r, err := l.Next(ctx)
		if err == nil {
			y.Conn, err = r.Accept(ctx, y.QP, rdma.ConnParam{})
		}
		done <- err
	}()
	if x.Conn, err = x.Ctx.Connect(ctx, x.QP, l.Addr(), rdma.ConnParam{}); err != nil {
		m.Fatalf("in a flood of REQs: %v", err)
	}
	if err := <-done; err != nil {
		m.Fatal(err)
	}
}

// silent wants that nothing was said since the last message that was heard: what is said to a
// question comes next.
func (m *manager) silent(what string) {
	m.Helper()
	m.id++
	m.says(m.raw.Addrs[0], &mad.DREQ{LocalID: m.id, RemoteID: ^m.id})
	if _, msg := m.heard(); msg.Attribute() != mad.AttrDREP || msg.(*mad.DREP).RemoteID != m.id {
		m.Errorf("%s: the device says %T %+v", what, msg, msg)
	}
}

// ROCE-214, 215, 216, RCM-044, 050: what is said of a connection, or of what is to be one, counts
// only from the address of its peer, with all numbers right; and answers go to the address that a
// packet has come from, whatever it says of others.
func TestForgedMessages(t *testing.T) {
	m := newManager(t)
	forger := m.peer(8)
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	p := vnictest.NewPeer(t, m.ctx, vnictest.PeerConfig{})
	l, err := m.ctx.Listen(netip.AddrPortFrom(rawAddrs(1)[0], 7471), 0)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	lies := m.req(1, 100)
	head := mad.Address{Source: forger.Addrs[0], Dest: rawAddrs(1)[0], Port: 1}
	lies.PrivateData = head.Append(nil)
	m.says(m.raw.Addrs[0], lies)
	if to, msg := m.heard(); to != m.raw.Addrs[0] || msg.Attribute() != mad.AttrREJ {
		t.Errorf("a REQ that says it is from elsewhere: %T to %v", msg, to)
	}

	m.says(m.raw.Addrs[0], m.req(2, 200))
	r, err := l.Next(ctx)
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() {
		var err error
		p.Conn, err = r.Accept(ctx, p.QP, rdma.ConnParam{})
		done <- err
	}()
	_, msg := m.heard()
	rep, ok := msg.(*mad.REP)
	if !ok || rep.RemoteID != 2 {
		t.Fatalf("a REQ that is right: %T %+v", msg, msg)
	}
	say := func(from *rawhost.Station, msg mad.Message) {
		from.Send(m.st.MAC(), m.datagram(from.Addrs[0], 1, 1, gsiQKey, mad.Append(nil, 9, msg)))
	}
	say(forger, &mad.RTU{LocalID: 2, RemoteID: rep.LocalID})
	say(forger, &mad.REJ{LocalID: 2, RemoteID: rep.LocalID, About: mad.AboutREP, Reason: 28})
	say(m.raw, &mad.RTU{LocalID: 3, RemoteID: rep.LocalID})
	m.silent("RTUs and a REJ of others")
	select {
	case err := <-done:
		t.Fatalf("others have ended the set-up: %v", err)
	default:
	}
	say(m.raw, &mad.RTU{LocalID: 2, RemoteID: rep.LocalID})
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	bye := &mad.DREQ{LocalID: 2, RemoteID: rep.LocalID, RemoteQPN: rep.QPN}
	wrong := *bye
	wrong.RemoteQPN ^= 1
	say(forger, bye)
	say(forger, &mad.REJ{LocalID: 2, RemoteID: rep.LocalID, About: mad.AboutOther, Reason: 28})
	say(forger, &mad.DREP{LocalID: 2, RemoteID: rep.LocalID})
	say(m.raw, &wrong)
	m.silent("DREQs of others, and with another QPN")
	select {
	case <-p.Conn.Done():
		t.Fatal("others have ended the connection")
	default:
	}
	say(m.raw, bye)
	if _, msg := m.heard(); msg.Attribute() != mad.AttrDREP {
		t.Errorf("the peer's own DREQ: %T", msg)
	}
	<-p.Conn.Done()
	if q, ok, _ := forger.Take(); ok {
		t.Errorf("the forger is told %v", q)
	}
}

// ROCE-160, ROCE-198: keys that are next to one that is right, those of a region that is gone, and
// those of another protection domain are all refused alike, with nothing written.
func TestGuessedKeys(t *testing.T) {
	r := newRig(t)
	gone := vnictest.NewPeer(t, r.ctx, vnictest.PeerConfig{})
	old := gone.MR.RKey()
	if err := gone.MR.Close(); err != nil {
		t.Fatal(err)
	}
	other := vnictest.NewPeer(t, r.ctx, vnictest.PeerConfig{})
	for what, k := range map[string]func(right uint32) uint32{
		"the next one":    func(k uint32) uint32 { return k + 1 },
		"another octet":   func(k uint32) uint32 { return k ^ 0x80 },
		"the next index":  func(k uint32) uint32 { return k + 0x100 },
		"0":               func(uint32) uint32 { return 0 },
		"a region's gone": func(uint32) uint32 { return old },
		"another PD's":    func(uint32) uint32 { return other.MR.RKey() },
	} {
		c := r.connect(rdma.RC, 0, rdma.QPRTS)
		p := c.write()
		p.Ext = rawroce.RETH(c.MR.Addr(), k(c.MR.RKey()), 4)
		c.octets(p.Bytes())
		if a := c.next(); a.Opcode != rawroce.Ack || a.Syndrome() != 0x62 || a.PSN != c.psn&0xffffff {
			t.Errorf("%s: %v, want a NAK of the access", what, a)
		}
		if string(c.Buf[:4]) == "good" || string(other.Buf[:4]) == "good" {
			t.Errorf("%s: was written", what)
		}
	}
}
