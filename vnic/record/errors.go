package record

import (
	"errors"
	"io"

	"github.com/vrnic/vrnic/iwarp"
	"github.com/vrnic/vrnic/roce"
)

// Codes of errors in Steps: the lowest octet says which kind it is, the others are its own.
const (
	codeNone = iota
	codeOther
	codeLocal // an iwarp.LocalError: layer, type and code
	codeUnanswered
	codeNoReceive
	codeEOF
	codeNAK // a roce.NAK: its syndrome
)

// codeOf is what engines and their owners ask of err, and textOf the words that go with it.
func codeOf(err error) uint64 {
	if err == nil {
		return codeNone
	}
	if le := (*iwarp.LocalError)(nil); errors.As(err, &le) {
		return codeLocal | uint64(le.Cause.Layer)<<8 | uint64(le.Cause.Type)<<16 |
			uint64(le.Cause.Code)<<24
	}
	if nak := roce.NAK(0); errors.As(err, &nak) {
		return codeNAK | uint64(nak)<<8
	}
	switch {
	case errors.Is(err, iwarp.ErrUnanswered):
		return codeUnanswered
	case errors.Is(err, iwarp.ErrNoReceive):
		return codeNoReceive
	case errors.Is(err, io.EOF):
		return codeEOF
	}
	return codeOther
}

func textOf(err error) string {
	if err == nil {
		return ""
	}
	if le := (*iwarp.LocalError)(nil); errors.As(err, &le) {
		return textOf(le.Err) // an engine makes the rest of it anew
	}
	return err.Error()
}

// causeOf is the cause of a code of codeLocal.
func causeOf(code uint64) iwarp.TermCode {
	return iwarp.TermCode{Layer: uint8(code >> 8), Type: uint8(code >> 16), Code: uint8(code >> 24)}
}

// errorOf is an error that looks to engines as the one did of which code and text are.
func errorOf(code uint64, text string) error {
	switch code & 0xff {
	case codeNone:
		return nil
	case codeLocal:
		le := &iwarp.LocalError{Cause: causeOf(code)}
		if text != "" {
			le.Err = errors.New(text)
		}
		return le
	case codeUnanswered:
		return &replayed{text, iwarp.ErrUnanswered}
	case codeNoReceive:
		return &replayed{text, iwarp.ErrNoReceive}
	case codeEOF:
		return &replayed{text, io.EOF}
	case codeNAK:
		return &replayed{text, roce.NAK(code >> 8)}
	}
	return errors.New(text)
}

// replayed is an error that is another one, with words of its own.
type replayed struct {
	text string
	is   error
}

func (e *replayed) Error() string { return e.text }
func (e *replayed) Unwrap() error { return e.is }
