package archtest

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"path"
	"regexp"
	"strings"
	"testing"
)

// doc returns the text of a file of docs.
func doc(t *testing.T, name string) string {
	t.Helper()
	for _, f := range files(t) {
		if f.name == "docs/"+name {
			return string(f.text)
		}
	}
	t.Fatalf("docs/%s is not there", name)
	return ""
}

// Each requirement of RFC 5042 is answered for programs and administrators, in words: some of them
// are duties of theirs.
func TestSecurityDoc(t *testing.T) {
	text := doc(t, "security.md")
	known := make(map[string]bool)
	for _, l := range titles {
		if l.name != "SEC" {
			continue
		}
		for i := range l.n {
			id := fmt.Sprintf("SEC-%03d", i+1)
			known[id] = true
			if !strings.Contains(text, id) {
				t.Errorf("docs/security.md does not name %s", id)
			}
		}
	}
	for _, id := range regexp.MustCompile(`SEC-\d+`).FindAllString(text, -1) {
		if !known[id] {
			t.Errorf("docs/security.md names %s, which there is not", id)
		}
	}
}

// abstract4296 are the types and operations of RFC 4296, sections 2.1.1, 2.1.2, 2.2 and 2.2.1.
var abstract4296 = strings.Fields(`
	socket_t message_t data_t address_t msize_t length_t ddp_buffer_t rdma_buffer_t stag_t ddp_addr_t bhand_t bdesc_t
	ddp_notify_t ddp_msg_id_t rdma_notify_t rdma_write_id_t recv_message_t ddp_ind_t rdma_ind_t ddp_err_t rdma_err_t msizes_t bmode_t
	xpt_send xpt_recv xpt_max_msize
	ddp_send ddp_send_ddp ddp_post_recv ddp_recv ddp_register ddp_deregister ddp_max_msizes
	rdma_send rdma_write rdma_read rdma_post_recv rdma_recv rdma_register rdma_deregister rdma_max_msizes`)

// The table of RFC 4296 has each of its types and operations, and what it names in Go exists.
func TestRFC4296Doc(t *testing.T) {
	text := doc(t, "rfc4296.md")
	for _, name := range abstract4296 {
		if !regexp.MustCompile("(?m)^\\|[^|]*`" + name + "`").MatchString(text) {
			t.Errorf("docs/rfc4296.md has no row for %s", name)
		}
	}
	names := exported(t)
	for _, m := range regexp.MustCompile(
		"`((?:rdma|vnic|iwarp)\\.[A-Z][A-Za-z0-9.]*)`").FindAllStringSubmatch(text, -1) {
		if !names[m[1]] {
			t.Errorf("docs/rfc4296.md names %s, which there is not", m[1])
		}
	}
}

// exported holds what the packages rdma, vnic and iwarp declare: pkg.Name, pkg.Type.Method and
// pkg.Type.Field, also of what is embedded by its own name. Members of a type in vnic/internal
// count as those of vnic's type of that name, which is another name for it or embeds it.
func exported(t *testing.T) map[string]bool {
	names := make(map[string]bool)
	for _, f := range goFiles(t) {
		pkg := path.Dir(f.name)
		inner := within(pkg, "vnic/internal")
		if inner {
			pkg = "vnic"
		}
		if f.isTest() || pkg != "rdma" && pkg != "vnic" && pkg != "iwarp" {
			continue
		}
		parsed, err := parser.ParseFile(token.NewFileSet(), f.name, f.text, parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		for _, d := range parsed.Decls {
			declared(d, func(name string) {
				if !inner || strings.Contains(name, ".") {
					names[pkg+"."+name] = true
				}
			})
		}
	}
	return names
}

func declared(d ast.Decl, add func(string)) {
	switch d := d.(type) {
	case *ast.FuncDecl:
		name := d.Name.Name
		if d.Recv != nil {
			typ := d.Recv.List[0].Type
			if star, ok := typ.(*ast.StarExpr); ok {
				typ = star.X
			}
			if id, ok := typ.(*ast.Ident); ok {
				name = id.Name + "." + name
			}
		}
		add(name)
	case *ast.GenDecl:
		for _, s := range d.Specs {
			switch s := s.(type) {
			case *ast.ValueSpec:
				for _, n := range s.Names {
					add(n.Name)
				}
			case *ast.TypeSpec:
				add(s.Name.Name)
				for _, field := range members(s.Type) {
					for _, n := range field.Names {
						add(s.Name.Name + "." + n.Name)
					}
				}
				if it, ok := s.Type.(*ast.InterfaceType); ok {
					for _, m := range it.Methods.List {
						if len(m.Names) == 0 { // io.Closer
							add(s.Name.Name + ".Close")
						}
					}
				}
			}
		}
	}
}

func members(typ ast.Expr) []*ast.Field {
	switch typ := typ.(type) {
	case *ast.StructType:
		return typ.Fields.List
	case *ast.InterfaceType:
		return typ.Methods.List
	}
	return nil
}
