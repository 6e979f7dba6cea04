// Package ctl is the language between a test and the agent in the guest: one JSON value a line,
// over a virtio-serial port.
package ctl

import "net/netip"

// PortName names the virtio-serial port.
const PortName = "vrnic.ctl"

// A Request goes from the test to the guest. One field besides ID is set.
type Request struct {
	ID     int    `json:"id"`
	Hello  bool   `json:"hello,omitempty"`  // are you there?
	Setup  *Setup `json:"setup,omitempty"`  // configure the NIC
	Run    *Run   `json:"run,omitempty"`    // start a command
	Read   string `json:"read,omitempty"`   // the contents of this file
	Signal int    `json:"signal,omitempty"` // to command ID
}

// A Setup says what the guest's NIC is to be.
type Setup struct {
	Addrs []netip.Prefix `json:"addrs"`
	MTU   int            `json:"mtu,omitempty"`
}

// A Run is a command line; there is no shell.
type Run struct {
	Argv []string `json:"argv"`
}

// A Reply goes from the guest to the test. Out and Err may come any number of times before Done.
type Reply struct {
	ID     int    `json:"id"`
	Out    []byte `json:"out,omitempty"`
	Err    []byte `json:"err,omitempty"`
	Done   bool   `json:"done,omitempty"`
	Status int    `json:"status,omitempty"` // exit status, or 128 and the signal
	Fault  string `json:"fault,omitempty"`  // why it could not be done at all
}
