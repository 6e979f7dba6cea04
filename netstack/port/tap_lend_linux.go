package port

import (
	"errors"
	"fmt"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/vrnic/vrnic/netstack/ethswitch"
	"github.com/vrnic/vrnic/netstack/internal/doze"
)

// A TAPKind is what a TAP's descriptor was set to.
type TAPKind struct {
	Offloads bool // super-frames and partial checksums
	UDP      bool // super-frames of UDP, too
}

// LendTAP creates or attaches to the TAP c describes and sets it up, as OpenTAP does, for a process
// with fewer rights, which makes a port of the descriptor: AdoptTAP. A device that it made goes
// when the last descriptor does. undo takes back what was set up, and closes this process's
// descriptor; nil: that only.
func LendTAP(c TAPConfig) (fd int, kind TAPKind, end func(undo bool) error, err error) {
	c.Addrs = slices.Clone(c.Addrs)
	t := &TAP{cfg: c, fd: -1}
	if err = checkIfName(c.Name); err == nil {
		err = inNetNS(c.NetNS, t.setUp)
	}
	if err != nil {
		return -1, kind, nil, errors.Join(fmt.Errorf("netstack: tap %s: %w", c.Name, err), t.release())
	}
	return t.fd, TAPKind{t.offloads, t.udp}, func(undo bool) error {
		if !undo {
			t.undo = t.undo[:1] // the handle
		}
		return t.release()
	}, nil
}

// AdoptTAP makes a port of sw of a descriptor of LendTAP, which is the port's when there is no
// error. The device is not looked after: when it is gone, the port has no link any more, and what
// LendTAP set on a device that was there stays. Beside another port it leaves ports
// below 1024 to the kernel; others are not kept from the kernel's programs, whose namespace it may
// not enter.
func AdoptTAP(sw *ethswitch.Switch, c TAPConfig, fd int, kind TAPKind) (*TAP, error) {
	t := &TAP{cfg: c, fd: fd, lent: true, offloads: kind.Offloads, udp: kind.UDP,
		stop: make(chan struct{}), news: make(chan struct{}, 1), dozes: make(chan *doze.Epoll, 1)}
	var st unix.Stat_t
	err := unix.Fstat(fd, &st)
	if err == nil && st.Mode&unix.S_IFMT != unix.S_IFCHR {
		err = errors.New("what was handed over is no TAP")
	}
	if err == nil {
		err = unix.SetNonblock(fd, true)
	}
	if err == nil {
		err = t.openDoze()
	}
	if err == nil {
		t.at, err = sw.Attach(ethswitch.PortOptions{Name: c.Name, Kind: "tap", Beside: c.Beside}, t)
	}
	if err != nil {
		t.fd = -1 // the caller's
		return nil, errors.Join(fmt.Errorf("netstack: tap %s: %w", c.Name, err), t.release())
	}
	t.begin(t.watchGone)
	return t, nil
}

// watchGone tells when the device is gone, of which nothing else is known.
func (t *TAP) watchGone() {
	defer t.wg.Done()
	for {
		select {
		case <-t.news:
			if t.lost.Load() {
				t.setLink(errGone)
			}
		case <-t.stop:
			return
		}
	}
}
