package main

import (
	"fmt"
	"os"
	"regexp"
	"strconv"
	"strings"
)

// A table is what messages.table says.
type table struct {
	structs []*message
	byName  map[string]*message
	calls   []call
}

// A message is a struct of the table.
type message struct {
	name   string
	doc    []string
	header string // the C header that has it
	fields []field
	size   int
	align  int
	grown  []growth
}

// A growth is a line "since": what the struct had before.
type growth struct{ minor, size, fields int }

type field struct {
	name, typ, comment string
	array              string // "" or how many
	of                 *message
	size, align        int
}

type call struct {
	number         int
	name           string
	header         string
	quick          bool
	takes, gives   int
	request, reply string
}

var (
	callForm   = regexp.MustCompile(`^call (\d+) (\w+)((?: quick| takes=\d| gives=\d)*)$`)
	structForm = regexp.MustCompile(`^\t?(struct|request|reply) (\w+|-)$`)
	sinceForm  = regexp.MustCompile(`^\t\t?since (\d+)$`)
	fieldForm  = regexp.MustCompile(`^\t\t?(\w+) +(\w+)(?:\[(\w+)\])?(?: +// (.*))?$`)
)

// parseTable reads messages.table. consts has the values of the package's constants.
func parseTable(name string, consts map[string]int) (*table, error) {
	text, err := os.ReadFile(name)
	if err != nil {
		return nil, err
	}
	t := &table{byName: make(map[string]*message)}
	var doc []string
	var header string
	var m *message
	for i, line := range strings.Split(string(text), "\n") {
		bad := func(format string, args ...any) error {
			return fmt.Errorf("%s:%d: "+format, append([]any{name, i + 1}, args...)...)
		}
		trimmed := strings.TrimSpace(line)
		switch {
		case trimmed == "":
			doc, m = nil, nil
		case strings.HasPrefix(trimmed, "//"):
			doc = append(doc, trimmed)
		case strings.HasPrefix(line, "header "):
			header = strings.TrimPrefix(line, "header ")
		case callForm.MatchString(line):
			c, err := parseCall(callForm.FindStringSubmatch(line))
			if err != nil {
				return nil, bad("%v", err)
			}
			if n := len(t.calls); n > 0 && t.calls[n-1].number >= c.number {
				return nil, bad("call %d is not in order", c.number)
			}
			c.header = header
			t.calls = append(t.calls, c)
		case structForm.MatchString(line):
			f := structForm.FindStringSubmatch(line)
			if f[1] != "struct" {
				t.use(f[1], f[2])
			}
			m = &message{name: f[2], doc: doc, header: header, align: 1}
			doc = nil
		case m != nil && sinceForm.MatchString(line):
			minor, err := strconv.Atoi(sinceForm.FindStringSubmatch(line)[1])
			if err != nil || minor > consts["Minor"] {
				return nil, bad("layout.go has no such minor version")
			}
			m.grown = append(m.grown, growth{minor, m.size, len(m.fields)})
		case m != nil && fieldForm.MatchString(line):
			if err := t.add(m, fieldForm.FindStringSubmatch(line), consts); err != nil {
				return nil, bad("%v", err)
			}
		default:
			return nil, bad("what is this?")
		}
	}
	for _, c := range t.calls {
		for _, s := range []string{c.request, c.reply} {
			if s != "Empty" && t.byName[s] == nil {
				return nil, fmt.Errorf("%s: there is no struct %q for %s", name, s, c.name)
			}
		}
	}
	for _, m := range t.structs {
		if m.size%m.align != 0 || m.size > consts["MaxMessage"]-consts["HeaderLen"] {
			return nil, fmt.Errorf("%s: %s has %d octets", name, m.name, m.size)
		}
	}
	return t, nil
}

func parseCall(f []string) (c call, err error) {
	c.name = f[2]
	if c.number, err = strconv.Atoi(f[1]); err != nil {
		return c, err
	}
	for _, attr := range strings.Fields(f[3]) {
		switch key, n, _ := strings.Cut(attr, "="); key {
		case "quick":
			c.quick = true
		case "takes":
			c.takes = int(n[0] - '0')
		case "gives":
			c.gives = int(n[0] - '0')
		}
	}
	return c, nil
}

// use names the request or the reply of the last call.
func (t *table) use(kind, name string) {
	if name == "-" {
		name = "Empty"
	}
	c := &t.calls[len(t.calls)-1]
	if kind == "request" {
		c.request = name
	} else {
		c.reply = name
	}
}

var basic = map[string]int{
	"u8": 1, "char": 1, "u16": 2, "Op": 2, "u32": 4, "i32": 4, "u64": 8, "DeviceName": 32,
}

// add adds a field to m. Nothing may be between fields.
func (t *table) add(m *message, f []string, consts map[string]int) error {
	x := field{name: f[1], typ: f[2], array: f[3], comment: f[4]}
	switch n, ok := basic[x.typ]; {
	case x.typ == "DeviceName":
		x.size, x.align = n, 1
	case ok:
		x.size, x.align = n, n
	default:
		if x.of = t.byName[x.typ]; x.of == nil {
			return fmt.Errorf("no type %q is known here", x.typ)
		}
		x.size, x.align = x.of.size, x.of.align
	}
	if x.array != "" {
		n, err := strconv.Atoi(x.array)
		if err != nil {
			if n = consts[x.array]; n == 0 {
				return fmt.Errorf("no constant %q is known", x.array)
			}
		}
		x.size *= n
	}
	if m.size%x.align != 0 {
		return fmt.Errorf("%s.%s is at %d: it wants a field Pad before it", m.name, x.name, m.size)
	}
	if len(m.fields) == 0 {
		if t.byName[m.name] != nil {
			return fmt.Errorf("a second %s", m.name)
		}
		t.byName[m.name] = m
		t.structs = append(t.structs, m)
	}
	m.fields = append(m.fields, x)
	m.size += x.size
	m.align = max(m.align, x.align)
	return nil
}
