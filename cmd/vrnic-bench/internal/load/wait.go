package load

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"syscall"

	"github.com/vrnic/vrnic/rdma"
)

// poll waits for completions of cq and returns them in wcs.
func (e *Local) poll(
	ctx context.Context, cq rdma.CQ, idle *idler, wcs []rdma.WC,
) ([]rdma.WC, error) {
	for {
		n, err := cq.Poll(wcs)
		if err != nil {
			return nil, fmt.Errorf("poll: %w", err)
		}
		if n > 0 {
			idle.reset()
			for i := range wcs[:n] {
				if wcs[i].Status != rdma.WCSuccess {
					return nil, e.failed(&wcs[i])
				}
			}
			return wcs[:n], nil
		}
		if idle.yield() {
			if idle.looks%checkLooks == 0 && ctx.Err() != nil {
				return nil, ctx.Err()
			}
			continue
		}
		if !idle.armed {
			idle.armed = true
			if err := cq.Arm(false); err != nil {
				return nil, fmt.Errorf("arm: %w", err)
			}
			continue // look again: what came before causes no event
		}
		idle.armed = false
		if err := cq.Wait(ctx); err != nil {
			return nil, fmt.Errorf("wait: %w", err)
		}
	}
}

func (e *Local) failed(wc *rdma.WC) error {
	err := errors.New(wc.Status.String())
	l := e.byQPN[wc.QPN]
	if l == nil {
		return fmt.Errorf("a completion of QP %d, which is none of ours: %w", wc.QPN, err)
	}
	if l.conn != nil && l.conn.Err() != nil {
		err = fmt.Errorf("%w: %w", err, l.conn.Err())
	}
	return fmt.Errorf("QP %d, work request %#x: %w", wc.QPN, wc.ID, err)
}

// An idler says how to wait: look again, let others run, and at last sleep.
type idler struct {
	wait      Wait
	elsewhere bool // see Spec
	most      int  // looks before sleeping
	looks     int
	armed     bool
}

const (
	looksFirst = 16   // without a pause
	looksMax   = 200  // in all, before sleeping
	checkLooks = 1024 // one that never sleeps looks now and then whether it is to end
)

func (i *idler) reset() { i.looks, i.armed = 0, false }

// yield says whether to look again now.
func (i *idler) yield() bool {
	i.looks++
	if i.wait == Event || i.wait == Adaptive && i.looks > i.most {
		return false
	}
	if i.looks > looksFirst {
		osYield(i.looks, i.elsewhere)
	}
	return true
}

// newIdler makes that of an end of spec. Goroutines of one process that take turns in looking do
// not let Go's poller run, which has what they look for; and waking one that sleeps takes no system
// call where the thread that has work for it goes on with it. So in a ping-pong none yields that
// has its RNIC in this process: it sleeps.
func newIdler(spec Spec) idler {
	i := idler{wait: spec.Wait, elsewhere: spec.Elsewhere, most: looksMax}
	if spec.Pattern == PingPong && !spec.Elsewhere {
		i.most = looksFirst
	}
	return i
}

// osYield lets others run: goroutines, and now and then other processes; with elsewhere processes
// only. Gosched would have the program's threads hand the goroutine round, a futex call each time.
func osYield(n int, elsewhere bool) {
	if n%2 == 0 && !elsewhere {
		runtime.Gosched()
	} else {
		_, _, _ = syscall.RawSyscall(syscall.SYS_SCHED_YIELD, 0, 0, 0) // cannot fail
	}
}
