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
	s := &session{d: d, shm: new(server.Session)}
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
