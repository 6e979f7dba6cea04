package shm

import (
	"bytes"
	"errors"
	"fmt"
	"syscall"
)

// A ProtocolError is a violation of the ABI by the other side: the session is over.
type ProtocolError struct{ Text string }

func (e *ProtocolError) Error() string { return "shm: protocol violation: " + e.Text }

func violation(format string, args ...any) error {
	return &ProtocolError{Text: fmt.Sprintf(format, args...)}
}

// IsViolation reports whether err is, or wraps, a *ProtocolError.
func IsViolation(err error) bool {
	var pe *ProtocolError
	return errors.As(err, &pe)
}

// AppendMessage appends the header and the encoding of body, one of the structs of this package or a
// pointer to it. Host byte order.
func AppendMessage(b []byte, h Header, body any) []byte {
	v := octetsOf(body)
	h.Len = uint32(len(v))
	return append(append(b, headerOctets(&h)...), v...)
}

// ParseMessage splits a message. body aliases msg. An error is a *ProtocolError.
func ParseMessage(msg []byte) (h Header, body []byte, err error) {
	if len(msg) > MaxMessage {
		return h, nil, violation("message of %d octets", len(msg))
	}
	if len(msg) < HeaderLen {
		return h, nil, violation("message of %d octets has no header", len(msg))
	}
	copy(headerOctets(&h), msg)
	if int64(h.Len) != int64(len(msg)-HeaderLen) {
		return h, nil, violation("%v: length %d in the header, %d octets follow", h.Op, h.Len, len(msg)-HeaderLen)
	}
	return h, msg[HeaderLen:], nil
}

// Decode fills v, a pointer to one of the structs of this package, from body. By the rules of
// evolution a body that is shorter leaves the rest zero, and a longer one is accepted if the rest
// is zero, else it is E2BIG.
func Decode(body []byte, v any) error {
	to := octetsOf(v)
	if n := len(to); len(body) > n && !allZero(body[n:]) {
		return syscall.E2BIG
	}
	clear(to[copy(to, body):])
	return nil
}

func allZero(b []byte) bool {
	for _, o := range b {
		if o != 0 {
			return false
		}
	}
	return true
}

// Errno is the -errno that status stands for, or nil.
func Errno(status int32) error {
	if status >= 0 {
		return nil
	}
	return syscall.Errno(-int64(status))
}

// statusOf is what goes into a reply for err: an errno in its chain, else EIO.
func statusOf(err error) int32 {
	if err == nil {
		return 0
	}
	var e syscall.Errno
	if errors.As(err, &e) && e > 0 && e < 4096 {
		return -int32(e)
	}
	return -int32(syscall.EIO)
}

// cString is b up to its first zero octet.
func cString(b []byte) string {
	if i := bytes.IndexByte(b, 0); i >= 0 {
		b = b[:i]
	}
	return string(b)
}
