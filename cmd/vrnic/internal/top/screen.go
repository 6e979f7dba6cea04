package top

import (
	"context"
	"io"
	"math"
	"strings"
	"time"

	"github.com/gdamore/tcell/v2"
)

// Plain writes looks to w, one each interval behind the first, n of them; 0: until ctx ends.
func Plain(ctx context.Context, w io.Writer, interval time.Duration, n int, view View, by Order,
	look func() (Look, error)) error {
	tick := time.NewTicker(interval)
	defer tick.Stop()
	var m Model
	for i := 0; ; i++ {
		l, err := look()
		if err == nil {
			err = m.Add(l)
		}
		if err == nil && i > 0 {
			text := strings.Join(m.Text(view, by, math.MaxInt), "\n")
			_, err = io.WriteString(w, text+"\n\n")
		}
		if err != nil || n > 0 && i == n {
			return err
		}
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
	}
}

const keys = "q quit   p queue pairs or programs   s what comes first"

// Run shows looks on s, one each interval, until who watches has enough of it or ctx ends.
func Run(ctx context.Context, s tcell.Screen, interval time.Duration, view View, by Order,
	look func() (Look, error)) error {
	if err := s.Init(); err != nil {
		return err
	}
	defer s.Fini()
	events, quit := make(chan tcell.Event), make(chan struct{})
	defer close(quit)
	go s.ChannelEvents(events, quit)
	tick := time.NewTicker(interval)
	defer tick.Stop()

	var m Model
	for again := true; ; {
		if again {
			l, err := look()
			if err == nil {
				err = m.Add(l)
			}
			if err != nil {
				return err
			}
		}
		draw(s, &m, view, by)
		again = false
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
			again = true
		case e, ok := <-events:
			if !ok {
				return nil
			}
			switch e := e.(type) {
			case *tcell.EventResize:
				s.Sync()
			case *tcell.EventKey:
				switch {
				case e.Key() == tcell.KeyCtrlC, e.Key() == tcell.KeyEscape, e.Rune() == 'q':
					return nil
				case e.Rune() == 'p':
					view = QPs + Programs - view
				case e.Rune() == 's':
					by = (by + 1) % Order(len(orders))
				}
			}
		}
	}
}

// draw puts the picture on s, with the keys in its last line.
func draw(s tcell.Screen, m *Model, view View, by Order) {
	s.Clear()
	_, height := s.Size()
	for y, line := range m.Text(view, by, height-1) {
		style := tcell.StyleDefault
		if strings.Contains(line, "OUT B/s") {
			style = style.Reverse(true)
		}
		put(s, y, line, style)
	}
	put(s, height-1, keys, tcell.StyleDefault.Dim(true))
	s.Show()
}

func put(s tcell.Screen, y int, line string, style tcell.Style) {
	for x, r := range []rune(line) {
		s.SetContent(x, y, r, nil, style)
	}
}
