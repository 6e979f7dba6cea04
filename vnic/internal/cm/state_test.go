package cm

import (
	"errors"
	"slices"
	"testing"

	"github.com/vrnic/vrnic/rdma"
)

// Each step leads from the states that the table lists to one, and from no other anywhere: what is
// not listed is an error that says so, and changes nothing.
func TestSteps(t *testing.T) {
	open := []state{
		stateIdle, stateBound, stateAddrQuery, stateAddrResolved, stateRouteResolved, stateListen,
		stateConnecting, stateRequest, stateConnected, stateDisconnected,
	}
	listed := map[step]struct {
		from []state
		to   state
	}{
		stepBind:            {[]state{stateIdle}, stateBound},
		stepUnbind:          {[]state{stateBound}, stateIdle},
		stepListen:          {[]state{stateBound}, stateListen},
		stepResolveAddr:     {[]state{stateIdle, stateBound}, stateAddrQuery},
		stepAddrResolved:    {[]state{stateAddrQuery}, stateAddrResolved},
		stepAddrFailed:      {[]state{stateAddrQuery}, stateIdle},
		stepBoundAddrFailed: {[]state{stateAddrQuery}, stateBound},
		stepResolveRoute:    {[]state{stateAddrResolved}, stateRouteResolved},
		stepRequest:         {[]state{stateIdle}, stateRequest},
		stepConnect:         {[]state{stateAddrResolved, stateRouteResolved}, stateConnecting},
		stepAccept:          {[]state{stateRequest}, stateConnecting},
		stepReject:          {[]state{stateRequest}, stateDisconnected},
		stepEstablished:     {[]state{stateConnecting}, stateConnected},
		stepFail:            {[]state{stateConnecting}, stateDisconnected},
		stepDisconnected:    {[]state{stateConnected}, stateDisconnected},
		stepClose:           {open, stateClosed},
	}
	for s := range steps {
		for from := range stateNames {
			id := &ID{state: state(from)}
			id.mu.Lock()
			x := listed[step(s)]
			want, wantErr := x.to, error(nil)
			if !slices.Contains(x.from, id.state) {
				want, wantErr = id.state, rdma.ErrInvalid
			}
			if id.state == stateClosed {
				wantErr = rdma.ErrClosed
			}
			if may := id.mayLocked(step(s)); may != (wantErr == nil) {
				t.Errorf("%s in %v: may %v", steps[s].call, id.state, may)
			}
			err := id.stepLocked(step(s))
			if !errors.Is(err, wantErr) || id.state != want {
				t.Errorf("%s in %v: %v, %v; want %v, %v",
					steps[s].call, state(from), id.state, err, want, wantErr)
			}
			id.mu.Unlock()
		}
	}
}
