package record

import (
	"bytes"

	"github.com/vrnic/vrnic/roce"
	"github.com/vrnic/vrnic/roce/packet"
)

// UD is what a roce.UD was made with.
type UD struct {
	Num  uint32 `json:"num"`
	PKey uint16 `json:"pkey"`
	MTU  uint32 `json:"mtu"`
	QKey uint32 `json:"qkey"`
	PSN  uint32 `json:"psn"`
}

// Datagrams is a roce.UD whose calls are recorded. The owner of the one is that of the other, and
// uses the first one as it is when Off says so.
type Datagrams struct {
	of  *roce.UD
	t   *Tape
	ids uint64 // of payloads
}

// NewDatagrams has what is done with u from now on recorded by t.
func NewDatagrams(t *Tape, u *roce.UD) *Datagrams {
	t.about.UD = &UD{Num: uint32(u.Num), PKey: u.PKey, MTU: u.MTU, QKey: u.QKey, PSN: uint32(u.PSN)}
	t.about.Kind = DatagramQP
	t.id = t.r.open(t.about)
	return &Datagrams{of: u, t: t}
}

// Off reports that nothing more is recorded.
func (d *Datagrams) Off() bool { return d.t.off() }

// SetQKey sets the Q_Key.
func (d *Datagrams) SetQKey(k uint32) {
	d.t.call(opSetQKey, nil, "", uint64(k))
	d.of.QKey = k
	d.t.done(0, nil, nil)
}

// SetPSN sets the number of the next packet.
func (d *Datagrams) SetPSN(n packet.PSN) {
	d.t.call(opSetPSN, nil, "", uint64(n))
	d.of.PSN = n
	d.t.done(0, nil, nil)
}

// Append is roce.UD's.
func (d *Datagrams) Append(b []byte, m *roce.Datagram) ([]byte, roce.Status, error) {
	c := *m
	var id uint64
	if m.Data != nil {
		d.ids++
		c.Data, id = &payload{m.Data, d.t, d.ids}, d.ids
	}
	d.t.call(opAppendDatagram, nil, "", uint64(m.Dest), uint64(m.QKey), uint64(m.Length), id,
		bit(m.Solicited), bit(m.Immediate), immOf(m.Imm))
	out, st, err := d.of.Append(b, &c)
	d.t.done(uint64(st), out[len(b):], err)
	return out, st, err
}

// Lengths of the IP headers that NetworkHeader looks at.
const (
	ipv4Len = 20
	ipv6Len = 40
)

// Receive is roce.UD's.
func (d *Datagrams) Receive(in roce.Inbox, h *packet.Header, ip, octets []byte) roce.Outcome {
	n := ipv4Len
	if ip[0]>>4 == 6 {
		n = ipv6Len
	}
	b, _ := wholePacket(ip[:n], h, octets)
	d.t.call(opReceiveDatagram, b, "", uint64(n))
	o := d.of.Receive(datagramInbox{d.t, in}, h, ip, octets)
	d.t.done(uint64(o), nil, nil)
	return o
}

// A datagramInbox is the roce.Inbox of Datagrams: what its own is asked is recorded.
type datagramInbox struct {
	t  *Tape
	in roce.Inbox
}

func (i datagramInbox) BeginReceive() (size uint32, ok bool) {
	size, ok = i.in.BeginReceive()
	i.t.step(opTakeReceive, nil, "", uint64(size), bit(ok))
	return size, ok
}

func (i datagramInbox) PlaceReceive(off uint32, chunk []byte, last bool) error {
	err := i.in.PlaceReceive(off, chunk, last)
	i.t.step(opFillReceive, chunk, textOf(err), uint64(off), bit(last), codeOf(err))
	return err
}

func (i datagramInbox) EndReceive(r roce.Received) error {
	err := i.in.EndReceive(r)
	i.t.step(opFinishReceive, nil, textOf(err), receivedArgs(&r, err)...)
	return err
}

func (i datagramInbox) FailReceive(s roce.Status) {
	i.in.FailReceive(s)
	i.t.step(opFailReceive, nil, "", uint64(s))
}

func (i datagramInbox) KeepReceive() {
	i.in.KeepReceive()
	i.t.step(opKeepReceive, nil, "")
}

// A datagramPlayer plays Datagrams.
type datagramPlayer struct {
	d    *Datagrams
	s    *script
	room *[]byte
}

func newDatagramPlayer(t *Tape, c *UD, s *script, room *[]byte) engine {
	u := &roce.UD{Num: packet.QPN(c.Num), PKey: c.PKey, MTU: min(c.MTU, roce.MaxMTU), QKey: c.QKey,
		PSN: packet.PSN(0).Add(c.PSN)}
	return &datagramPlayer{s: s, room: room, d: NewDatagrams(t, u)}
}

func (p *datagramPlayer) play(s *Step) error {
	a := s.Args
	switch s.Op {
	case opSetQKey:
		p.d.SetQKey(uint32(a[0]))
	case opSetPSN:
		p.d.SetPSN(packet.PSN(0).Add(uint32(a[0])))
	case opAppendDatagram:
		m := roce.Datagram{Dest: packet.QPN(a[0]), QKey: uint32(a[1]), Length: uint32(a[2]),
			Solicited: a[4] != 0, Immediate: a[5] != 0, Imm: immOctets(a[6])}
		if a[3] != 0 {
			m.Data = p.s
		} else if m.Length > 0 {
			return errNoCall
		}
		*p.room, _, _ = p.d.Append((*p.room)[:0], &m) // as all results, it is recorded
	case opReceiveDatagram:
		b, n := s.Octets, a[0]
		if len(b) < ipv4Len || n != ipv4Len && n != ipv6Len || n > uint64(len(b)) ||
			(b[0]>>4 == 6) != (n == ipv6Len) {
			return errNoCall
		}
		var h packet.Header
		octets, err := h.Parse(append(bytes.Clone(b[n:]), make([]byte, packet.ICRCLen)...))
		if err != nil {
			return err
		}
		p.d.Receive(packetScript{p.s}, &h, b[:n], octets)
	default:
		return errNoCall
	}
	return nil
}

func (p *datagramPlayer) memory() int { return 0 }
