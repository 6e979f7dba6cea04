package config

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/vrnic/vrnic/cmd/vrnic/internal/daemon"
)

// maxFile bounds what is read: far more than a daemon can have.
const maxFile = 1 << 20

// ReadFile reads the settings of a file.
func ReadFile(path string) ([]Setting, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, maxFile+1))
	if err != nil {
		return nil, err
	}
	return Parse(path, data)
}

// Parse reads settings in YAML. Each key is a flag of `vrnic up`: with its value, a list of them,
// or what a specification has by name. Values go to what reads flags as they are written: 0660 is
// octal there, and off no boolean. file is for errors, which name line and key.
func Parse(file string, data []byte) ([]Setting, error) {
	p := parser{file: file}
	if len(data) > maxFile {
		return nil, wrong{fmt.Errorf("%s: longer than %d octets", file, maxFile)}
	}
	dec := yaml.NewDecoder(bytes.NewReader(data))
	var doc, more yaml.Node
	switch err := dec.Decode(&doc); {
	case errors.Is(err, io.EOF):
		return nil, nil // there is nothing in it
	case err != nil:
		return nil, p.syntax(err)
	}
	switch err := dec.Decode(&more); {
	case err == nil:
		return nil, p.wrong(&more, "", errors.New("a second document; there is to be one"))
	case !errors.Is(err, io.EOF):
		return nil, p.syntax(err)
	}
	top := doc.Content[0]
	if isNull(top) {
		return nil, nil
	}
	if err := p.pairs(top, "", p.key); err != nil {
		return nil, err
	}
	return p.settings, nil
}

type parser struct {
	file     string
	settings []Setting
}

func (p *parser) wrong(n *yaml.Node, key string, err error) error {
	if key != "" {
		key += ": "
	}
	return wrong{fmt.Errorf("%s:%d: %s%w", p.file, n.Line, key, err)}
}

// syntax is an error of the reader of YAML in the form of the others.
func (p *parser) syntax(err error) error {
	text := strings.TrimPrefix(err.Error(), "yaml: ")
	if rest, ok := strings.CutPrefix(text, "line "); ok {
		if line, what, ok := strings.Cut(rest, ": "); ok {
			return wrong{fmt.Errorf("%s:%s: %s", p.file, line, what)}
		}
	}
	return wrong{fmt.Errorf("%s: %s", p.file, text)}
}

// pairs calls f for each key of a mapping, which is the value of key in.
func (p *parser) pairs(n *yaml.Node, in string, f func(k, v *yaml.Node) error) error {
	if n.Kind != yaml.MappingNode {
		return p.wrong(n, in, errors.New("want lines of the form KEY: VALUE"))
	}
	seen := make(map[string]bool)
	for i := 0; i < len(n.Content); i += 2 {
		k, v := n.Content[i], n.Content[i+1]
		name := k.Value
		if in != "" {
			name = in + "." + name
		}
		switch {
		case k.Kind != yaml.ScalarNode:
			return p.wrong(k, in, errors.New("a key has to be a word"))
		case seen[k.Value]:
			return p.wrong(k, name, errors.New("it is given twice"))
		case isNull(v):
			return p.wrong(k, name, errors.New("no value"))
		}
		seen[k.Value] = true
		if err := f(k, v); err != nil {
			return err
		}
	}
	return nil
}

// key takes a key of the file.
func (p *parser) key(k, v *yaml.Node) error {
	known, _ := find(k.Value)
	if known == nil {
		return p.wrong(k, k.Value, fmt.Errorf("unknown key; there are %s", strings.Join(Keys(), ", ")))
	}
	switch {
	case v.Kind == yaml.ScalarNode:
		p.add(k.Value, v, v.Value, nil)
		return nil
	case !known.many:
		return p.wrong(v, k.Value, errors.New("want one value"))
	case k.Value == "limit" && v.Kind == yaml.MappingNode:
		return p.pairs(v, k.Value, func(name, value *yaml.Node) error {
			n, err := p.scalar(value, k.Value+"."+name.Value)
			if err == nil {
				p.add(k.Value, name, name.Value+"="+n, nil)
			}
			return err
		})
	case v.Kind != yaml.SequenceNode:
		return p.wrong(v, k.Value, errors.New("want a list"))
	}
	for _, item := range v.Content {
		if err := p.item(k.Value, item); err != nil {
			return err
		}
	}
	return nil
}

