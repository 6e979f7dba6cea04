package cm_test

import (
	"bytes"
	"testing"
	"time"

	. "github.com/vrnic/vrnic/roce/cm"
	"github.com/vrnic/vrnic/roce/mad"
)

// A QP is looked up: RCM-051, 053, 055, and by whom it is served: RCM-052, 054.
func TestLookup(t *testing.T) {
	s := newSUT(t)
	asks := func() (*Lookup, *mad.SIDRREQ) {
		l, err := s.Lookup(s.now, &LookupRequest{From: one, To: two, SourcePort: 9, Service: lookups,
			PrivateData: []byte("hi")})
		if err != nil {
			t.Fatal(err)
		}
		return l, only[*mad.SIDRREQ](t, s.said(two))
	}
	l, q := asks()
	head, rest, err := mad.ParseAddress(q.PrivateData)
	if err != nil || head.Source != one || head.Dest != two || head.Port != 9 || len(rest) != 180 ||
		q.ServiceID != 0x01111d2f || q.PKey != 0xffff {
		t.Errorf("%+v, %v", q, err)
	}
	if r := only[*mad.SIDRREQ](t, s.pass(5*time.Second)); r.RequestID != q.RequestID {
		t.Errorf("%+v", r)
	}
	rep := &mad.SIDRREP{RequestID: q.RequestID, QPN: 5, QKey: mad.UDPQKey, PrivateData: []byte("ho")}
	s.from = three
	silent(t, "", s.says(rep))
	s.nothing("from elsewhere")
	s.from = two
	silent(t, "", s.says(rep))
	if e := s.happened(EventFound); e.Lookup != l || e.Status != 0 || e.QPN != 5 ||
		e.QKey != 0x01234567 || len(e.PrivateData) != 136 || !bytes.HasPrefix(e.PrivateData,
		[]byte("ho\x00")) {
		t.Errorf("%+v", e)
	}
	silent(t, "again", s.says(rep))
	s.nothing("again")

	_, q = asks()
	s.says(&mad.SIDRREP{RequestID: q.RequestID, Status: mad.SIDRUnsupported})
	if e := s.happened(EventFound); e.Status != 1 {
		t.Errorf("%+v", e)
	}
	asks()
	for range 15 {
		only[*mad.SIDRREQ](t, s.pass(5*time.Second))
	}
	silent(t, "", s.pass(5*time.Second))
	s.happened(EventUnreachable)
	l, _ = asks()
	l.Cancel(s.now)
	s.over()
	s.nothing("canceled")
}

func TestQuery(t *testing.T) { // RCM-051, 052, 054
	s := newSUT(t)
	if r := only[*mad.SIDRREP](t, s.says(s.sidr())); r.Status != mad.SIDRUnsupported ||
		r.RequestID != s.id || r.QPN != 0 {
		t.Errorf("%+v", r)
	}
	l := s.listens(lookups)
	s.listens(service)
	bad := s.sidr()
	bad.PKey = 0
	silent(t, "P_Key", s.says(bad))
	bad = s.sidr()
	bad.PrivateData[19] = 99
	if r := only[*mad.SIDRREP](t, s.says(bad)); r.Status != mad.SIDRRejected {
		t.Errorf("%+v", r)
	}
	s.nothing("refused")

	q := s.sidr()
	silent(t, "", s.says(q))
	e := s.happened(EventAsked)
	if e.Listener != l || e.Source.Addr() != two || e.Source.Port() != 4000 || e.Dest != one ||
		len(e.PrivateData) != 180 {
		t.Errorf("%+v", e)
	}
	silent(t, "the program has it", s.says(q))
	s.nothing("the program has it")
	if err := e.Query.Answer(s.now, &Answer{QPN: sutQPN, QKey: 9}); err != nil {
		t.Fatal(err)
	}
	for _, all := range [][]mad.Message{s.said(two), s.says(q)} {
		if r := only[*mad.SIDRREP](t, all); r.Status != 0 || r.QPN != sutQPN || r.QKey != 9 ||
			r.RequestID != q.RequestID || r.ServiceID != q.ServiceID {
			t.Errorf("%+v", r)
		}
	}
	s.nothing("answered")
	if err := e.Query.Answer(s.now, &Answer{}); err == nil {
		t.Error("answered twice")
	}
	if l.Waiting() != 0 || s.Load().HalfOpen != 0 {
		t.Error("it still waits")
	}
	s.says(s.sidr())
	e = s.happened(EventAsked)
	s.pass(3 * time.Minute)
	if err := e.Query.Answer(s.now, &Answer{}); err == nil {
		t.Error("nobody asks any more")
	}
	s.over()
}
