package cm

import (
	"fmt"

	"github.com/vrnic/vrnic/rdma"
)

// A state says how far an ID has come. The names are those of Linux's rdma_cm where it has them,
// and those that "vrnic show cm" prints. The daemon and the client's libraries keep no state of
// their own beside it.
//
//	     bind             listen
//	IDLE ────▶ BOUND ──────────────▶ LISTEN
//	 │  ◀────    │   port taken
//	 │           │ resolve address               resolve route
//	 ├───────────┴──▶ ADDR_QUERY ──▶ ADDR_RESOLVED ────▶ ROUTE_RESOLVED
//	 │                (or back)           │                    │
//	 │                                    └──── connect ───────┤
//	 │ a peer's request                                        ▼      established
//	 └───────────▶ REQUEST ──────────── accept ────────▶ CONNECTING ──────▶ CONNECTED
//	                  │                                        │ fail          │
//	                  └──── reject ──▶ DISCONNECTED ◀──────────┴───────────────┘ disconnected
//
// CLOSED may follow each.
type state uint8

const (
	stateIdle          state = iota
	stateBound               // has a port of its own
	stateAddrQuery           // ResolveAddr is looking
	stateAddrResolved        //
	stateRouteResolved       //
	stateListen              //
	stateConnecting          // Connect or Accept under way
	stateRequest             // a peer's, which waits for an answer
	stateConnected           //
	stateDisconnected        // disconnected, rejected or failed
	stateClosed
)

var stateNames = [...]string{
	stateIdle:          "IDLE",
	stateBound:         "BOUND",
	stateAddrQuery:     "ADDR_QUERY",
	stateAddrResolved:  "ADDR_RESOLVED",
	stateRouteResolved: "ROUTE_RESOLVED",
	stateListen:        "LISTEN",
	stateConnecting:    "CONNECTING",
	stateRequest:       "REQUEST",
	stateConnected:     "CONNECTED",
	stateDisconnected:  "DISCONNECTED",
	stateClosed:        "CLOSED",
}

func (s state) String() string { return stateNames[s] }

// A step is what moves an ID from state to state: a call, or what comes of one.
type step uint8

const (
	stepBind step = iota
	stepUnbind
	stepListen
	stepResolveAddr
	stepAddrResolved
	stepAddrFailed
	stepBoundAddrFailed
	stepResolveRoute
	stepRequest
	stepConnect
	stepAccept
	stepReject
	stepEstablished
	stepFail
	stepDisconnected
	stepClose
)

// steps says from which states each step may be taken, where it leads to, and how an error calls
// it.
var steps = [...]struct {
	from uint16
	to   state
	call string
}{
	stepBind:            {1 << stateIdle, stateBound, "bind"},
	stepUnbind:          {1 << stateBound, stateIdle, "free the port of"},
	stepListen:          {1 << stateBound, stateListen, "listen with"},
	stepResolveAddr:     {1<<stateIdle | 1<<stateBound, stateAddrQuery, "resolve an address with"},
	stepAddrResolved:    {1 << stateAddrQuery, stateAddrResolved, "give an address to"},
	stepAddrFailed:      {1 << stateAddrQuery, stateIdle, "give no address to"},
	stepBoundAddrFailed: {1 << stateAddrQuery, stateBound, "give no address to"},
	stepResolveRoute:    {1 << stateAddrResolved, stateRouteResolved, "resolve a route with"},
	stepRequest:         {1 << stateIdle, stateRequest, "give a request to"},
	stepConnect:         {1<<stateAddrResolved | 1<<stateRouteResolved, stateConnecting, "connect"},
	stepAccept:          {1 << stateRequest, stateConnecting, "accept"},
	stepReject:          {1 << stateRequest, stateDisconnected, "reject"},
	stepEstablished:     {1 << stateConnecting, stateConnected, "establish"},
	stepFail:            {1 << stateConnecting, stateDisconnected, "fail"},
	stepDisconnected:    {1 << stateConnected, stateDisconnected, "disconnect"},
	stepClose:           {1<<stateClosed - 1, stateClosed, "close"},
}

// stepLocked takes a step, and nothing else assigns id.state; id.mu is held. An error, which wraps
// rdma.ErrClosed or rdma.ErrInvalid, says that the table above does not have it, and nothing was
// done.
//
// +checklocks:id.mu
func (id *ID) stepLocked(s step) error {
	x := &steps[s]
	switch {
	case x.from&(1<<id.state) != 0:
		id.state = x.to
		return nil
	case id.state == stateClosed:
		return fmt.Errorf("%s: %w", x.call, rdma.ErrClosed)
	}
	return fmt.Errorf("%s a CM id in state %v: %w", x.call, id.state, rdma.ErrInvalid)
}

// mayLocked reports whether a step can be taken.
//
// +checklocks:id.mu
func (id *ID) mayLocked(s step) bool { return steps[s].from&(1<<id.state) != 0 }
