package check

import (
	"debug/dwarf"
	"debug/elf"
	"os"
	"path/filepath"
	"sort"
	"strings"
	"syscall"
)

// A symbolizer finds the functions and lines of offsets in files.
type symbolizer struct {
	modules map[string]*module
}

// A module is what a file of code says of itself; any of it may be missing.
type module struct {
	progs   []elf.ProgHeader
	symbols []elf.Symbol // functions, by address
	debug   *dwarf.Data
}

func newSymbolizer() *symbolizer { return &symbolizer{modules: make(map[string]*module)} }

func (s *symbolizer) module(path string) *module {
	m, ok := s.modules[path]
	if !ok {
		m = openModule(path)
		s.modules[path] = m
	}
	return m
}

// openModule never fails: a file that says nothing has no functions.
func openModule(path string) *module {
	m := &module{}
	// What was mapped may be something else by now, and a FIFO is not waited for.
	file, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return m
	}
	defer file.Close()
	if info, err := file.Stat(); err != nil || !info.Mode().IsRegular() {
		return m
	}
	f, err := elf.NewFile(file)
	if err != nil {
		return m
	}
	for _, p := range f.Progs {
		if p.Type == elf.PT_LOAD {
			m.progs = append(m.progs, p.ProgHeader)
		}
	}
	m.debug, _ = f.DWARF()           // not all have it
	all, _ := f.Symbols()            // stripped ones have none
	dynamic, _ := f.DynamicSymbols() // programs have few
	for _, sym := range append(all, dynamic...) {
		if elf.ST_TYPE(sym.Info) == elf.STT_FUNC && sym.Section != elf.SHN_UNDEF {
			m.symbols = append(m.symbols, sym)
		}
	}
	sort.SliceStable(m.symbols, func(i, k int) bool { return m.symbols[i].Value < m.symbols[k].Value })
	return m
}

// address is where an offset in the file lies in the module's own addresses.
func (m *module) address(offset uint64) (uint64, bool) {
	for _, p := range m.progs {
		if offset >= p.Off && offset-p.Off < p.Filesz {
			return p.Vaddr + offset - p.Off, true
		}
	}
	return 0, false
}

// function is the one that an address is in, by its symbols.
func (m *module) function(addr uint64) string {
	i := sort.Search(len(m.symbols), func(i int) bool { return m.symbols[i].Value > addr })
	if i == 0 || addr-m.symbols[i-1].Value >= max(m.symbols[i-1].Size, 1) {
		return ""
	}
	return printable(m.symbols[i-1].Name)
}

// resolve makes of a frame those that were inlined there, the innermost first.
func (s *symbolizer) resolve(f Frame) []Frame {
	m := s.module(f.Module)
	addr, ok := m.address(f.Offset)
	if !ok {
		return []Frame{f}
	}
	if out := m.lines(f, addr); out != nil {
		return out
	}
	f.Function = m.function(addr)
	return []Frame{f}
}

// lines is what the debugging information says of an address; nil: nothing.
func (m *module) lines(f Frame, addr uint64) []Frame {
	if m.debug == nil {
		return nil
	}
	r := m.debug.Reader()
	unit, err := r.SeekPC(addr)
	if err != nil {
		return nil
	}
	lr, err := m.debug.LineReader(unit)
	if err != nil || lr == nil {
		return nil
	}
	at := lineOf(lr, addr)
	if at.File == nil {
		return nil
	}
	inner := f
	inner.File, inner.Line = printable(at.File.Name), at.Line
	out := []Frame{inner}
	files := lr.Files()
	for _, e := range m.around(r, addr) {
		out[len(out)-1].Function = printable(m.name(e, 0))
		if e.Tag != dwarf.TagInlinedSubroutine {
			continue
		}
		caller := f
		file, _ := e.Val(dwarf.AttrCallFile).(int64)
		line, _ := e.Val(dwarf.AttrCallLine).(int64)
		if file >= 0 && int(file) < len(files) && files[file] != nil {
			caller.File = printable(files[file].Name)
		}
		caller.Line = int(line)
		out = append(out, caller)
	}
	if out[len(out)-1].Function == "" {
		out[len(out)-1].Function = m.function(addr)
	}
	return out
}

