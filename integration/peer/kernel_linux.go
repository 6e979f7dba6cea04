package peer

import (
	"bytes"
	"debug/elf"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// vmlinux takes the ELF image out of a compressed x86 kernel (the kernel's
// Documentation/arch/x86/boot.rst). QEMU boots it through its PVH entry, and the emulated
// processor is spared the decompression, which is most of the time of a boot.
func vmlinux(image []byte) ([]byte, error) {
	const setupSects, magic, payloadOffset = 0x1f1, 0x202, 0x248
	if len(image) < payloadOffset+8 || string(image[magic:magic+4]) != "HdrS" {
		return nil, errors.New("not an x86 kernel image")
	}
	sects := int(image[setupSects])
	if sects == 0 {
		sects = 4
	}
	off := (sects+1)*512 + int(binary.LittleEndian.Uint32(image[payloadOffset:]))
	n := int(binary.LittleEndian.Uint32(image[payloadOffset+4:]))
	if off > len(image) || n > len(image)-off {
		return nil, errors.New("kernel image is cut short")
	}
	out, err := decompress(image[off : off+n])
	if err != nil {
		return nil, err
	}
	if !bytes.HasPrefix(out, []byte(elf.ELFMAG)) {
		return nil, errors.New("no ELF image in the kernel")
	}
	return out, nil
}

// decompress runs the tool that fits the data's first octets.
func decompress(b []byte) ([]byte, error) {
	tool := ""
	switch {
	case bytes.HasPrefix(b, []byte("\xfd7zXZ\x00")):
		tool = "xz"
	case bytes.HasPrefix(b, []byte("\x28\xb5\x2f\xfd")):
		tool = "zstd"
	default:
		return nil, fmt.Errorf("unknown compression, starts % x", b[:min(4, len(b))])
	}
	// The payload has the uncompressed length behind it, which the tools call garbage: what
	// they wrote counts, not their status.
	cmd := exec.Command(tool, "-dc")
	cmd.Stdin = bytes.NewReader(b)
	out, err := cmd.Output()
	if len(out) == 0 {
		return nil, fmt.Errorf("%s: %w", tool, err)
	}
	return out, nil
}

// A moduleTree is a folder of kernel modules.
type moduleTree map[string]string // name with underscores, to path

func findModules(dir string) (moduleTree, error) {
	t := make(moduleTree)
	err := filepath.WalkDir(dir, func(p string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		base := d.Name()
		for _, ext := range []string{".ko", ".ko.xz", ".ko.zst"} {
			if name, ok := strings.CutSuffix(base, ext); ok {
				t[moduleName(name)] = p
			}
		}
		return nil
	})
	return t, err
}

func moduleName(s string) string { return strings.ReplaceAll(s, "-", "_") }

// A module is one file to load.
type module struct {
	name string
	data []byte
}

// resolve returns the named modules and all that they depend on, each after what it needs.
func (t moduleTree) resolve(names ...string) ([]module, error) {
	var out []module
	done := make(map[string]bool)
	var visit func(name string) error
	visit = func(name string) error {
		name = moduleName(name)
		if done[name] {
			return nil
		}
		done[name] = true
		path, ok := t[name]
		if !ok {
			return fmt.Errorf("no module %s", name)
		}
		data, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		if !strings.HasSuffix(path, ".ko") {
			if data, err = decompress(data); err != nil {
				return fmt.Errorf("%s: %w", path, err)
			}
		}
		deps, err := moduleDeps(data)
		if err != nil {
			return fmt.Errorf("%s: %w", path, err)
		}
		for _, d := range deps {
			if err := visit(d); err != nil {
				return fmt.Errorf("%s needs: %w", name, err)
			}
		}
		out = append(out, module{name, data})
		return nil
	}
	for _, n := range names {
		if err := visit(n); err != nil {
			return nil, err
		}
	}
	return out, nil
}

// moduleDeps reads the "depends" entry of a module's .modinfo section.
func moduleDeps(data []byte) ([]string, error) {
	f, err := elf.NewFile(bytes.NewReader(data))
	if err != nil {
		return nil, err
	}
	defer f.Close()
	s := f.Section(".modinfo")
	if s == nil {
		return nil, errors.New("no .modinfo section")
	}
	info, err := s.Data()
	if err != nil {
		return nil, err
	}
	for entry := range bytes.SplitSeq(info, []byte{0}) {
		if deps, ok := bytes.CutPrefix(entry, []byte("depends=")); ok && len(deps) > 0 {
			return strings.Split(string(deps), ","), nil
		}
	}
	return nil, nil
}
