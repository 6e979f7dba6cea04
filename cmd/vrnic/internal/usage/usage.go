// Package usage lays out the text of vrnic's help.
package usage

import (
	"io"
	"strings"

	"github.com/urfave/cli/v2"
)

// Width is how wide help is at most: two terminals of 80 columns are rare, one of 100 is not.
const Width = 100

// Print is a cli.HelpPrinter.
func Print(w io.Writer, template string, data any) {
	var b strings.Builder
	cli.HelpPrinterCustom(&b, template, data, nil)
	for line := range strings.Lines(b.String()) {
		// Nobody can do anything about output that cannot be written.
		_, _ = io.WriteString(w, fold(line, Width))
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

// Description has the paragraphs of a command's description in lines as help prints them. Lines
// that begin with a space stay.
func Description(text string) string { return reflow(text, Width-len("   ")) }

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
