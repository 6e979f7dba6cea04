package gvisor

import (
	"reflect"
	"testing"
)

// What is asked for is where it is looked for in this gVisor; what another one lacks is left out.
func TestTCPParts(t *testing.T) {
	for i, part := range parts {
		if part.len == 0 || len(part.offsets) != len(endpointPaths[i]) {
			t.Errorf("gVisor's tcp.Endpoint has no pointers %q", endpointPaths[i])
		}
	}
	type inner struct{ n *int }
	type outer struct {
		inner
		pad   int64
		a     *inner
		value inner
	}
	of := reflect.TypeOf(outer{inner{}, 0, nil, inner{nil}})
	if p := findPart(of, []string{"a"}); !reflect.DeepEqual(p, part{[]uintptr{16}, 8}) {
		t.Errorf("a: %+v", p)
	}
	for _, path := range [][]string{{"b"}, {"a", "b"}, {"a", "n"}, {"value"}, {"n"}, {"pad"}} {
		if p := findPart(of, path); p.len != 0 || p.offsets != nil {
			t.Errorf("%q: %+v", path, p)
		}
	}
}
