package capture

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"time"
)

// A QP is a queue pair as `vrnic show qp` has it.
type QP struct {
	Dev string
	Num uint32
	Who string // the program's name and number

	// Of iWARP, while it is connected: what of, and between whom.
	Transport     string // tcp, sctp or loop; maybe with +roi
	Local, Remote netip.AddrPort
	Markers       string // which side's octets have those of MPA: in, out or both
	Stream        uint16 // of SCTP

	// Of RoCE: the peer's queue pair and the number of the first packet to it; nil: not yet.
	Dest, SQPSN *uint32
}

func (q *QP) String() string { return fmt.Sprintf("QP %d of %s (%s)", q.Num, q.Dev, q.Who) }

// A Table does not ask again for queue pairs until relist has passed, and patience times as long as
// it took.
const (
	relist   = 10 * time.Millisecond
	patience = 10
)

// maxKnown bounds a Table, which keeps what has gone.
const maxKnown = 1 << 16

// flow is a connection as packets of it have it, from one end.
type flow struct{ local, remote netip.AddrPort }

type numbered struct {
	addr netip.Addr
	num  uint32
}

// A Table knows which queue pairs packets are of.
type Table struct {
	list func() ([]json.RawMessage, error)
	now  func() time.Time
	next time.Time // before it nobody is asked

	byDev  map[string][]netip.Addr // addresses
	byName map[name]*QP            // as it was listed last
	byFlow map[flow]*QP            // of iWARP
	byNum  map[numbered]*QP        // of RoCE: the device's address, its number
	byPeer map[[2]numbered]*QP     // of RoCE: the device's address, and the peer's with number
}

// NewTable is a table of what list, the rows of queue pairs, gives. addrs are the addresses of each
// device.
func NewTable(addrs map[string][]netip.Addr, list func() ([]json.RawMessage, error),
	now func() time.Time) *Table {
	t := &Table{list: list, now: now, byDev: addrs}
	t.forget()
	return t
}

func (t *Table) forget() {
	t.byFlow, t.byNum = make(map[flow]*QP), make(map[numbered]*QP)
	t.byPeer, t.byName = make(map[[2]numbered]*QP), make(map[name]*QP)
}

type name struct {
	dev string
	num uint32
}

// QP is queue pair num of a device, as it is now or was a moment ago; nil: nobody knows it.
func (t *Table) QP(dev string, num uint32) (*QP, error) {
	err := t.refresh()
	return t.byName[name{dev, num}], err
}

// A row is what is used of a row of `vrnic show qp`.
type row struct {
	Dev           string
	QPN           uint32
	PID           int
	Comm          string
	Local, Remote *string
	Dest          *uint32 `json:"dest_qpn"`
	SQPSN         *uint32 `json:"sq_psn"`
	Type          string
	Transport     string
	Markers       string
	Stream        uint16
}

// refresh asks for the queue pairs, unless it has just done so. What has gone stays known: its last
// packets come later.
func (t *Table) refresh() error {
	began := t.now()
	if began.Before(t.next) {
		return nil
	}
	rows, err := t.list()
	took := t.now().Sub(began)
	t.next = began.Add(took + max(relist, patience*took))
	if err != nil {
		return err
	}
	if len(t.byFlow)+len(t.byNum) > maxKnown {
		t.forget()
	}
	for _, raw := range rows {
		var r row
		if err := json.Unmarshal(raw, &r); err != nil {
			return fmt.Errorf("the daemon sent a broken row: %w", err)
		}
		t.add(&r)
	}
	return nil
}

func (t *Table) add(r *row) {
	q := &QP{Dev: r.Dev, Num: r.QPN, Who: fmt.Sprintf("%s, pid %d", r.Comm, r.PID),
		Transport: r.Transport, Markers: r.Markers, Stream: r.Stream,
		Dest: r.Dest, SQPSN: r.SQPSN}
	t.byName[name{r.Dev, r.QPN}] = q
	if r.Type == "" { // iWARP
		if r.Local == nil || r.Remote == nil {
			return
		}
		local, err := netip.ParseAddrPort(*r.Local)
		remote, rerr := netip.ParseAddrPort(*r.Remote)
		if err == nil && rerr == nil {
			q.Local, q.Remote = local, remote
			t.byFlow[flow{local, remote}] = q
		}
		return
	}
	for _, a := range t.byDev[r.Dev] {
		t.byNum[numbered{a, r.QPN}] = q
		if r.Dest == nil || r.Remote == nil {
			continue
		}
		if peer, err := netip.ParseAddr(*r.Remote); err == nil {
			t.byPeer[[2]numbered{{addr: a}, {peer.Unmap(), *r.Dest}}] = q
		}
	}
}

// Find is the queue pairs that p comes from and goes to, as far as they are this daemon's; nil: it
// is not, or nobody knows.
func (t *Table) Find(p *Parsed) (from, to *QP, err error) {
	if !p.Verbs() {
		return nil, nil, nil
	}
	if from, to = t.find(p); from == nil && to == nil {
		if err := t.refresh(); err != nil {
			return nil, nil, err
		}
		from, to = t.find(p)
	}
	return from, to, nil
}

func (t *Table) find(p *Parsed) (from, to *QP) {
	if p.BTH == nil {
		return t.byFlow[flow{p.Src, p.Dst}], t.byFlow[flow{p.Dst, p.Src}]
	}
	src, dst := p.Src.Addr(), p.Dst.Addr()
	to = t.byNum[numbered{dst, p.BTH.Dest}]
	if p.BTH.Src != 0 {
		return t.byNum[numbered{src, p.BTH.Src}], to
	}
	return t.byPeer[[2]numbered{{addr: src}, {dst, p.BTH.Dest}}], to
}
