package main

import (
	"bytes"
	"fmt"
	"go/format"
	"strings"
)

const generatedGo = `// Code generated from messages.table by go generate; DO NOT EDIT.

package rpc

`

var goTypes = map[string]string{
	"u8": "uint8", "char": "byte", "u16": "uint16", "u32": "uint32", "u64": "uint64", "i32": "int32",
}

// goCalls is calls.go: the numbers of calls, and what is to be known of each.
func (t *table) goCalls() ([]byte, error) {
	b := bytes.NewBufferString(generatedGo + "// The calls. Numbers are never used again.\nconst (\n")
	for i, c := range t.calls {
		if i > 0 && c.header != t.calls[i-1].header {
			b.WriteByte('\n')
		}
		fmt.Fprintf(b, "\tOp%s Op = %d\n", c.name, c.number)
	}
	b.WriteString(")\n\nvar calls = [...]callInfo{\n")
	for _, c := range t.calls {
		fmt.Fprintf(b, "\tOp%s: {name: %q, ", c.name, upperSnake(c.name))
		if c.quick {
			b.WriteString("quick: true, ")
		}
		if c.takes != 0 {
			fmt.Fprintf(b, "takes: %d, ", c.takes)
		}
		if c.gives != 0 {
			fmt.Fprintf(b, "gives: %d, ", c.gives)
		}
		fmt.Fprintf(b, "messages: func() (req, rep Message) {\n\t\treturn &%s{}, &%s{}\n\t}},\n",
			c.request, c.reply)
	}
	b.WriteString("}\n")
	return format.Source(b.Bytes())
}

// goStructs is messages.go.
func (t *table) goStructs() ([]byte, error) {
	b := bytes.NewBufferString(generatedGo)
	for _, m := range t.structs {
		for _, l := range fill(m.doc, columns-len("// "), func(l string) string { return l }) {
			b.WriteString("// " + l + "\n")
		}
		fmt.Fprintf(b, "type %s struct {\n", m.name)
		for i, f := range m.fields {
			if s := m.since(i); s != "" {
				b.WriteString("\n\t// " + s + "\n\n")
			}
			fmt.Fprintf(b, "\t%s %s", f.name, f.goType())
			if f.comment != "" {
				b.WriteString(" // " + f.comment)
			}
			b.WriteByte('\n')
		}
		b.WriteString("}\n\n")
	}
	return format.Source(b.Bytes())
}

// since is what stands before field i: from which minor version on it is there.
func (m *message) since(i int) string {
	for _, g := range m.grown {
		if g.fields == i {
			return fmt.Sprintf("Since minor version %d.", g.minor)
		}
	}
	return ""
}

func (f field) goType() string {
	typ := f.typ
	if g := goTypes[typ]; g != "" {
		typ = g
	}
	switch {
	case f.array == "":
		return typ
	case f.typ == "u8":
		typ = "byte"
	}
	return "[" + f.array + "]" + typ
}

// goCodec is messages_unsafe.go: that each struct is a Message.
func (t *table) goCodec() ([]byte, error) {
	b := bytes.NewBufferString(generatedGo +
		"import \"unsafe\"\n\n// Sizes are those that the table makes.\nvar (\n")
	for _, m := range t.structs {
		fmt.Fprintf(b, "\t_ = [1]int{}[unsafe.Sizeof(%s{})-%d]\n", m.name, m.size)
	}
	b.WriteString(")\n")
	for _, m := range t.structs {
		pads := []string{}
		for _, f := range m.fields {
			switch {
			case f.name == "Pad":
				pads = append(pads, "m.Pad == 0")
			case f.of != nil && f.array == "":
				pads = append(pads, "m."+f.name+".padZero()")
			}
		}
		if len(pads) == 0 {
			pads = []string{"true"}
		}
		fmt.Fprintf(b, "\nfunc (m *%s) octets() []byte { return (*[%d]byte)(unsafe.Pointer(m))[:] }\n",
			m.name, m.size)
		fmt.Fprintf(b, "func (m *%s) padZero() bool { return %s }\n", m.name, strings.Join(pads, " && "))
		if len(m.grown) == 0 {
			continue
		}
		fmt.Fprintf(b, "func (m *%s) knownTo(minor uint16) int {\n\tswitch {\n", m.name)
		for _, g := range m.grown {
			fmt.Fprintf(b, "\tcase minor < %d:\n\t\treturn %d\n", g.minor, g.size)
		}
		fmt.Fprintf(b, "\t}\n\treturn %d\n}\n", m.size)
	}
	return format.Source(b.Bytes())
}
