// Package manual makes man(7) pages out of command lines, so that a page says what the program's
// help says: one of the program and one of each of its commands.
package manual

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/urfave/cli/v2"
)

// A Manual is what pages say that help does not.
type Manual struct {
	Environment, Files [][2]string // of a name and what it is
}

// Command is the hidden command "manual DIR", which writes the pages of its program.
func (m Manual) Command() *cli.Command {
	return &cli.Command{
		Name: "manual", Hidden: true,
		Usage:     "write man pages into DIR, a directory",
		ArgsUsage: "DIR",
		Action: func(c *cli.Context) error {
			if c.Args().Len() != 1 {
				return cli.Exit("into which directory? One argument is wanted", 2)
			}
			return m.Write(c.App, c.Args().First())
		},
	}
}

// Write writes the pages of app into dir, an existing directory: NAME.1 and NAME-COMMAND.1.
func (m Manual) Write(app *cli.App, dir string) error {
	pages := map[string]string{app.Name: m.program(app)}
	for _, c := range commands(app) {
		pages[app.Name+"-"+c.Name] = m.command(app, c)
	}
	for name, text := range pages {
		if err := os.WriteFile(filepath.Join(dir, name+".1"), []byte(text), 0o644); err != nil {
			return err
		}
	}
	return nil
}

// commands are those with a page.
func commands(app *cli.App) (with []*cli.Command) {
	for _, c := range app.Commands {
		if !c.Hidden && c.Name != "help" {
			with = append(with, c)
		}
	}
	return with
}

func (m Manual) program(app *cli.App) string {
	p := begin(app.Name, app.Usage, app.UsageText, app.Description)
	p.section("COMMANDS")
	for _, c := range commands(app) {
		p.item(bold(app.Name+"-"+c.Name)+"(1)", c.Usage)
	}
	p.flags("OPTIONS", app.Flags)
	p.list("ENVIRONMENT", m.Environment)
	p.list("FILES", m.Files)
	return p.end()
}

func (m Manual) command(app *cli.App, c *cli.Command) string {
	name := app.Name + " " + c.Name
	p := begin(strings.ReplaceAll(name, " ", "-"), c.Usage, usageOf(name, c), c.Description)
	for _, sub := range c.Subcommands {
		p.section(strings.ToUpper(sub.Name))
		p.preformatted(usageOf(name+" "+sub.Name, sub))
		p.text(strings.TrimSuffix(sub.Usage, ".") + ".")
		p.text(sub.Description)
		p.options(sub.Flags)
	}
	p.flags("OPTIONS", c.Flags)
	p.section("SEE ALSO")
	p.line(bold(app.Name) + "(1)")
	return p.end()
}

func usageOf(name string, c *cli.Command) string {
	if c.UsageText != "" {
		return c.UsageText
	}
	return name + " [OPTION]..."
}

// A page is a page that is being written.
type page struct{ strings.Builder }

func begin(name, usage, synopsis, description string) *page {
	p := new(page)
	p.line(fmt.Sprintf(`.TH %s 1 "" vrnic "User Commands"`, quote(strings.ToUpper(name))))
	p.line(".ad l\n.nh") // of words such as options none is torn
	p.section("NAME")
	p.line(escape(name) + ` \- ` + escape(usage))
	p.section("SYNOPSIS")
	p.preformatted(synopsis)
	if description != "" {
		p.section("DESCRIPTION")
		p.text(description)
	}
	return p
}

func (p *page) end() string { return p.String() }

func (p *page) line(s string) { p.WriteString(s + "\n") }

func (p *page) section(name string) { p.line(".SH " + quote(name)) }

// text writes paragraphs; lines that begin with a space stay as they are.
func (p *page) text(s string) {
	var as bool // as they are
	for line := range strings.Lines(s) {
		line = strings.TrimRight(line, "\n ")
		switch indented := strings.HasPrefix(line, " "); {
		case line == "" && !as:
			p.line(".PP")
			continue
		case indented != as && line != "":
			if as = indented; as {
				p.line(".nf")
			} else {
				p.line(".fi\n.PP")
			}
		}
		p.line(escape(line))
	}
	if as {
		p.line(".fi")
	}
}

func (p *page) preformatted(s string) { p.line(".nf\n" + escape(s) + "\n.fi") }

// item writes a term, in roff, and what it is.
func (p *page) item(term, what string) {
	p.line(".TP\n" + term)
	p.line(escape(what))
}

func (p *page) list(name string, items [][2]string) {
	if len(items) == 0 {
		return
	}
	p.section(name)
	for _, i := range items {
		p.item(bold(i[0]), i[1])
	}
}

func (p *page) flags(name string, flags []cli.Flag) {
	p.section(name)
	p.options(append(flags[:len(flags):len(flags)], cli.HelpFlag))
}

func (p *page) options(flags []cli.Flag) {
	seen := make(map[string]bool) // help may have been added already
	for _, f := range flags {
		if v, ok := f.(cli.VisibleFlag); ok && !v.IsVisible() || seen[f.Names()[0]] {
			continue
		}
		seen[f.Names()[0]] = true
		// A flag prints as help has it: its names, a tab, what it is.
		names, what, _ := strings.Cut(f.String(), "\t")
		p.item(bold(names), strings.TrimSpace(what))
	}
}

func bold(s string) string { return `\fB` + escape(s) + `\fP` }

// quote makes s one argument of a request.
func quote(s string) string { return `"` + strings.ReplaceAll(escape(s), `"`, `\(dq`) + `"` }

// escape has s printed as it is.
func escape(s string) string {
	s = strings.NewReplacer(`\`, `\e`, "-", `\-`, "'", `\(aq`, "`", `\(ga`, "^", `\(ha`, "~", `\(ti`).
		Replace(s)
	lines := strings.Split(s, "\n")
	for i, l := range lines {
		if strings.HasPrefix(l, ".") {
			lines[i] = `\&` + l
		}
	}
	return strings.Join(lines, "\n")
}
