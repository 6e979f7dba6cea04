package top

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/gdamore/tcell/v2"
)

// looks are of a daemon with three queue pairs of two programs; each look n seconds behind the
// first one finds n times as much moved.
func lookAt(n int) Look {
	raw := func(format string, args ...any) json.RawMessage {
		return json.RawMessage(fmt.Sprintf(format, args...))
	}
	return Look{
		At: time.Unix(int64(1000+n), 0),
		QPs: []json.RawMessage{
			raw(`{"dev":"v0","qpn":1,"pid":7,"comm":"a\u001b[2Jb","state":"RTS","remote":"10.0.0.9:7"}`),
			raw(`{"dev":"v0","qpn":2,"pid":7,"comm":"ab","state":"IDLE","remote":null}`),
			raw(`{"dev":"r0","qpn":3,"pid":8,"comm":"c","state":"RTS","type":"RC","dest_qpn":5,` +
				`"remote":"10.0.0.9"}`)},
		Stat: []json.RawMessage{
			raw(`{"kind":"dev","dev":"v0","sends":99}`), raw(`{"kind":"dev","dev":"r0"}`),
			raw(`{"kind":"port","port":"v0"}`),
			raw(`{"kind":"qp","dev":"v0","qpn":1,"pid":7,"sends":%d,"sent_octets":%d,"errors":2}`, 10*n,
				1000*n),
			raw(`{"kind":"qp","dev":"v0","qpn":2,"pid":7,"reads":%d,"read_octets":%d,"errors":1}`, n,
				50*n),
			raw(`{"kind":"qp","dev":"r0","qpn":3,"pid":8,"in_reads":%d,"served_octets":%d,`+
				`"receives":%d,"received_octets":%d}`, 20*n, 100*n, 5*n, 2000*n),
			raw(`{"kind":"qp","dev":"r0","qpn":4,"pid":8}`)},
	}
}

// What moved between two looks is the rate, by queue pair and by program, in the order that is
// wanted; what a program calls itself does nothing to a terminal.
func TestModel(t *testing.T) {
	var m Model
	want := func(why string, v View, by Order, lines ...string) {
		t.Helper()
		text := m.Text(v, by, 100)
		for i := range text {
			text[i] = strings.Join(strings.Fields(text[i]), " ")
		}
		if got := strings.Join(text[3:], "\n"); got != strings.Join(lines, "\n") {
			t.Errorf("%s:\n%s\nwant\n%s", why, got, strings.Join(lines, "\n"))
		}
	}
	add := func(l Look) {
		t.Helper()
		if err := m.Add(l); err != nil {
			t.Fatal(err)
		}
	}
	add(lookAt(3))
	want("a first look has no rates", QPs, ByOut,
		"r0 3 8 c RTS 0 0 0 0 10.0.0.9 qp 5", "r0 4 8 ? 0 0 0 0 -",
		"v0 1 7 a?[2Jb RTS 0 0 0 2 10.0.0.9:7", "v0 2 7 ab IDLE 0 0 0 1 -")
	add(lookAt(5))
	one, two := "v0 1 7 a?[2Jb RTS 1.0k 0 10 2 10.0.0.9:7", "v0 2 7 ab IDLE 0 50 1 1 -"
	three, four := "r0 3 8 c RTS 100 2.0k 25 0 10.0.0.9 qp 5", "r0 4 8 ? 0 0 0 0 -"
	want("by what goes out", QPs, ByOut, one, three, two, four)
	want("by what comes in", QPs, ByIn, three, two, one, four)
	want("by messages", QPs, ByMessages, three, one, two, four)
	want("programs", Programs, ByOut, "7 a?[2Jb 2 1.0k 50 11 3", "8 c 2 100 2.0k 25 0")
	head := m.Text(QPs, ByIn, 100)[0]
	if !strings.HasSuffix(head, "2 devices, 4 queue pairs, 2 programs, by in; a second: 1.1kB out, "+
		"2.0kB in, 36 messages") {
		t.Error(head)
	}
	if n := len(m.Text(QPs, ByOut, 4)); n != 4 {
		t.Errorf("%d lines where there is room for 4", n)
	}
	if n := len(m.Text(QPs, ByOut, 0)); n != 3 {
		t.Errorf("%d lines where there is no room", n)
	}

	again := lookAt(6) // the queue pair is another one: it has moved less than before
	again.Stat[3] = json.RawMessage(`{"kind":"qp","dev":"v0","qpn":1,"pid":7,"sends":1}`)
	add(again)
	if l := m.Lines(QPs, ByOut); l[len(l)-1].Dev != "v0" || l[len(l)-1].Out != 0 {
		t.Errorf("a number that is used again: %+v", l)
	}
	if err := m.Add(Look{QPs: []json.RawMessage{[]byte("x")}}); err == nil {
		t.Error("a broken row of LIST is taken")
	}
	if err := m.Add(Look{Stat: []json.RawMessage{[]byte("x")}}); err == nil {
		t.Error("a broken row of STAT is taken")
	}
}

