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
	Input  []byte `json:"input,omitempty"`  // to the standard input of command ID
	Kmsg   bool   `json:"kmsg,omitempty"`   // the kernel's messages since the last time
	Siw    *Siw   `json:"siw,omitempty"`    // load the driver anew
	Netem  *Netem `json:"netem,omitempty"`  // impair the NIC
	Signal int    `json:"signal,omitempty"` // to command ID
}

// A Setup says what the guest's NIC is to be.
type Setup struct {
	Addrs []netip.Prefix `json:"addrs"`
	MTU   int            `json:"mtu,omitempty"`
	RoCE  bool           `json:"roce,omitempty"` // the RDMA device is rxe's, not siw's
}

// A Run is a command line; there is no shell.
type Run struct {
	Argv  []string `json:"argv"`
	Input bool     `json:"input,omitempty"` // it has a standard input
}

// A Siw says which build of the driver, and with which module parameters ("a=1 b=2").
type Siw struct {
	Variant string `json:"variant"` // SiwStock or SiwParam
	Params  string `json:"params,omitempty"`
}

// The two builds of siw: as it stands in the source, and with its constants made parameters.
const (
	SiwStock = "siw"
	SiwParam = "siw-param"
)

// A Netem holds the words behind `tc qdisc add ... netem`, for what the guest sends and for what
// it receives; none of either takes the impairment off.
type Netem struct {
	Out []string `json:"out,omitempty"`
	In  []string `json:"in,omitempty"`
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
