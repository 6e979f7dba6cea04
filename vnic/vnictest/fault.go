package vnictest

import (
	"strings"
	"testing"

	"github.com/vrnic/vrnic/vnic"
	"github.com/vrnic/vrnic/vnic/fault"
)

// Fault has d fail by lines as package fault has them, without the device in front of each, to the
// end of the test or of the Set; seed is of what is by chance. A line that begins with /QPN is of
// one queue pair.
func Fault(t testing.TB, d *vnic.Device, seed uint64, lines ...string) (s *fault.Set) {
	t.Helper()
	var text strings.Builder
	for _, line := range lines {
		if !strings.HasPrefix(line, "/") {
			line = " " + line
		}
		text.WriteString(d.Name() + line + "\n")
	}
	all, err := fault.Parse(text.String())
	if err != nil {
		t.Fatal(err)
	}
	s = new(fault.Set)
	// The error of Close is for who made the device.
	target := &fault.Target{Device: d, Gone: func() { _ = d.Close() }}
	if err := s.Begin(seed, all, func(string) *fault.Target { return target }); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.End("") }) // an error: they have ended
	return s
}
