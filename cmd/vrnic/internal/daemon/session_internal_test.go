package daemon

import (
	"errors"
	"syscall"
	"testing"

	"github.com/vrnic/vrnic/shm/server"
)

// A device that goes before a session has heard of it hides none that comes behind it.
func TestDeviceGoesUnseen(t *testing.T) {
	there, going, later := new(device), new(device), new(device)
	d := &Daemon{devices: []*device{there}}
	s := &session{d: d, shm: new(server.Session), of: make(map[*device]*sessionDevice)}
	s.look()
	d.devices = append(d.devices, going)
	going.gone.Store(true) // claimed, and in the table still
	if sd, err := s.device(1); !errors.Is(err, syscall.ENODEV) {
		t.Errorf("what goes is device %v, %v", sd, err)
	}
	d.devices = []*device{there, later}
	if sd, err := s.device(1); err != nil || sd.dev != later {
		t.Errorf("what comes behind it is %v, %v", sd, err)
	}
}

// Thousands of devices can come and go beside one session, which keeps nothing of them.
func TestDevicesComeAndGo(t *testing.T) {
	there := new(device)
	d := &Daemon{devices: []*device{there}}
	s := &session{d: d, shm: new(server.Session), of: make(map[*device]*sessionDevice)}
	s.look()
	const n = 5000
	for i := range n {
		guest := new(device)
		d.devices = []*device{there, guest}
		if sd, err := s.device(uint32(i) + 1); err != nil || sd != s.on(guest) {
			t.Fatalf("device %d is %+v, %v", i, sd, err)
		}
		guest.gone.Store(true)
		d.devices = d.devices[:1]
	}
	s.look()
	if len(s.of) != 1 || len(s.devs) != n+1 || s.devs[0] != s.on(there) {
		t.Errorf("%d devices with %d numbers are kept", len(s.of), len(s.devs))
	}
	for i, sd := range s.devs[1:] {
		if sd != vacant {
			t.Fatalf("number %d is of %+v", i+1, sd)
		}
		if _, err := s.device(uint32(i) + 1); !errors.Is(err, syscall.ENODEV) {
			t.Fatalf("number %d: %v", i+1, err)
		}
	}
	for _, sd := range s.devs { // as the session's end does
		sd.shutdown()
		sd.wait()
		sd.leaveDirect()
	}
}

// Of two quiet times of a device that overlap each lasts as long as it was asked to, for sessions
// that there are and those that come meanwhile.
func TestTwoQuietTimes(t *testing.T) {
	dev := new(device)
	d := &Daemon{devices: []*device{dev}, sessions: make(map[*session]struct{})}
	begin := func() {
		s := &session{d: d, shm: new(server.Session), of: make(map[*device]*sessionDevice)}
		s.look()
		d.mu.Lock()
		d.sessions[s] = struct{}{}
		d.mu.Unlock()
	}
	quiet := func(s *session) bool {
		told := false
		s.on(dev).held.do(func() { told = true })
		return !told
	}
	want := func(why string, is bool) {
		t.Helper()
		begin()
		for _, s := range d.sessionList() {
			if quiet(s) != is {
				t.Errorf("%s: quiet %v", why, !is)
			}
		}
	}
	want("at first", false)
	d.hush(dev, true)
	want("in the first", true)
	d.hush(dev, true)
	want("in both", true)
	d.hush(dev, false)
	want("in the one that lasts longer", true)
	d.hush(dev, false)
	want("behind both", false)
}
