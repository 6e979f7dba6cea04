package abi

import (
	"errors"
	"fmt"
)

// A ProtocolError is a violation of the ABI by the other side: the session is over.
type ProtocolError struct{ Text string }

func (e *ProtocolError) Error() string { return "shm: protocol violation: " + e.Text }

func Violation(format string, args ...any) error {
	return &ProtocolError{Text: fmt.Sprintf(format, args...)}
}

// IsViolation reports whether err is, or wraps, a *ProtocolError.
func IsViolation(err error) bool {
	var pe *ProtocolError
	return errors.As(err, &pe)
}