// lineOf is the line that addr is of; no File: none. A unit may have several sequences of lines,
// and what -O2 has made of main lies in front of the others, of which lr.SeekPC knows nothing.
func lineOf(lr *dwarf.LineReader, addr uint64) (at dwarf.LineEntry) {
	at.EndSequence = true
	for {
		var next dwarf.LineEntry
		if lr.Next(&next) != nil {
			return dwarf.LineEntry{}
		}
		if !at.EndSequence && at.Address <= addr && addr < next.Address {
			return at
		}
		at = next
	}
}

// around returns the function that addr is in and those inlined there, the innermost first. r is at
// the children of the function's unit.
func (m *module) around(r *dwarf.Reader, addr uint64) (found []*dwarf.Entry) {
	for depth := 0; ; {
		e, err := r.Next()
		if err != nil || e == nil {
			return found
		}
		if e.Tag == 0 {
			if depth--; depth < 0 {
				return found
			}
			continue
		}
		inside := false
		switch e.Tag {
		case dwarf.TagSubprogram, dwarf.TagInlinedSubroutine, dwarf.TagLexDwarfBlock:
			inside = m.covers(e, addr)
		}
		switch {
		case inside && e.Tag != dwarf.TagLexDwarfBlock:
			found = append([]*dwarf.Entry{e}, found...)
			fallthrough
		case inside:
			if e.Children {
				depth++
			}
		case e.Children:
			r.SkipChildren()
		}
	}
}

func (m *module) covers(e *dwarf.Entry, addr uint64) bool {
	ranges, err := m.debug.Ranges(e)
	for _, r := range ranges {
		if err == nil && addr >= r[0] && addr < r[1] {
			return true
		}
	}
	return false
}

// name follows what says where a function was declared.
func (m *module) name(e *dwarf.Entry, depth int) string {
	if name, ok := e.Val(dwarf.AttrName).(string); ok {
		return name
	}
	for _, attr := range []dwarf.Attr{dwarf.AttrAbstractOrigin, dwarf.AttrSpecification} {
		off, ok := e.Val(attr).(dwarf.Offset)
		if !ok || depth > 8 {
			continue
		}
		r := m.debug.Reader()
		r.Seek(off)
		if of, err := r.Next(); err == nil && of != nil {
			return m.name(of, depth+1)
		}
	}
	return ""
}

// ownLibraries are vrnic's, and the C library's start of programs: no places of the program.
var ownLibraries = []string{"libvrnic-", "libibverbs.so", "librdmacm.so", "libc.so", "libc-",
	"libpthread", "ld-"}

// isProgram reports whether a place is in the program, or in a library that it uses.
func isProgram(f Frame) bool {
	base := strings.TrimPrefix(filepath.Base(f.Module), "memfd:vrnic-") // a library without a file
	for _, own := range ownLibraries {
		if strings.HasPrefix(base, own) {
			return false
		}
	}
	// Inline functions of the headers of verbs are in programs.
	dir, file := filepath.Split(f.File)
	switch filepath.Base(filepath.Clean(dir)) + "/" + file {
	case "infiniband/verbs.h", "rdma/rdma_verbs.h":
		return false
	}
	return true
}

// site makes the program's places of a site's frames.
func (s *symbolizer) site(raw Site) Site {
	out := Site{Role: raw.Role}
	for _, f := range raw.Frames {
		for _, r := range s.resolve(f) {
			if isProgram(r) {
				out.Frames = append(out.Frames, r)
			}
		}
	}
	if len(out.Frames) == 0 {
		out.Frames = raw.Frames
	}
	return out
}
