package peer

import (
	"context"
	"fmt"
	"hash/fnv"
	"os"
	"path/filepath"
	"strings"

	"github.com/vrnic/vrnic/integration/peer/internal/ctl"
)

// siw builds the driver as it stands in Debian's kernel source.
func (b *builder) siw() error {
	base := strings.Join(strings.SplitN(b.release, ".", 3)[:2], ".") // 6.1
	source := "linux-source-" + base
	if err := b.unpack(source, b.path("source"), "./usr/src/"+source+".tar.xz"); err != nil {
		return err
	}
	work := b.path("siw")
	if err := os.MkdirAll(work, 0o755); err != nil {
		return err
	}
	if _, err := b.output("tar", "-x", "-J", "-f", b.path("source", "usr", "src", source+".tar.xz"),
		"-C", work, "--strip-components=5", source+"/drivers/infiniband/sw/siw"); err != nil {
		return err
	}
	return b.makeSiw(work, "siw.ko")
}

// makeSiw compiles the driver in folder work.
func (b *builder) makeSiw(work, to string) error {
	if _, err := b.output("make", "-s", "-C", "/usr/src/linux-headers-"+b.release, "M="+work,
		"CONFIG_RDMA_SIW=m", "modules"); err != nil {
		return err
	}
	ko, err := os.ReadFile(filepath.Join(work, "siw.ko"))
	if err != nil {
		return err
	}
	return replace(b.path(to), ko)
}

// A siwEdit replaces a piece of siw's source that is there once.
type siwEdit struct{ file, old, new string }

// siwEdits make module parameters of siw's constants. Nothing else is changed.
var siwEdits = []siwEdit{
	flag("zcopy_tx", " = true"),
	flag("try_gso", ""),
	flag("mpa_crc_required", ""),
	flag("mpa_crc_strict", ""),
	flag("peer_to_peer", ""),
	declared("zcopy_tx"),
	declared("try_gso"),
	declared("mpa_crc_required"),
	declared("mpa_crc_strict"),
	declared("peer_to_peer"),
	{"siw_main.c", "\nu_char mpa_version = MPA_REVISION_2;",
		"\nu_char mpa_version = MPA_REVISION_2;\nmodule_param(mpa_version, byte, 0644);"},
	{"siw_cm.c", "\nstatic __be16 rtr_type = MPA_V2_RDMA_READ_RTR | MPA_V2_RDMA_WRITE_RTR;",
		"\nstatic ushort rtr_bits = 0xc000;\nmodule_param_named(rtr_type, rtr_bits, ushort, " +
			"0644);\n#define rtr_type cpu_to_be16(rtr_bits)"},
}

func flag(name, value string) siwEdit {
	return siwEdit{"siw_main.c", "\nconst bool " + name + value + ";",
		"\nbool " + name + value + ";\nmodule_param(" + name + ", bool, 0644);"}
}

func declared(name string) siwEdit {
	return siwEdit{"siw.h", "\nextern const bool " + name + ";", "\nextern bool " + name + ";"}
}

// siwParamFile is what the driver with parameters is called in the cache: another name when the
// edits are others.
func siwParamFile() string {
	h := fnv.New32a()
	for _, e := range siwEdits {
		fmt.Fprintf(h, "%q", e)
	}
	return fmt.Sprintf("siw-param-%08x.ko", h.Sum32())
}

// siwParam builds the driver with siwEdits.
func (b *builder) siwParam() error {
	work := b.path("siw-param")
	if err := os.RemoveAll(work); err != nil {
		return err
	}
	if err := os.MkdirAll(work, 0o755); err != nil {
		return err
	}
	source := make(map[string]string)
	for _, pattern := range []string{"*.c", "*.h", "Makefile"} {
		names, err := filepath.Glob(b.path("siw", pattern))
		if err != nil {
			return err
		}
		for _, name := range names {
			text, err := os.ReadFile(name)
			if err != nil {
				return err
			}
			if base := filepath.Base(name); !strings.HasSuffix(base, ".mod.c") {
				source[base] = string(text)
			}
		}
	}
	if err := edit(source, siwEdits); err != nil {
		return err
	}
	for name, text := range source {
		if err := os.WriteFile(filepath.Join(work, name), []byte(text), 0o644); err != nil {
			return err
		}
	}
	return b.makeSiw(work, siwParamFile())
}

// edit applies edits to files; each must fit exactly once.
func edit(files map[string]string, edits []siwEdit) error {
	for _, e := range edits {
		if n := strings.Count(files[e.file], e.old); n != 1 {
			return fmt.Errorf("%s: %q is there %d times, want once: this source is another one than the "+
				"edits are for", e.file, e.old, n)
		}
		files[e.file] = strings.Replace(files[e.file], e.old, e.new, 1)
	}
	return nil
}

// LoadSiw loads siw anew. Without params it is the driver as it stands in the source, else the
// one whose constants are module parameters: mpa_crc_required, mpa_crc_strict, mpa_version,
// peer_to_peer, rtr_type (8000 hex: Write, 4000: Read), try_gso, zcopy_tx. Nothing in the guest
// may have the device open.
func (g *Guest) LoadSiw(ctx context.Context, params ...string) error {
	s := &ctl.Siw{Variant: ctl.SiwStock}
	if len(params) > 0 {
		s = &ctl.Siw{Variant: ctl.SiwParam, Params: strings.Join(params, " ")}
	}
	return g.call(ctx, ctl.Request{Siw: s})
}

// Netem impairs what the guest's NIC sends and receives, in the words of tc-netem(8): "loss 2%
// delay 5ms". Empty ones take that off.
func (g *Guest) Netem(ctx context.Context, out, in string) error {
	return g.call(ctx, ctl.Request{Netem: &ctl.Netem{Out: strings.Fields(out),
		In: strings.Fields(in)}})
}

// Kmsg returns what the guest's kernel has said since the last call.
func (g *Guest) Kmsg(ctx context.Context) (string, error) {
	c := newCommand(g, "kernel's messages")
	if err := g.send(ctl.Request{Kmsg: true}, c); err != nil {
		return "", err
	}
	err := c.Wait(ctx)
	return c.Output(), err
}
