package shm

import (
	"bytes"
	"encoding/json"

	"github.com/vrnic/vrnic/shm/abi"
)

// maxListPages bounds what a client takes from a daemon in one list: some 64 MiB.
const maxListPages = 1 << 14

// list pages through an answer of rows.
func (c *Client) list(op abi.Op, what string, kind uint32) ([]json.RawMessage, error) {
	var rows []json.RawMessage
	req := &abi.ListRequest{Kind: kind}
	for range maxListPages {
		var rep abi.ListReply
		if err := c.call(op, what, req, &rep); err != nil {
			return nil, err
		}
		more, err := parseRows(&rep)
		if err != nil {
			return nil, c.die(err)
		}
		rows = append(rows, more...)
		if rep.Next == 0 {
			return rows, nil
		}
		req.Cursor = rep.Next
	}
	return nil, c.die(errCorrupt("a list without end"))
}

// parseRows takes the rows out of one reply: JSON objects, each ended by a newline.
func parseRows(rep *abi.ListReply) ([]json.RawMessage, error) {
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