// item takes an element of a list: a specification as on the command line, or by its parts.
func (p *parser) item(key string, n *yaml.Node) error {
	if n.Kind == yaml.ScalarNode && !isNull(n) {
		p.add(key, n, n.Value, nil)
		return nil
	}
	if key == "limit" || n.Kind != yaml.MappingNode {
		return p.wrong(n, key, errors.New("want a value as on the command line"))
	}
	s := spec{p: p, key: key}
	if err := p.pairs(n, key, s.part); err != nil {
		return err
	}
	if s.head == "" {
		return p.wrong(n, key, fmt.Errorf("no %s", strings.Join(heads(key), ", ")))
	}
	p.add(key, n, strings.Join(append([]string{s.head}, s.parts...), ","),
		append([]int{s.headLine}, s.lines...))
	return nil
}

// heads are what names an element of a list: the first part of its specification.
func heads(key string) []string {
	if key == "port" {
		return daemon.PortKinds()
	}
	return []string{"name"}
}

// A spec is a specification on its way from its parts to the form of the command line.
type spec struct {
	p        *parser
	key      string
	head     string
	headLine int
	parts    []string
	lines    []int
}

func (s *spec) part(k, v *yaml.Node) error {
	name := s.key + "." + k.Value
	values := []*yaml.Node{v}
	if v.Kind == yaml.SequenceNode {
		values = v.Content
	}
	for _, n := range values {
		value, err := s.p.scalar(n, name)
		if err != nil {
			return err
		}
		path := strings.HasPrefix(k.Value, "unix-") // the whole rest, commas included
		switch {
		case strings.Contains(value, ",") && !path, strings.ContainsAny(k.Value, ",="):
			return s.p.wrong(n, name, errors.New("a comma cannot be in a part of a specification"))
		case !slices.Contains(heads(s.key), k.Value):
			s.parts, s.lines = append(s.parts, k.Value+"="+value), append(s.lines, n.Line)
			continue
		case s.head != "":
			return s.p.wrong(n, name, fmt.Errorf("there is %q already", s.head))
		}
		if s.head, s.headLine = value, n.Line; s.key == "port" {
			s.head = k.Value + ":" + value
		}
	}
	return nil
}

// scalar is the text of a value.
func (p *parser) scalar(n *yaml.Node, name string) (string, error) {
	if n.Kind != yaml.ScalarNode || isNull(n) {
		return "", p.wrong(n, name, errors.New("want one value"))
	}
	return n.Value, nil
}

func (p *parser) add(key string, n *yaml.Node, value string, lines []int) {
	p.settings = append(p.settings, Setting{key, value, p.file, n.Line, lines})
}

func isNull(n *yaml.Node) bool { return n.Kind == yaml.ScalarNode && n.Tag == "!!null" }

// Format is a file of settings: what Parse reads as the same ones.
func Format(settings []Setting) []byte {
	var b bytes.Buffer
	for _, k := range keys {
		first := true
		for _, s := range settings {
			switch {
			case s.Key != k.name:
			case !k.many:
				fmt.Fprintf(&b, "%s: %s\n", k.name, quoted(s.Value))
			default:
				if first {
					fmt.Fprintf(&b, "%s:\n", k.name)
				}
				first = false
				fmt.Fprintf(&b, "  - %s\n", quoted(s.Value))
			}
		}
	}
	return b.Bytes()
}

// quoted is s as a scalar, in quotes if it would be something else without.
func quoted(s string) string {
	text, err := yaml.Marshal(s)
	if err != nil { // a string that is no text: it would not be read back
		return strconv.Quote(s)
	}
	return strings.TrimSuffix(string(text), "\n")
}
