package top

import (
	"fmt"
	"strings"
	"unicode"
)

// Text is a picture in lines of what the last look says: a head, the names of the columns, and as
// many lines as there is room for.
func (m *Model) Text(v View, by Order, room int) []string {
	t := m.totals
	text := []string{fmt.Sprintf("%s  %d devices, %d queue pairs, %d programs, by %s; a second: "+
		"%sB out, %sB in, %s messages", m.at.Format("15:04:05"), t.Devices, t.QPs, t.Programs,
		orders[by], amount(t.Out), amount(t.In), amount(t.Rate)), ""}
	lines := m.Lines(v, by)
	if v == Programs {
		text = append(text, fmt.Sprintf("%7s %-15s %6s %7s %7s %7s %7s", "PID", "PROGRAM", "QPS",
			"OUT B/s", "IN B/s", "MSG/s", "ERRORS"))
	} else {
		text = append(text, fmt.Sprintf("%-10s %8s %7s %-15s %-6s %7s %7s %7s %7s  %s", "DEVICE", "QP",
			"PID", "PROGRAM", "STATE", "OUT B/s", "IN B/s", "MSG/s", "ERRORS", "PEER"))
	}
	for i := range lines[:min(len(lines), max(room-len(text), 0))] {
		l := &lines[i]
		rates := fmt.Sprintf("%7s %7s %7s %7d", amount(l.Out), amount(l.In), amount(l.Rate), l.Errors)
		if v == Programs {
			text = append(text, fmt.Sprintf("%7d %-15s %6d %s", l.PID, clean(l.Comm), l.Count, rates))
		} else {
			text = append(text, fmt.Sprintf("%-10s %8d %7d %-15s %-6s %s  %s", l.Dev, l.QPN, l.PID,
				clean(l.Comm), l.State, rates, l.Peer))
		}
	}
	return text
}

// clean is a name that a program has given itself, fit for a terminal.
func clean(s string) string {
	return strings.Map(func(r rune) rune {
		if !unicode.IsPrint(r) {
			return '?'
		}
		return r
	}, s)
}
