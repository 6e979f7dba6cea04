package golden

import (
	"os"
	"path/filepath"
	"testing"
)

// A judge notes that it has been complained to.
type judge struct {
	testing.TB
	failed bool
}

func (*judge) Helper()                 {}
func (j *judge) Errorf(string, ...any) { j.failed = true }

// What differs is complained of, and is written with -update.
func TestCheck(t *testing.T) {
	file := filepath.Join(t.TempDir(), "golden.txt")
	if err := os.WriteFile(file, []byte("was\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	fails := func(got string) bool {
		j := &judge{TB: t}
		Check(j, file, got)
		return j.failed
	}
	if fails("was\n") || !fails("is\n") || !fails("") {
		t.Error("it takes something else than the file has")
	}
	*update = true
	defer func() { *update = false }()
	if fails("is\n") {
		t.Error("with -update it complains of what it writes")
	}
	*update = false
	if fails("is\n") || !fails("was\n") {
		t.Error("it has not written what was got")
	}
}
