package main

import (
	"regexp"
	"strings"
)

// words are what Go's names are made of that are not a capital and small letters; longer ones
// first.
var words = strings.Fields("VRNIC IOVA GUID GIDs SCTP FPDU WRID RKey LKey QKey PKey " +
	"SRQ SQE SQD SGE RTS RTR RNR QPs QPN PSN ORD MTU MPA MAC IRD GID CRC CQE TCP UDP UID " +
	"TOS ACK WR WC SQ RQ QP PS PD MW MS MR ML IB ID HW FW CQ CM CA AH AF")

var capitalized = regexp.MustCompile(`^[A-Z][a-z0-9]*`)

// nextWord is what name begins with: one of words, unless small letters go on behind it.
func nextWord(name string) string {
	for _, w := range words {
		if rest, ok := strings.CutPrefix(name, w); ok && (rest == "" || rest[0] < 'a') {
			return w
		}
	}
	return capitalized.FindString(name)
}

// snake is a name of Go's as C has it.
func snake(name string) string {
	var parts []string
	for name != "" {
		w := nextWord(name)
		if w == "" {
			panic("gen: add to words what " + name + " begins with")
		}
		name = name[len(w):]
		if w == "WRID" {
			w = "WR_ID"
		}
		parts = append(parts, strings.ToLower(w))
	}
	return strings.Join(parts, "_")
}

func upperSnake(name string) string { return strings.ToUpper(snake(name)) }

// macro is the C name of a constant.
func macro(name string) string { return "VRNIC_" + upperSnake(name) }

var goName = regexp.MustCompile(`\b[A-Z]\w*(?:\.[A-Z]\w*)?`)

// cText is a comment of the Go side for C. m, or nil, is the struct that it is about.
func (g *generator) cText(text string, m *message) string {
	return goName.ReplaceAllStringFunc(text, func(w string) string {
		if m != nil {
			for _, f := range m.fields {
				if f.name == w {
					return snake(w)
				}
			}
		}
		if s, f, ok := strings.Cut(w, "."); ok {
			if of := g.cText(s, m); of != s {
				return of + "." + snake(f)
			}
		}
		if g.table.byName[w] != nil {
			return "struct vrnic_" + snake(w)
		}
		if _, ok := g.consts[w]; ok {
			return macro(w)
		}
		return w
	})
}
