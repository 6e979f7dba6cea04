package main

import (
	"bytes"
	"fmt"
	"go/ast"
	"go/token"
	"strings"
)

const generated = "/* Generated from shm/abi and shm/rpc by go generate; do not edit. */\n"

const abiHead = generated + `/*
 * The ABI between the daemon and a program: the layout of shared memory, and the messages of the
 * control socket.
 *
 * This file has the shared memory; abi_control.h and abi_cm.h, which it includes, the messages.
 * Hosts are 64-bit and little-endian. Every word that both sides touch is an aligned uint32_t.
 * Lines of shared memory have 64 octets and one writer, unless "both" is noted. Sizes, strides and
 * offsets of rings are read from line 0 of the memory, not from here. Messages are the structs as
 * they lie in memory, behind a vrnic_header: fixed width, naturally aligned, padding zero. One
 * that is shorter than its struct leaves the rest zero; one that is longer must be zero there.
 */
#ifndef VRNIC_ABI_H
#define VRNIC_ABI_H

#include <stdint.h>

#if __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__ || __SIZEOF_POINTER__ != 8
#error "the ring ABI is for 64-bit little-endian hosts"
#endif

#define VRNIC_ABI_SIZE(type, size) \
	_Static_assert(sizeof(struct type) == (size), "size of struct " #type)
#define VRNIC_ABI_OFFSET(type, field, offset) \
	_Static_assert(__builtin_offsetof(struct type, field) == (offset), "offset of " #field)
`

const partHead = generated + `#ifndef VRNIC_%[1]s
#define VRNIC_%[1]s

#ifndef VRNIC_ABI_H
#error "include abi.h"
#endif
`

// slots are what lies in rings and begins with fields at constant offsets, as structs for C: the
// constants with a prefix, up to one that is the length.
var slots = []struct{ name, prefix, length string }{
	{"sge", "SGE", "SGELen"},
	{"send_wqe", "SQ", "SQSGE"},
	{"recv_wqe", "RQ", "RQSGE"},
	{"cqe", "CQE", "CQELen"},
}

var cTypes = map[string]string{
	"u8": "uint8_t", "char": "char", "u16": "uint16_t", "Op": "uint16_t", "u32": "uint32_t",
	"u64": "uint64_t", "i32": "int32_t",
}

// abiHeader is abi.h.
func (g *generator) abiHeader() []byte {
	var b bytes.Buffer
	b.WriteString(abiHead)
	g.defines(&b, "../abi/layout.go")
	b.WriteString(`
/*
 * The same, as structs: for a CQE that has been copied out, and for WQEs that are made in place.
 * A send WQE goes on with SGEs, inline octets or the offset into the slab, a receive WQE with SGEs.
 */
`)
	for _, s := range slots {
		g.slot(&b, s.name, s.prefix, s.length)
	}
	b.WriteString("\n#include \"abi_control.h\"\n#include \"abi_cm.h\"\n\n#endif\n")
	return b.Bytes()
}

// slot writes one of slots. Constants at an offset within the field before are other names for it.
func (g *generator) slot(b *bytes.Buffer, name, prefix, length string) {
	var asserts strings.Builder
	at := 0
	fmt.Fprintf(b, "struct vrnic_%s {\n", name)
	for _, c := range g.order["../abi/layout.go"] {
		off := g.consts[c]
		if c == length {
			break
		}
		if !strings.HasPrefix(c, prefix) || off != at {
			continue
		}
		typ, _, _ := strings.Cut(strings.ReplaceAll(g.comments[c], ",", " "), " ")
		if basic[typ] == 0 {
			typ = "u32"
		}
		at += basic[typ]
		f := snake(strings.TrimPrefix(c, prefix))
		fmt.Fprintf(b, "\t%s %s;\n", cTypes[typ], f)
		fmt.Fprintf(&asserts, "VRNIC_ABI_OFFSET(vrnic_%s, %s, %s);\n", name, f, macro(c))
	}
	fmt.Fprintf(b, "};\nVRNIC_ABI_SIZE(vrnic_%s, %s);\n%s\n", name, macro(length), asserts.String())
}

// part is abi_control.h or abi_cm.h: the constants of a file, calls and messages.
func (g *generator) part(name, file string) []byte {
	var b bytes.Buffer
	fmt.Fprintf(&b, partHead, strings.ToUpper(strings.ReplaceAll(name, ".", "_")))
	g.defines(&b, file)
	b.WriteString("\n/* The calls. Numbers are never used again. */\n")
	for _, c := range g.table.calls {
		if c.header == name {
			define(&b, "VRNIC_OP_"+upperSnake(c.name), fmt.Sprint(c.number), "")
		}
	}
	for _, m := range g.table.structs {
		if m.header != name {
			continue
		}
		b.WriteByte('\n')
		g.comment(&b, strings.Join(m.doc, "\n"), m)
		fmt.Fprintf(&b, "struct vrnic_%s {\n", snake(m.name))
		for i, f := range m.fields {
			if s := m.since(i); s != "" {
				fmt.Fprintf(&b, "\n\t/* %s */\n\n", s)
			}
			typ, dim := cTypes[f.typ], ""
			if f.of != nil {
				typ = "struct vrnic_" + snake(f.of.name)
			}
			if f.array != "" {
				dim = "[" + g.cExpr(&ast.Ident{Name: f.array}) + "]"
			}
			if f.typ == "DeviceName" {
				typ = "char"
				dim += "[" + macro("DeviceNameLen") + "]"
			}
			withComment(&b, "\t", fmt.Sprintf("%s %s%s;", typ, snake(f.name), dim), g.cText(f.comment, m))
		}
		fmt.Fprintf(&b, "};\nVRNIC_ABI_SIZE(vrnic_%s, %d);\n", snake(m.name), m.size)
	}
	b.WriteString("\n#endif\n")
	return b.Bytes()
}

