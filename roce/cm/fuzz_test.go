package cm_test

import (
	"encoding/binary"
	"net/netip"
	"testing"
	"time"

	. "github.com/vrnic/vrnic/roce/cm"
	"github.com/vrnic/vrnic/roce/mad"
)

// Peers that say anything, in any order, and programs that do anything about it: what is kept stays
// within its bounds, each message draws two answers at most, and when all are gone nothing is left
// (ROCE-207, 209, 212, 217, 218).
func FuzzCM(f *testing.F) {
	f.Add([]byte{0, 0, 0, 0x20, 4, 0x40, 0, 4, 1, 0x60, 5})
	for kind := range byte(10) {
		f.Add([]byte{0, 1, 0, 0x21, kind, 0x83, 2, kind, 0, 0x42, 0x60, kind, 1, 0x22, kind, 2})
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		s := newSUT(t, func(c *Config) {
			c.MaxHalfOpen, c.MaxHalfOpenPerPeer, c.MaxPerPeer, c.MaxKept = 5, 3, 6, 4
		})
		s.listens(service)
		s.listens(lookups)
		take := func() (v byte) {
			if len(b) > 0 {
				v, b = b[0], b[1:]
			}
			return v
		}
		pick := func(n int) int { return int(take()) % max(n, 1) }
		var conns []*Conn
		var queries []*Query
		own, theirs, ids := 0, []uint32{0, 1, 2}, []uint32{0, 1}
		happens := func() {
			for _, e := range s.Events() {
				switch e.Kind {
				case EventRequest:
					conns = append(conns, e.Conn)
				case EventAsked:
					queries = append(queries, e.Query)
				default: // the input says what is done
				}
			}
			packets := s.Packets()
			for _, p := range packets { // the numbers that peers have been told
				ids = append(ids, binary.BigEndian.Uint32(p.MAD[24:]))
			}
			if len(packets) > 2 && own >= 0 {
				t.Fatalf("%d answers", len(packets))
			}
			if x := s.Load(); x.HalfOpen > 5 || x.Kept > 4 || x.Conns > 3*6+4+own || x.Peers > 3 {
				t.Fatalf("%+v, %d connections of its own", x, own)
			}
		}
		for len(b) > 0 {
			v := take()
			switch {
			case v&0x80 != 0: // a program does something
				if len(conns) == 0 {
					break
				}
				c := conns[pick(len(conns))]
				switch v & 7 {
				case 0, 1:
					_ = c.Accept(s.now, &Reply{QPN: sutQPN})
				case 2:
					_ = c.Reject(s.now, nil)
				case 3:
					_ = c.Disconnect(s.now)
				case 4:
					c.Close(s.now)
				case 5:
					c.Established(s.now)
				case 6:
					_ = c.Ready(s.now, nil)
				case 7:
					if len(queries) > 0 {
						_ = queries[pick(len(queries))].Answer(s.now, &Answer{})
					}
				}
			case v&0x40 != 0:
				s.now = s.now.Add(time.Duration(v&0x3f) * time.Second)
				for at, ok := s.Deadline(); ok && !at.After(s.now); at, ok = s.Deadline() {
					s.Expire(at)
					s.Packets()
				}
			case v == 0x3f && own < 4:
				own++
				c, err := s.Connect(s.now, &Request{From: one, To: two, Service: service, QPN: sutQPN})
				if err != nil {
					t.Fatal(err)
				}
				conns = append(conns, c)
			default:
				s.from = peersOf[pick(len(peersOf))]
				m := s.message(v, theirs[pick(len(theirs))], ids[pick(len(ids))])
				raw := mad.Append(nil, 1, m)
				if v&0x10 != 0 {
					raw[24+int(take())%232] ^= take()
				}
				s.Receive(s.now, s.from, one, raw)
			}
			happens()
		}
		for _, c := range conns {
			c.Close(s.now)
		}
		s.Packets()
		s.over()
	})
}

var peersOf = []netip.Addr{two, three, six}

// message is one of any kind; a REQ and a SIDR_REQ are right.
func (s *sut) message(kind byte, theirs, ours uint32) mad.Message {
	switch kind & 0xf % 10 {
	case 0:
		r := s.req()
		r.LocalID = theirs
		return r
	case 1:
		r := s.req()
		r.ResponderResources = kind
		return r
	case 2:
		return &mad.MRA{LocalID: theirs, RemoteID: ours, About: kind & 1, ServiceTimeout: 31}
	case 3:
		return &mad.REJ{LocalID: theirs, RemoteID: ours, About: kind >> 4 & 3, Reason: mad.Timeout,
			Info: binary.BigEndian.AppendUint64(nil, rawGUID)}
	case 4:
		return &mad.REP{LocalID: theirs, RemoteID: ours, QPN: rawQPN, GUID: rawGUID}
	case 5:
		return &mad.RTU{LocalID: theirs, RemoteID: ours}
	case 6:
		return &mad.DREQ{LocalID: theirs, RemoteID: ours, RemoteQPN: sutQPN}
	case 7:
		return &mad.DREP{LocalID: theirs, RemoteID: ours}
	case 8:
		return s.sidr()
	}
	return &mad.SIDRREP{RequestID: ours}
}
