package direct

import (
	"syscall"

	"github.com/vrnic/vrnic/shm/osmem"
	"github.com/vrnic/vrnic/shm/server"
)

// Sleep gives e's program the end by which the peer's wakes it, once; EAGAIN: there is no direct
// path now.
func (e *End) Sleep() (fd int, err error) {
	return e.ofPeer(func(p *pair, _ *End) (int, error) {
		i := p.side(e)
		if p.asleep[i] {
			return -1, syscall.EAGAIN
		}
		sleeper, waker, err := osmem.NewWakePair()
		if err != nil {
			return -1, err
		}
		if !p.wakers[1-i].set(e.Program, waker) {
			osmem.CloseFDs([]int{sleeper, waker})
			return -1, syscall.EAGAIN
		}
		p.asleep[i] = true
		if p.over.Load() { // it ended meanwhile, and did not find this
			p.wakers[1-i].close()
		}
		return sleeper, nil
	})
}

// WakePeer gives e's program the end by which it wakes the peer's; EAGAIN: there is none, or it has
// it.
func (e *End) WakePeer() (fd int, err error) {
	return e.ofPeer(func(p *pair, _ *End) (int, error) {
		d := &p.wakers[p.side(e)]
		fd, err := d.dup()
		d.close()
		return fd, err
	})
}

// set has d be fd, which counts as a program's: false if that may have no more.
func (d *descriptor) set(of *server.Session, fd int) bool {
	if !of.TakeDescriptor() {
		return false
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.of, d.fd = of, fd
	return true
}
