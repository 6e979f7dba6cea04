package cm_test

import (
	"testing"
	"time"

	. "github.com/vrnic/vrnic/roce/cm"
	"github.com/vrnic/vrnic/roce/mad"
)

// What is asked for while a program is between two Listeners of a service waits for the second, for
// a moment: RCM-014, 052, 067.
func TestBetweenListeners(t *testing.T) {
	for name, ask := range map[string]func(s *sut) []mad.Message{
		"a connection": func(s *sut) []mad.Message { return s.says(s.req()) },
		"a look-up":    func(s *sut) []mad.Message { return s.says(s.sidr()) },
	} {
		t.Run(name, func(t *testing.T) {
			svc, kind := service, EventRequest
			if name == "a look-up" {
				svc, kind = lookups, EventAsked
			}
			s := newSUT(t)
			s.listens(svc).Close(s.now)
			silent(t, "the program may come back", ask(s))
			s.nothing("nobody listens")
			silent(t, "it may still", s.pass(1900*time.Millisecond))
			l := s.listens(svc)
			silent(t, "it has", s.pass(0))
			if e := s.happened(kind); e.Listener != l {
				t.Errorf("%+v", e)
			}
			if x := s.Stats(); x.Received[0]+x.Received[mad.AttrSIDRREQ-mad.AttrREQ] != 1 {
				t.Errorf("%+v", x)
			}

			l.Close(s.now)
			for range 64 {
				silent(t, "there is room", ask(s))
			}
			if n := len(ask(s)); n != 1 {
				t.Errorf("one too many draws %d answers", n)
			}
			if n := len(s.pass(2 * time.Second)); n != 64 {
				t.Errorf("%d of 64 are refused", n)
			}
			if n := len(ask(s)); n != 1 {
				t.Errorf("later, %d answers", n)
			}
		})
	}
}

// A program that is connected to at a port may be about to be looked up there, too: what comes
// before it listens waits, whether its other Listener is there still or has just gone, once, and
// for a moment.
func TestLookUpBehindConnection(t *testing.T) {
	for name, ended := range map[string]bool{"it listens": false, "it has listened": true} {
		t.Run(name, func(t *testing.T) {
			s := newSUT(t)
			connected := s.listens(service)
			if ended {
				connected.Close(s.now)
			}
			silent(t, "the program is about to listen", s.says(s.sidr()))
			s.nothing("nobody listens")
			silent(t, "it may still", s.pass(1900*time.Millisecond))
			l := s.listens(lookups)
			silent(t, "it does", s.pass(0))
			if e := s.happened(EventAsked); e.Listener != l {
				t.Errorf("%+v", e)
			}
		})
	}
	s := newSUT(t)
	s.listens(service)
	silent(t, "the program might be about to listen", s.says(s.sidr()))
	if r := only[*mad.SIDRREP](t, s.pass(2*time.Second)); r.Status != mad.SIDRUnsupported {
		t.Errorf("%+v", r)
	}
	if r := only[*mad.SIDRREP](t, s.says(s.sidr())); r.Status != mad.SIDRUnsupported {
		t.Errorf("asked again: %+v", r)
	}
}

// Each time that a program listens for connections it may be about to be looked up, whatever became
// of look-ups at that port before.
func TestLookUpBehindConnectionAgain(t *testing.T) {
	for name, before := range map[string]func(s *sut){
		"it listened for look-ups": func(s *sut) { s.listens(lookups).Close(s.now) },
		"it never did":             func(s *sut) { s.says(s.sidr()) },
	} {
		t.Run(name, func(t *testing.T) {
			s := newSUT(t)
			connected := s.listens(service)
			before(s)
			connected.Close(s.now)
			s.pass(time.Minute)
			s.listens(service)
			silent(t, "the next program is about to listen", s.says(s.sidr()))
			l := s.listens(lookups)
			silent(t, "it does", s.pass(0))
			if e := s.happened(EventAsked); e.Listener != l {
				t.Errorf("%+v", e)
			}
		})
	}
}
