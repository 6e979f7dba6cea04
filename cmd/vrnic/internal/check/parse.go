package check

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"unicode"
)

// A Frame is a place in a program: what it was at, the nearest first.
type Frame struct {
	Module   string `json:"module,omitempty"` // the file of its code
	Offset   uint64 `json:"offset,omitempty"` // in that
	Function string `json:"function,omitempty"`
	File     string `json:"file,omitempty"` // its source, where that is known
	Line     int    `json:"line,omitempty"`
}

// A Site is where something happened, as its role says.
type Site struct {
	Role   string  `json:"role"`
	Frames []Frame `json:"frames"`
}

// An Object is what the program has made.
type Object struct {
	Role   string `json:"role"`
	Kind   string `json:"kind"`
	At     uint64 `json:"at"`     // the program's pointer
	Number uint32 `json:"number"` // an lkey, a QP's number
	Octets uint64 `json:"octets"` // or entries, of a CQ
}

// A Finding is one mistake of a program.
type Finding struct {
	What    string            `json:"what"`
	Level   Level             `json:"level"`
	Title   string            `json:"title"`
	Text    string            `json:"text"`
	PID     int               `json:"pid"`
	Numbers map[string]uint64 `json:"numbers,omitempty"`
	Texts   map[string]string `json:"texts,omitempty"`
	Objects []Object          `json:"objects,omitempty"`
	Sites   []Site            `json:"sites,omitempty"`
}

// parse reads what the library tells. A program that is wrong may have written all over it.
func parse(datagram string) (*Finding, error) {
	f := &Finding{Numbers: make(map[string]uint64), Texts: make(map[string]string)}
	for line := range strings.Lines(datagram) {
		if err := f.add(strings.TrimSuffix(line, "\n")); err != nil {
			return nil, fmt.Errorf("%q: %w", line, err)
		}
	}
	return f, nil
}

func (f *Finding) add(line string) (err error) {
	word, rest, _ := strings.Cut(printable(line), " ")
	name, value, _ := strings.Cut(rest, " ")
	switch word {
	case "what":
		f.What = name
	case "pid":
		f.PID, err = strconv.Atoi(name)
	case "text":
		f.Texts[name] = value
	case "number":
		f.Numbers[name], err = strconv.ParseUint(value, 10, 64)
	case "object":
		o := Object{Role: name}
		if _, err = fmt.Sscan(value, &o.Kind, &o.At, &o.Number, &o.Octets); err == nil {
			f.Objects = append(f.Objects, o)
		}
	case "frame":
		err = f.addFrame(name, value)
	default:
		err = fmt.Errorf("what is %q?", word)
	}
	return err
}

func (f *Finding) addFrame(role, value string) error {
	offset, module, _ := strings.Cut(value, " ")
	n, err := strconv.ParseUint(offset, 10, 64)
	if err != nil {
		return err
	}
	// Of several objects of one role each has its own.
	if k := len(f.Sites); k == 0 || f.Sites[k-1].Role != role {
		f.Sites = append(f.Sites, Site{Role: role})
	}
	s := &f.Sites[len(f.Sites)-1]
	s.Frames = append(s.Frames, Frame{Module: module, Offset: n})
	return nil
}

// printable is for terminals, which obey what they are given.
func printable(s string) string {
	return strings.Map(func(r rune) rune {
		if !unicode.IsPrint(r) {
			return '?'
		}
		return r
	}, s)
}

// object returns the first one of a role, or one of no kind.
func (f *Finding) object(role string) Object {
	if i := slices.IndexFunc(f.Objects, func(o Object) bool { return o.Role == role }); i >= 0 {
		return f.Objects[i]
	}
	return Object{}
}