// define writes a macro, its value in the sixth column of tabs.
func define(b *bytes.Buffer, name, value, comment string) {
	tabs := max(1, 5-(len("#define ")+len(name))/8)
	withComment(b, "", fmt.Sprintf("#define %s%s%s", name, strings.Repeat("\t", tabs), value), comment)
}

// columns is how long lines may be.
const columns = 100

// withComment writes a line with a comment behind it, or above it if that is too long.
func withComment(b *bytes.Buffer, indent, line, comment string) {
	switch text := "/* " + comment + " */"; {
	case comment == "":
		fmt.Fprintf(b, "%s%s\n", indent, line)
	case len(indent+line+"\t"+text) <= columns:
		fmt.Fprintf(b, "%s%s\t%s\n", indent, line, text)
	default:
		fmt.Fprintf(b, "%s%s\n%s%s\n", indent, text, indent, line)
	}
}

// comment writes lines of a Go comment.
func (g *generator) comment(b *bytes.Buffer, text string, m *message) {
	lines := fill(strings.Split(text, "\n"), columns-len(" * "),
		func(l string) string { return g.cText(l, m) })
	if len(lines) == 1 && len(lines[0]) <= columns-len("/*  */") {
		fmt.Fprintf(b, "/* %s */\n", lines[0])
		return
	}
	b.WriteString("/*\n")
	for _, l := range lines {
		b.WriteString(strings.TrimRight(" * "+l, " ") + "\n")
	}
	b.WriteString(" */\n")
}

// fill breaks a Go comment anew, its words changed by change. Empty lines and items of lists stay
// apart.
func fill(text []string, width int, change func(string) string) (lines []string) {
	indent := ""
	for _, l := range text {
		words := strings.Fields(change(strings.TrimPrefix(l, "//")))
		item := len(words) > 0 && words[0] == "-"
		if len(words) == 0 || item || len(lines) == 0 || lines[len(lines)-1] == "" {
			lines, indent = append(lines, ""), ""
		}
		for _, w := range words {
			last := &lines[len(lines)-1]
			switch {
			case *last == "" || *last == indent:
				*last += w
			case len(*last)+1+len(w) <= width:
				*last += " " + w
			default:
				lines = append(lines, indent+w)
			}
			if w == "-" && item {
				indent = "  "
			}
		}
	}
	return lines
}

// defines writes the constants of a file that are exported.
func (g *generator) defines(b *bytes.Buffer, file string) {
	for _, d := range g.files[file].Decls {
		d, ok := d.(*ast.GenDecl)
		if !ok || d.Tok != token.CONST {
			continue
		}
		b.WriteByte('\n')
		if d.Doc != nil {
			g.commentGroup(b, d.Doc)
		}
		line := 0
		for _, s := range d.Specs {
			s := s.(*ast.ValueSpec)
			from := g.line(s.Pos())
			if s.Doc != nil {
				from = g.line(s.Doc.Pos())
			}
			if line != 0 && from > line+1 {
				b.WriteByte('\n')
			}
			if s.Doc != nil {
				g.commentGroup(b, s.Doc)
			}
			line = g.line(s.End())
			if ast.IsExported(s.Names[0].Name) {
				define(b, macro(s.Names[0].Name), g.cExpr(s.Values[0]),
					g.cText(g.comments[s.Names[0].Name], nil))
			}
		}
	}
}

func (g *generator) commentGroup(b *bytes.Buffer, c *ast.CommentGroup) {
	var lines []string
	for _, l := range c.List {
		lines = append(lines, l.Text)
	}
	g.comment(b, strings.Join(lines, "\n"), nil)
}

// cExpr is an expression of constants in C.
func (g *generator) cExpr(e ast.Expr) string {
	switch e := e.(type) {
	case *ast.BasicLit:
		if len(e.Value) == len("0x00000000") && e.Value[2] >= '8' {
			return e.Value + "u"
		}
		return e.Value
	case *ast.Ident:
		if _, ok := g.consts[e.Name]; ok {
			return macro(e.Name)
		}
		return e.Name
	case *ast.BinaryExpr:
		x := g.cExpr(e.X)
		if e.Op == token.SHL {
			x += "u"
		}
		return "(" + x + " " + e.Op.String() + " " + g.cExpr(e.Y) + ")"
	}
	panic(fmt.Sprintf("gen: an expression of %T", e))
}
