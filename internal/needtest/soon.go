package needtest

import (
	"bufio"
	"bytes"
	"fmt"
	"os"
	"strings"
	"time"
)

// tries is how often Soon has something end at most.
const tries = 5

// Soon has something end, which is to be seen within limit, since no timer is waited for; end returns how long it took. A machine
// may hold that up, by what else it does: a try that was late for this is had again. One that was late of itself is let pass once, since
// not all that a machine does is told, and only if three tries behind it are not late.
func Soon(limit time.Duration, end func() time.Duration) error { return soon(limit, end, heldUp) }

func soon(limit time.Duration, end func() time.Duration, heldUp func() (time.Duration, bool)) error {
	var late []string
	itself, owed := 0, 1
	for len(late) < tries {
		before, _ := heldUp()
		took := end()
		if took <= limit {
			if owed--; owed == 0 {
				return nil
			}
			continue
		}
		after, told := heldUp()
		late = append(late, fmt.Sprintf("%v (the machine was held up for %v of it)", took, min(after-before, took)))
		if told && took-(after-before) > limit {
			if itself++; itself == 2 {
				break
			}
			owed = 3
		}
	}
	return fmt.Errorf("it was seen after %s; want %v", strings.Join(late, ", "), limit)
}

// heldUp is for how long, since the machine began, somebody has waited for a processor, for a disk or for memory
// (/proc/pressure), or a processor was another machine's. ok is false where the kernel does not tell.
func heldUp() (d time.Duration, ok bool) {
	for _, what := range []string{"cpu", "io", "memory"} {
		b, err := os.ReadFile("/proc/pressure/" + what)
		if err != nil {
			return 0, false
		}
		// some avg10=0.00 avg60=0.00 avg300=0.00 total=MICROSECONDS
		var us int64
		_, total, _ := strings.Cut(string(bytes.SplitN(b, []byte("\n"), 2)[0]), "total=")
		if _, err := fmt.Sscan(total, &us); err != nil {
			return 0, false
		}
		d += time.Duration(us) * time.Microsecond
	}
	f, err := os.Open("/proc/stat")
	if err != nil {
		return 0, false
	}
	defer f.Close()
	line, err := bufio.NewReader(f).ReadString('\n')
	if err != nil {
		return 0, false
	}
	// cpu user nice system idle iowait irq softirq steal..., in hundredths of a second
	fields := strings.Fields(line)
	var steal int64
	if len(fields) < 9 {
		return 0, false
	}
	if _, err := fmt.Sscan(fields[8], &steal); err != nil {
		return 0, false
	}
	return d + time.Duration(steal)*10*time.Millisecond, true
}
