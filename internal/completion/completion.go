// Package completion completes command lines of this module's programs in shells: a script for each
// shell asks the program itself, by a hidden command, what may come next. Nothing of what is being
// typed is run.
package completion

import (
	"embed"
	"fmt"
	"io"
	"strings"

	"github.com/urfave/cli/v2"
)

// asks is the hidden command that scripts call with the words behind the program's name, the last
// of which is the one being typed.
const asks = "__complete"

//go:embed script.*
var scripts embed.FS

// shells are those with a script.
var shells = []string{"bash", "zsh", "fish"}

// Values gives what a value may be that help calls by that name, such as DEVICE; nil: the shell
// offers files.
type Values func(name string) []string

// Commands are the command "completion SHELL", which prints a script, and the one that scripts
// call.
func Commands(program string, values Values) []*cli.Command {
	script := &cli.Command{
		Name:      "completion",
		Usage:     "print a script that completes commands in a shell",
		UsageText: program + " completion bash|zsh|fish",
		Description: "Prints a script that completes commands, their options and names of devices. " +
			"Packages install it; else it goes into ~/.bashrc, ~/.zshrc or " +
			"~/.config/fish/config.fish:\n\n" +
			strings.ReplaceAll("   source <(PROGRAM completion bash)\n"+
				"   source <(PROGRAM completion zsh)\n"+
				"   PROGRAM completion fish | source", "PROGRAM", program),
	}
	for _, shell := range shells {
		script.Subcommands = append(script.Subcommands, &cli.Command{
			Name: shell, Usage: "the script for " + shell,
			Action: func(c *cli.Context) error { return Script(c.App.Writer, program, shell) },
		})
	}
	return []*cli.Command{script, {
		Name: asks, Hidden: true, SkipFlagParsing: true,
		Action: func(c *cli.Context) error {
			for _, n := range Next(c.App, values, c.Args().Slice()) {
				if _, err := fmt.Fprintf(c.App.Writer, "%s\t%s\n", n.Text, n.Usage); err != nil {
					return err
				}
			}
			return nil
		},
	}}
}

// Script writes the script of a shell for a program of that name.
func Script(w io.Writer, program, shell string) error {
	text, err := scripts.ReadFile("script." + shell)
	if err != nil {
		return err
	}
	function := strings.ReplaceAll(program, "-", "_")
	_, err = strings.NewReplacer("PROGRAM", program, "FUNCTION", function, "ASKS", asks).
		WriteString(w, string(text))
	return err
}

// A Candidate is a word that may come next.
type Candidate struct{ Text, Usage string }

// Next is what the last of words may become; words are those behind the program's name. Nothing:
// the shell offers files.
func Next(app *cli.App, values Values, words []string) (next []Candidate) {
	if len(words) == 0 {
		words = []string{""}
	}
	last := len(words) - 1
	commands, flags := app.Commands, app.Flags
	given := make(map[string]bool)
	var awaits cli.DocGenerationFlag // whose value comes next
	for _, w := range words[:last] {
		switch {
		case awaits != nil && w == "=": // shells that break words there
		case awaits != nil:
			awaits = nil
		case w == "--":
			return nil // what follows is somebody else's
		case strings.HasPrefix(w, "-"):
			name, _, whole := strings.Cut(strings.TrimLeft(w, "-"), "=")
			flag := lookup(flags, name)
			if flag == nil {
				continue
			}
			for _, n := range flag.Names() {
				given[n] = true
			}
			if d, ok := flag.(cli.DocGenerationFlag); ok && d.TakesValue() && !whole {
				awaits = d
			}
		default:
			for _, c := range commands {
				if c.HasName(w) {
					commands, flags = c.Subcommands, c.Flags
					clear(given)
					break
				}
			}
		}
	}
	typed := words[last]
	add := func(text, usage string) {
		if strings.HasPrefix(text, typed) {
			usage, _, _ = strings.Cut(usage, "\n")
			next = append(next, Candidate{text, strings.ReplaceAll(usage, "`", "")})
		}
	}
	switch {
	case awaits != nil:
		if typed == "=" {
			typed = ""
		}
		_, name, _ := strings.Cut(awaits.GetUsage(), "`")
		name, _, _ = strings.Cut(name, "`")
		for _, v := range values(name) {
			add(v, "")
		}
	case strings.HasPrefix(typed, "-"):
		for _, f := range flags {
			name := f.Names()[0]
			more, _ := f.(cli.DocGenerationSliceFlag)
			if given[name] && (more == nil || !more.IsSliceFlag()) || len(name) == 1 {
				continue
			}
			if v, ok := f.(cli.VisibleFlag); ok && !v.IsVisible() {
				continue
			}
			var usage string
			if d, ok := f.(cli.DocGenerationFlag); ok {
				usage = d.GetUsage()
			}
			add("--"+name, usage)
		}
		add("--help", "show help")
	default:
		for _, c := range commands {
			if !c.Hidden {
				add(c.Name, c.Usage)
			}
		}
	}
	return next
}

func lookup(flags []cli.Flag, name string) cli.Flag {
	for _, f := range flags {
		for _, n := range f.Names() {
			if n == name {
				return f
			}
		}
	}
	return nil
}
