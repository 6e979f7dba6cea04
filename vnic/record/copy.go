package record

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
)

// Copy copies a recording, record by record, until its end or until it would have more than most
// octets: then it gets an end of its own. n is how many were copied, why how it has ended; ErrCut:
// in came to an end before it did.
func Copy(to io.Writer, in io.Reader, most int64) (n int64, why string, err error) {
	r, w := bufio.NewReaderSize(in, 1<<16), bufio.NewWriterSize(to, 1<<16)
	defer func() { err = errors.Join(err, w.Flush()) }()
	if n, err = io.CopyN(w, r, int64(len(magic))); err != nil {
		return n, "", cutOr(err)
	}
	var b []byte
	for {
		if r.Buffered() == 0 {
			if err := w.Flush(); err != nil {
				return n, "", err
			}
		}
		size, err := binary.ReadUvarint(r)
		if err != nil {
			return n, "", cutOr(err)
		}
		if size == 0 || size > maxRecord {
			return n, "", fmt.Errorf("a record of %d octets", size)
		}
		b = binary.AppendUvarint(b[:0], size)
		head := len(b)
		b = append(b, make([]byte, size+4)...)
		if _, err := io.ReadFull(r, b[head:]); err != nil {
			return n, "", cutOr(err)
		}
		ends := b[head] == kindEnd
		if n+int64(len(b)) > most && !ends {
			why = "it has the size that it may have"
			b, ends = appendRecord(b[:0], append([]byte{kindEnd}, why...)), true
		} else if ends {
			why = string(b[head+1 : head+int(size)])
		}
		k, err := w.Write(b)
		if n += int64(k); err != nil || ends {
			return n, why, err
		}
	}
}

// cutOr is ErrCut for the end of what is copied, and err else.
func cutOr(err error) error {
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return ErrCut
	}
	return err
}
