package stats

import (
	"reflect"
	"sync/atomic"
	"testing"
)

// Each counter of a QP is in its snapshot, under a name of its own, and in the sum of a device.
func TestCounters(t *testing.T) {
	var qp QP
	counted := reflect.ValueOf(&qp).Elem()
	for i := range counted.NumField() {
		counted.Field(i).Addr().Interface().(*atomic.Uint64).Store(uint64(i) + 1)
	}
	one := qp.Snapshot()
	sum := one
	sum.Add(one)
	shown, of := reflect.ValueOf(one), map[uint64]string{}
	for i := range shown.NumField() {
		name, n := shown.Type().Field(i).Name, shown.Field(i).Uint()
		if of[n] != "" || n == 0 {
			t.Errorf("%s is %d, as %q is: Snapshot does not know it", name, n, of[n])
		}
		of[n] = name
		if got := reflect.ValueOf(sum).Field(i).Uint(); got != 2*n {
			t.Errorf("%s: %d and %d are %d: Add does not know it", name, n, n, got)
		}
	}
	if shown.NumField() != counted.NumField() {
		t.Errorf("%d counters are counted, %d shown", counted.NumField(), shown.NumField())
	}
}
