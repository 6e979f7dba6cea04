package shm

import (
	"github.com/vrnic/vrnic/rdma"
	"github.com/vrnic/vrnic/shm/abi"
)

// terminateError is what the word at QPError, or the cause in an event, stands for; nil if it holds
// none.
func terminateError(word uint32) *rdma.TerminateError {
	if word&abi.ErrorValid == 0 {
		return nil
	}
	c := word & abi.ErrorCauseMax
	e := &rdma.TerminateError{
		Remote: word&abi.ErrorRemote != 0,
		Layer:  uint8(c >> 12), Type: uint8(c >> 8 & 0xf), Code: uint8(c),
	}
	e.Text = causeText(e.Layer, e.Type, e.Code)
	return e
}

// causeText puts the triple of a Terminate message into words: RFC 5040, section 4.8; RFC 5041,
// section 7.2; RFC 5044, section 8; RFC 6581, section 8.
func causeText(layer, typ, code uint8) string {
	if s, ok := causes[[3]uint8{layer, typ, code}]; ok {
		return s
	}
	switch {
	case layer == 0 && typ == 0:
		return "local catastrophic error"
	case layer == 0 && typ == 1:
		return "remote protection error"
	case layer == 0 && typ == 2:
		return "remote operation error"
	case layer == 1 && typ == 0:
		return "local catastrophic error in DDP"
	case layer == 2, layer == 1 && typ == 3:
		return "error of the transport"
	}
	return "unknown cause"
}

var causes = map[[3]uint8]string{
	{0, 1, 0x00}: "read: invalid STag",
	{0, 1, 0x01}: "read: base or bounds violation",
	{0, 1, 0x02}: "read: access rights violation",
	{0, 1, 0x03}: "read: STag not associated with the stream",
	{0, 1, 0x04}: "read: TO wrap",
	{0, 1, 0x09}: "STag to invalidate not associated with the stream",
	{0, 2, 0x05}: "invalid RDMAP version",
	{0, 2, 0x06}: "unexpected opcode",
	{0, 2, 0x07}: "catastrophic error, localized to the stream",
	{0, 2, 0x08}: "catastrophic error, global",
	{0, 2, 0x09}: "STag cannot be invalidated",
	{1, 1, 0x00}: "invalid STag",
	{1, 1, 0x01}: "base or bounds violation",
	{1, 1, 0x02}: "STag not associated with the stream",
	{1, 1, 0x03}: "TO wrap",
	{1, 1, 0x04}: "invalid DDP version, tagged",
	{1, 2, 0x01}: "invalid QN",
	{1, 2, 0x02}: "no receive buffer",
	{1, 2, 0x03}: "MSN out of range",
	{1, 2, 0x04}: "invalid MO",
	{1, 2, 0x05}: "message too long for its buffer",
	{1, 2, 0x06}: "invalid DDP version, untagged",
	{2, 0, 0x01}: "TCP connection closed or lost",
	{2, 0, 0x02}: "MPA CRC error",
	{2, 0, 0x03}: "MPA framing error",
	{2, 0, 0x04}: "invalid MPA Request or Reply frame",
	{2, 0, 0x05}: "local catastrophic error in MPA",
	{2, 0, 0x06}: "insufficient IRD resources",
	{2, 0, 0x07}: "no matching RTR option",
}
