package rpc

import (
	"bytes"
	"errors"
	"syscall"

	"github.com/vrnic/vrnic/shm/abi"
)

// A Message is what follows a header: a pointer to one of the structs of messages.go, or to Empty.
// They have no hidden padding, so their octets in memory are their encoding.
type Message interface {
	octets() []byte // of the struct itself
	padZero() bool  // reports whether its fields named Pad are zero
}

// Empty is a request or a reply without octets: a reply has a status all the same.
type Empty struct{}

func (*Empty) octets() []byte { return nil }
func (*Empty) padZero() bool  { return true }

// AppendMessage appends the header and the encoding of body.
func AppendMessage(b []byte, h Header, body Message) []byte {
	return AppendFor(b, h, body, abi.Minor)
}

// AppendFor is AppendMessage for a side that has a lower minor version: without what came later.
func AppendFor(b []byte, h Header, body Message, minor uint16) []byte {
	v := body.octets()
	if g, ok := body.(interface{ knownTo(minor uint16) int }); ok {
		v = v[:g.knownTo(minor)]
	}
	h.Len = uint32(len(v))
	return append(append(b, h.octets()...), v...)
}

// ParseMessage splits a message. body aliases msg. An error is an *abi.ProtocolError.
func ParseMessage(msg []byte) (h Header, body []byte, err error) {
	if len(msg) > MaxMessage {
		return h, nil, abi.Violation("message of %d octets", len(msg))
	}
	if len(msg) < HeaderLen {
		return h, nil, abi.Violation("message of %d octets has no header", len(msg))
	}
	copy(h.octets(), msg)
	if int64(h.Len) != int64(len(msg)-HeaderLen) {
		return h, nil, abi.Violation("%v: length %d in the header, %d octets follow", h.Op, h.Len,
			len(msg)-HeaderLen)
	}
	return h, msg[HeaderLen:], nil
}

// Decode fills v from body. By the rules of evolution a body that is shorter leaves the rest zero,
// and a longer one is accepted if the rest is zero, else it is E2BIG.
func Decode(body []byte, v Message) error {
	to := v.octets()
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

// Status is what goes into a reply for err: an errno in its chain, else EIO.
func Status(err error) int32 {
	if err == nil {
		return 0
	}
	var e syscall.Errno
	if errors.As(err, &e) && e > 0 && e < 4096 {
		return -int32(e)
	}
	return -int32(syscall.EIO)
}

// CString is b up to its first zero octet.
func CString(b []byte) string {
	if i := bytes.IndexByte(b, 0); i >= 0 {
		b = b[:i]
	}
	return string(b)
}

// DecodeRequest fills v by the rules of evolution and refuses what is not known.
func DecodeRequest(h Header, body []byte, v Message) error {
	if h.Flags != 0 || h.Status != 0 {
		return syscall.EINVAL
	}
	if err := Decode(body, v); err != nil {
		return err
	}
	if !v.padZero() {
		return syscall.EINVAL
	}
	return nil
}
