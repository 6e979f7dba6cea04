package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"iter"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"
)

// A field is one member of a row, in the row's own order.
type field struct{ key, value string }

// parseRow reads a row of the daemon: one flat JSON object.
func parseRow(raw json.RawMessage) ([]field, error) {
	dec := json.NewDecoder(bytes.NewReader(raw))
	dec.UseNumber()
	if tok, err := dec.Token(); err != nil || tok != json.Delim('{') || !json.Valid(raw) {
		return nil, fmt.Errorf("the daemon sent a row that is no object: %.80q", raw)
	}
	var fields []field
	for dec.More() {
		key, err := dec.Token()
		if err != nil {
			return nil, fmt.Errorf("the daemon sent a broken row: %w", err)
		}
		var value any
		if err := dec.Decode(&value); err != nil {
			return nil, fmt.Errorf("the daemon sent a broken row: %w", err)
		}
		name, _ := key.(string)
		fields = append(fields, field{plain(name), text(value)})
	}
	return fields, nil
}

// text is a value as one word of a line.
func text(value any) string {
	switch v := value.(type) {
	case nil:
		return "-"
	case string:
		return plain(v)
	case bool:
		if v {
			return "yes"
		}
		return "no"
	case json.Number:
		return v.String()
	case []any:
		if len(v) == 0 {
			return "-"
		}
		parts := make([]string, len(v))
		for i, e := range v {
			parts[i] = text(e)
		}
		return strings.Join(parts, ",")
	}
	b, err := json.Marshal(value)
	if err != nil {
		return "?"
	}
	return plain(string(b))
}

// plain is s if it is one harmless word, else s quoted: names of programs come from programs.
func plain(s string) string {
	if s == "" {
		return "-"
	}
	if !utf8.ValidString(s) || strings.ContainsFunc(s, func(r rune) bool {
		return r == '"' || unicode.IsSpace(r) || !unicode.IsPrint(r)
	}) {
		return strconv.QuoteToASCII(s)
	}
	return s
}

// groupRows is how many rows at most are kept back for columns that stand below each other.
const groupRows = 1024

// writeRows prints one line per row, key and value in turn. Columns stand below each other as
// long as rows have the same keys. Rows are printed as they come, so that there may be any number.
func writeRows(w io.Writer, rows iter.Seq2[json.RawMessage, error]) error {
	var group [][]field
	flush := func() error {
		err := writeGroup(w, group)
		group = group[:0]
		return err
	}
	for raw, err := range rows {
		var row []field
		if err == nil {
			row, err = parseRow(raw)
		}
		if err == nil && len(group) > 0 && (!sameKeys(group[0], row) || len(group) == groupRows) {
			err = flush()
		}
		if err != nil {
			return errors.Join(err, flush())
		}
		group = append(group, row)
	}
	return flush()
}

func sameKeys(a, b []field) bool {
	if len(a) != len(b) {
		return false
	}
	for i := range a {
		if a[i].key != b[i].key {
			return false
		}
	}
	return true
}

func writeGroup(w io.Writer, group [][]field) error {
	if len(group) == 0 {
		return nil
	}
	width := make([]int, len(group[0]))
	for _, row := range group {
		for i, f := range row {
			width[i] = max(width[i], utf8.RuneCountInString(f.value))
		}
	}
	var b strings.Builder
	for _, row := range group {
		b.Reset()
		for i, f := range row {
			if i > 0 {
				b.WriteByte(' ')
			}
			b.WriteString(f.key)
			b.WriteByte(' ')
			b.WriteString(f.value)
			if i < len(row)-1 {
				b.WriteString(strings.Repeat(" ", width[i]-utf8.RuneCountInString(f.value)))
			}
		}
		b.WriteByte('\n')
		if _, err := io.WriteString(w, b.String()); err != nil {
			return err
		}
	}
	return nil
}

// writeJSON prints rows as one array, a row a line.
func writeJSON(w io.Writer, rows iter.Seq2[json.RawMessage, error]) error {
	out := bufio.NewWriter(w)
	sep, end := "[", "[]\n"
	for row, err := range rows {
		if err != nil {
			return errors.Join(err, out.Flush())
		}
		fmt.Fprintf(out, "%s\n  %s", sep, bytes.TrimSpace(row))
		sep, end = ",", "\n]\n"
	}
	fmt.Fprint(out, end)
	return out.Flush() // with the first error
}

// allOf gives rows that are there already.
func allOf(rows []json.RawMessage) iter.Seq2[json.RawMessage, error] {
	return func(yield func(json.RawMessage, error) bool) {
		for _, row := range rows {
			if !yield(row, nil) {
				return
			}
		}
	}
}