func TestAmount(t *testing.T) {
	for n, want := range map[float64]string{0: "0", 7.4: "7", 999: "999", 999.6: "1.0k", 1000: "1.0k",
		9949: "9.9k", 9960: "10k", 999_499: "999k", 999_600: "1.0M", 12.3e9: "12G", 5e21: "5000E"} {
		if got := amount(n); got != want {
			t.Errorf("%v is %s, want %s", n, got, want)
		}
	}
}

// A table each interval behind the first look, as many as wanted, or until there is nobody to ask.
func TestPlain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := 0
		look := func() (Look, error) { n++; return lookAt(n), nil }
		var b bytes.Buffer
		began := time.Now()
		if err := Plain(t.Context(), &b, time.Second, 2, Programs, ByOut, look); err != nil {
			t.Fatal(err)
		}
		if n != 3 || strings.Count(b.String(), "PROGRAM") != 2 || time.Since(began) != 2*time.Second {
			t.Errorf("%d looks in %v:\n%s", n, time.Since(began), &b)
		}
		gone := errors.New("gone")
		if err := Plain(t.Context(), &b, time.Second, 0, QPs, ByOut, func() (Look, error) {
			return Look{}, gone
		}); !errors.Is(err, gone) {
			t.Error(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		n = 0
		if err := Plain(ctx, &b, time.Second, 0, QPs, ByOut, look); err != nil || n < 10 {
			t.Errorf("%v after %d looks", err, n)
		}
	})
}

// A watched tells what is shown.
type watched struct {
	tcell.SimulationScreen
	shown chan string
}

func (w watched) Show() {
	w.SimulationScreen.Show()
	cells, width, _ := w.GetContents()
	var b strings.Builder
	for i, c := range cells {
		b.WriteString(string(c.Runes))
		if i%width == width-1 {
			b.WriteByte('\n')
		}
	}
	w.shown <- b.String()
}

// The screen shows the picture, and keys change it and end it.
func TestScreen(t *testing.T) {
	s := watched{tcell.NewSimulationScreen("UTF-8"), make(chan string, 100)}
	n := 0
	look := func() (Look, error) { n++; return lookAt(n), nil }
	ended := make(chan error, 1)
	go func() { ended <- Run(t.Context(), s, time.Hour, QPs, ByOut, look) }()
	wait := func(what string) {
		t.Helper()
		for late := time.After(time.Minute); ; {
			select {
			case text := <-s.shown:
				if strings.Contains(text, what) && strings.Contains(text, keys[:20]) {
					return
				}
			case <-late:
				t.Fatalf("no %q on the screen", what)
			}
		}
	}
	wait("DEVICE")
	s.InjectKey(tcell.KeyRune, 'p', 0)
	wait("    PID PROGRAM")
	s.InjectKey(tcell.KeyRune, 's', 0)
	wait("by in")
	s.InjectKey(tcell.KeyRune, 'p', 0)
	wait("DEVICE")
	s.InjectKey(tcell.KeyRune, 'q', 0)
	if err := <-ended; err != nil || n != 1 {
		t.Errorf("%v after %d looks", err, n)
	}
}
