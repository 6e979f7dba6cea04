package main

import (
	"io"
	"strings"

	"github.com/urfave/cli/v2"
)

// helpWidth is how wide help is at most: two terminals of 80 columns are rare, one of 100 is not.
const helpWidth = 100

func init() {
	cli.HelpPrinter = func(w io.Writer, template string, data any) {
		var b strings.Builder
		cli.HelpPrinterCustom(&b, template, data, nil)
		for line := range strings.Lines(b.String()) {
			// Nobody can do anything about output that cannot be written.
			_, _ = io.WriteString(w, fold(line, helpWidth))
		}
	}
}

// fold breaks line at spaces, so that it is at most width wide. What goes on stands below what is
// behind the line's last gap of two spaces, or below its beginning.
func fold(line string, width int) string {
	line = strings.TrimRight(line, " \n")
	indent := len(line) - len(strings.TrimLeft(line, " "))
	if gap := strings.LastIndex(line[:min(len(line), width/2)], "  "); gap >= indent {
		indent = gap + 2
	}
	var b strings.Builder
	for len(line) > width {
		cut := strings.LastIndexByte(line[:width+1], ' ')
		if cut <= indent {
			break // a word
		}
		b.WriteString(strings.TrimRight(line[:cut], " ") + "\n")
		line = strings.Repeat(" ", indent) + line[cut+1:]
	}
	b.WriteString(line + "\n")
	return b.String()
}

// reflow makes lines of at most width of paragraphs. Lines that begin with a space stay.
func reflow(text string, width int) string {
	var b, paragraph strings.Builder
	flush := func() {
		if paragraph.Len() > 0 {
			b.WriteString(fold(paragraph.String(), width))
			paragraph.Reset()
		}
	}
	for line := range strings.Lines(text) {
		switch line = strings.TrimRight(line, " \n"); {
		case line == "" || line[0] == ' ':
			flush()
			b.WriteString(line + "\n")
		case paragraph.Len() > 0:
			paragraph.WriteString(" " + line)
		default:
			paragraph.WriteString(line)
		}
	}
	flush()
	return strings.TrimRight(b.String(), "\n")
}
