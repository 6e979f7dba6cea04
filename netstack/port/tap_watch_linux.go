package port

import (
	"bytes"
	"errors"
	"fmt"
	"time"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

const (
	// remakeAfter is how long somebody who has removed a device that the port had made has for making
	// another one; then the port does.
	remakeAfter = time.Second
	// maxRemake is the longest pause between attempts.
	maxRemake = 30 * time.Second
	// lookAgain is when the reader is asked once more about a device that nobody finds by its name.
	lookAgain = 100 * time.Millisecond
)

// tell has watch look at the device.
func (t *TAP) tell() {
	select {
	case t.news <- struct{}{}:
	default:
	}
}

// watch follows what becomes of the device until the port is closed.
func (t *TAP) watch(events *nl.NetlinkSocket) {
	defer t.wg.Done()
	t.wg.Go(func() {
		for {
			_, _, err := events.Receive()
			select {
			case <-t.stop:
				return
			default:
			}
			t.tell() // what was lost (ENOBUFS) may have been about the device
			if err != nil && !errors.Is(err, unix.ENOBUFS) {
				select { // not again and again
				case <-time.After(time.Second):
				case <-t.stop:
					return
				}
			}
		}
	})
	defer events.Close() // ends it
	var lostAt time.Time
	pause := remakeAfter
	for {
		var again <-chan time.Time
		if t.lost.Load() {
			if lostAt.IsZero() {
				lostAt = time.Now()
				t.setLink(errGone)
			}
			wait, err := t.takeUp(time.Since(lostAt))
			switch {
			case err != nil:
				t.setDetail(fmt.Sprintf("%v, and not to be had again: %v", errGone, err))
				again = time.After(pause)
				pause = min(2*pause, maxRemake)
			case wait > 0:
				again = time.After(wait)
			}
		}
		if !t.lost.Load() {
			lostAt, pause = time.Time{}, remakeAfter
			t.rouse()
			down, err := t.linkDown()
			t.setLink(down)
			if err != nil { // the reader will see it
				again = time.After(lookAgain)
			}
		}
		select {
		case <-t.news:
		case <-again:
		case <-t.stop:
			return
		}
	}
}

var errGone = errors.New("the device is gone")

// takeUp makes the port one of the device that has its name now, or makes that if the first one was
// made, and has been gone for some time: wait is how long it is until then. Without an error t.lost
// says whether there is a device.
func (t *TAP) takeUp(gone time.Duration) (wait time.Duration, err error) {
	_, err = t.k.link()
	existed := err == nil
	switch {
	case existed:
	case !errors.Is(err, unix.ENODEV):
		return 0, fmt.Errorf("look up: %w", err)
	case !t.made:
		return 0, nil // until somebody makes it
	case gone < remakeAfter:
		return remakeAfter - gone, nil
	}
	for _, queues := range []uint16{0, unix.IFF_MULTI_QUEUE} {
		if err = setIff(t.fd, t.cfg.Name, tapFlags(t.offloads, queues)); !errors.Is(err, unix.EINVAL) {
			break
		}
	}
	switch {
	case err == nil:
		t.found = existed
		t.undo = t.undo[:1] // the handle; the rest was about the device before
	case errors.Is(err, unix.EEXIST): // an attempt before came this far: the file has its device
		err = nil
	}
	if err == nil {
		_, err = setOffloads(t.fd, t.offloads) // as before: it is the same kernel
	}
	if err == nil {
		err = t.openDoze()
	}
	if err != nil {
		return 0, err
	}
	// Somebody who may not configure it may use one that was configured for it, and one without IPv6
	// (EACCES) has what is left.
	if err := t.configure(t.found); err != nil && !errors.Is(err, unix.EPERM) &&
		!errors.Is(err, unix.EACCES) {
		return 0, err
	}
	t.lost.Store(false)
	t.mu.Lock()
	t.dozes <- t.waits
	t.mu.Unlock()
	return 0, nil
}

// linkDown says why the device carries nothing, nil: it does; an error: there is no telling, and
// perhaps no device.
func (t *TAP) linkDown() (why, err error) {
	l, err := t.k.link()
	switch {
	case err != nil:
		return nil, err
	case l.Attrs().RawFlags&unix.IFF_UP == 0:
		return fmt.Errorf("the device is down: ip link set %s up", t.cfg.Name), nil
	case l.Attrs().RawFlags&unix.IFF_LOWER_UP == 0:
		return errors.New("the device has no carrier"), nil
	}
	if t.cfg.Beside == "" {
		return nil, nil
	}
	// A station has one MAC and the same addresses on both sides.
	if mac := l.Attrs().HardwareAddr; !bytes.Equal(mac, t.cfg.MAC[:]) {
		return fmt.Errorf("the device has the MAC %v, not that of %s: ip link set %s address %v", mac,
			t.cfg.Beside, t.cfg.Name, t.cfg.MAC), nil
	}
	lost, err := t.k.lacks(l, t.cfg.Addrs)
	if err == nil && lost.IsValid() {
		why = fmt.Errorf("the device does not have an address of %s: ip addr add %v dev %s",
			t.cfg.Beside, lost, t.cfg.Name)
	}
	return why, err
}

// setLink notes why the link is down, or with nil that it is up, and tells of a change between the
// two.
func (t *TAP) setLink(why error) {
	t.mu.Lock()
	was := t.down == ""
	t.mu.Unlock()
	detail := ""
	if why != nil {
		detail = why.Error()
	}
	t.setDetail(detail)
	if up := why == nil; up != was && t.cfg.OnLink != nil {
		t.cfg.OnLink(up, why)
	}
}

func (t *TAP) setDetail(down string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.down = down
}
