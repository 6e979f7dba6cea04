package netstacktest

import (
	"fmt"
	"os"
	"runtime"
	"strings"
	"testing"
	"time"

	"gvisor.dev/gvisor/pkg/refs"
)

// Main is a TestMain that fails the run if a goroutine of netstack or gVisor's, or a buffer of
// gVisor's, is left over.
func Main(m *testing.M) {
	args := strings.Join(os.Args, " ")
	fast := strings.Contains(args, "-test.bench=") || strings.Contains(args, "-test.fuzz")
	if !fast { // it costs a lock and a map entry for every buffer
		refs.SetLeakMode(refs.LeaksPanic)
	}
	code := m.Run()
	if code == 0 {
		if left := leftGoroutines(); left != "" {
			fmt.Fprintf(os.Stderr, "goroutines left:\n%s\n", left)
			code = 1
		}
	}
	if code == 0 && !fast {
		refs.DoLeakCheck()
	}
	os.Exit(code)
}

// leftGoroutines gives the stacks of goroutines that should have ended, after some patience.
func leftGoroutines() string {
	var left []string
	for range 200 {
		left = nil
		buf := make([]byte, 1<<20)
		for g := range strings.SplitSeq(string(buf[:runtime.Stack(buf, true)]), "\n\n") {
			if strings.Contains(g, "leftGoroutines") {
				continue
			}
			if strings.Contains(g, "vrnic/netstack") || strings.Contains(g, "gvisor.dev/gvisor/pkg/tcpip") {
				left = append(left, g)
			}
		}
		if len(left) == 0 {
			break
		}
		time.Sleep(10 * time.Millisecond) // before it looks again
	}
	return strings.Join(left, "\n\n")
}
