package shm

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"iter"
	"syscall"

	"github.com/vrnic/vrnic/shm/rpc"
)

// rows pages through an answer of rows.
func (c *Client) rows(ctx context.Context, op rpc.Op, what string,
	kind uint32) iter.Seq2[json.RawMessage, error] {
	return func(yield func(json.RawMessage, error) bool) {
		req := &rpc.ListRequest{Kind: kind}
		for {
			rep := &rpc.ListReply{}
			_, err := c.rpcWithin(ctx, op, what, req, rep, -1)
			if ce, ok := errors.AsType[*CallError](err); ok && ce.Errno == syscall.EINVAL {
				ce.Errno = syscall.EOPNOTSUPP // an older daemon has no list of that kind
			}
			var page []json.RawMessage
			if err == nil {
				if page, err = parseRows(rep); err == nil && rep.Next != 0 &&
					(rep.Next <= req.Cursor || len(page) == 0) {
					err = errCorrupt("a list that does not get on")
				}
				if err != nil {
					err = c.die(err)
				}
			}
			if err != nil {
				yield(nil, err)
				return
			}
			for _, row := range page {
				if !yield(row, nil) {
					return
				}
			}
			if rep.Next == 0 {
				return
			}
			// Another one: a call that was given up may still be read.
			req = &rpc.ListRequest{Kind: kind, Cursor: rep.Next}
		}
	}
}

// collect is all rows, or the first error.
func collect(rows iter.Seq2[json.RawMessage, error]) (all []json.RawMessage, err error) {
	for row, err := range rows {
		if err != nil {
			return nil, err
		}
		all = append(all, row)
	}
	return all, nil
}

// parseRows takes the rows out of one reply: JSON objects, each ended by a newline.
func parseRows(rep *rpc.ListReply) ([]json.RawMessage, error) {
	if rep.Len > uint32(len(rep.Data)) {
		return nil, errCorrupt("%d octets of rows in a reply for %d", rep.Len, len(rep.Data))
	}
	var rows []json.RawMessage
	data := rep.Data[:rep.Len]
	for len(data) != 0 {
		row, rest, ok := bytes.Cut(data, []byte{'\n'})
		row = bytes.TrimSpace(row)
		if !ok || len(row) == 0 || row[0] != '{' || !json.Valid(row) {
			return nil, errCorrupt("a row that is not a JSON object")
		}
		rows = append(rows, bytes.Clone(row))
		data = rest
	}
	return rows, nil
}
