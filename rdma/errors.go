package rdma

import (
	"errors"
	"fmt"
)

// Errors that calls return, wrapped in what says what was asked for: use errors.Is.
var (
	ErrInvalid      = errors.New("invalid argument")
	ErrQueueFull    = errors.New("queue is full")
	ErrNotConnected = errors.New("not connected")
	ErrBusy         = errors.New("still in use")
	ErrLimit        = errors.New("limit reached")
	ErrClosed       = errors.New("closed")
	ErrUnsupported  = errors.New("not supported")
	// ErrDeviceGone says that the daemon behind the device has gone; open a new one.
	ErrDeviceGone = errors.New("device is gone")
)

// A TerminateError is the cause in a Terminate message (RFC 5040, section 4.8) that ended a
// connection, sent by the peer (Remote) or by this end.
type TerminateError struct {
	Remote            bool
	Layer, Type, Code uint8
	Text              string // what the triple means
}

func (e *TerminateError) Error() string {
	who := "terminated here"
	if e.Remote {
		who = "terminated by the peer"
	}
	return fmt.Sprintf("%s: %s (layer %d, type %d, code %#02x)", who, e.Text, e.Layer, e.Type, e.Code)
}

// VendorErr is the form that WC.VendorErr has.
func (e *TerminateError) VendorErr() uint32 {
	return uint32(e.Layer)<<12 | uint32(e.Type)<<8 | uint32(e.Code)
}

// A RejectedError says that the peer's program refused the connection.
type RejectedError struct {
	PrivateData []byte
}

func (e *RejectedError) Error() string { return "connection rejected by the peer's program" }
