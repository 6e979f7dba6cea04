package abicheck

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/vrnic/vrnic/verbs/internal/ctest"
)

// Debian's headers, of libibverbs-dev and librdmacm-dev.
var systemHeaders = []string{"/usr/include/infiniband/verbs.h",
	"/usr/include/infiniband/verbs_api.h", "/usr/include/infiniband/sa.h",
	"/usr/include/rdma/rdma_cma.h", "/usr/include/rdma/rsocket.h"}

// Ours, in the order in which ibv.h and rdmacm.h include them.
var ourHeaders = []string{
	"ibverbs/abi/ibv.h", "ibverbs/abi/ibv_wr.h", "ibverbs/abi/ibv_qp.h", "ibverbs/abi/ibv_context.h",
	"ibverbs/abi/ibv_api.h", "rdmacm/rdmacm.h", "rsocket/rsocket.h",
}

const systemIncludes = "#include <infiniband/verbs.h>\n#include <rdma/rdma_cma.h>\n#include " +
	"<rdma/rdma_verbs.h>\n#include <rdma/rsocket.h>\n"

// private lists what rdma-core keeps to itself: no header of Debian's has it, so that ibv.h alone
// checks it.
var private = map[string]bool{
	"struct verbs_device": true, "struct verbs_qp": true, "VERBS_QP_XRCD": true, "VERBS_QP_EX": true,
	"IBV_GID_TYPE_SYSFS_IB_ROCE_V1": true, "IBV_GID_TYPE_SYSFS_ROCE_V2": true,
}

// otherwise lists enums of which ours has a part only, and says why the rest is not needed.
var partial = map[string]string{
	"":                          "enums without a name hold all kinds of things",
	"ibv_port_cap_flags":        "of InfiniBand's port attributes an RNIC has nearly none",
	"ibv_wc_opcode":             "tag matching and drivers' own",
	"ibv_cq_attr_mask":          "",
	"ibv_advise_mr_advice":      "the kernel's header has them, under other names",
	"rdma_cm_join_mc_attr_mask": "multicast",
}

// TestHeaders compares the layouts and numbers of ibv.h, rdmacm.h and rsocket.h with Debian's
// headers. Two programs, one compiled with each, print the size of each struct, the offset and size
// of each field, and each number.
func TestHeaders(t *testing.T) {
	ctest.Need(t, systemHeaders...)
	var files []string
	for _, f := range ourHeaders {
		files = append(files, filepath.Join(verbsDir, f))
	}
	ours, system := parseHeaders(t, files...), parseHeaders(t, systemHeaders...)
	if len(ours.structs) < 50 || len(ours.enums) < 40 {
		t.Fatalf("only %d structs and %d enums of ours were found", len(ours.structs), len(ours.enums))
	}
	var body strings.Builder
	ours.printer(&body, func(name string) bool { return private[name] })
	for _, m := range []string{"RAI_PASSIVE", "RAI_NUMERICHOST", "RAI_NOROUTE", "RAI_FAMILY",
		"IBV_ACCESS_OPTIONAL_RANGE"} {
		body.WriteString("\tCONST(" + m + ")\n")
	}
	text := printerHead + "int main(void)\n{\n" + body.String() + "\treturn 0;\n}\n"
	const includes = "#include \"rdmacm/rdmacm.h\"\n#include \"rsocket/rsocket.h\"\n"
	got := values(t, compile(t, "ours", includes+text))
	want := values(t, compile(t, "system", systemIncludes+text, "-Wno-deprecated-declarations"))
	for _, name := range sortedKeys(want) {
		if got[name] != want[name] {
			t.Errorf("%s is %s, and %s in the system's headers", name, got[name], want[name])
		}
	}
	for s, fields := range ours.structs {
		if private["struct "+s] {
			continue
		}
		for _, f := range system.structs[s] {
			if !slices.Contains(fields, f) {
				t.Errorf("struct %s has no field %s", s, f)
			}
		}
	}
	for e, consts := range ours.enums {
		if _, ok := partial[e]; ok {
			continue
		}
		for _, c := range system.enums[e] {
			if !slices.Contains(consts, c) {
				t.Errorf("enum %s has no %s", e, c)
			}
		}
	}
}

var declarations = regexp.MustCompile(
	`(?s)#pragma GCC visibility push\(default\)(.*)#pragma GCC visibility pop`)

// TestPrototypes compiles the prototypes of ibv_api.h, rdmacm.h and rsocket.h behind Debian's
// headers: a compiler takes a second declaration of a function only if its type is the same.
func TestPrototypes(t *testing.T) {
	ctest.Need(t, systemHeaders...)
	var b strings.Builder
	b.WriteString(systemIncludes)
	b.WriteString("#undef ibv_query_port\n#undef ibv_reg_mr\n#undef ibv_reg_mr_iova\n")
	b.WriteString("typedef uint16_t ibv_be16; typedef uint32_t ibv_be32; typedef unsigned long long " +
		"ibv_be64;\n")
	b.WriteString("struct ibv_kern_ah_attr; struct ibv_kern_path_rec; struct ibv_kern_qp_attr;\n")
	functions := 0
	for _, f := range []string{"ibverbs/abi/ibv_api.h", "rdmacm/rdmacm.h", "rsocket/rsocket.h"} {
		text, err := os.ReadFile(filepath.Join(verbsDir, f))
		if err != nil {
			t.Fatal(err)
		}
		m := declarations.FindSubmatch(text)
		if m == nil {
			t.Fatalf("%s declares nothing that is visible", f)
		}
		// The struct is a part of ibv_port_attr, and has no definition there.
		d := strings.ReplaceAll(string(m[1]), "uint8_t port_num, struct ibv_port_attr *",
			"uint8_t port_num, struct _compat_ibv_port_attr *")
		functions += strings.Count(d, ");")
		b.WriteString(d)
	}
	if functions < 120 {
		t.Errorf("only %d functions are declared", functions)
	}
	b.WriteString("int main(void) { return 0; }\n")
	compile(t, "prototypes", b.String())
}
