package needtest

import (
	"bufio"
	"bytes"
	"fmt"
	"os"
	"strings"
	"time"
)

const (
	// tries is how often Soon has something end at most.
	tries = 5
	// farTooLate times the limit is late whatever the machine does: somebody waits for a timer.
	farTooLate = 10
)

// Soon has something end that is to be seen within limit, since an event tells of it and nobody
// waits for a timer; end returns how long that took. A machine that is busy otherwise holds up
// events too, so a try that was late is had again if the machine was measured to hold it up for all
// but the limit. A single try that was late of itself is an error, and so are tries that are all
// late.
func Soon(limit time.Duration, end func() time.Duration) error {
	return soon(limit, func() (took, held time.Duration) {
		before := stalled()
		stop := oversleep()
		took = end()
		return took, max(stop(), stalled()-before)
	})
}

func soon(limit time.Duration, try func() (took, held time.Duration)) error {
	var late []string
	for range tries {
		took, held := try()
		if took <= limit {
			return nil
		}
		held = min(held, took)
		late = append(late, fmt.Sprintf("%v (the machine was held up for %v of it)", took, held))
		if took-held > limit || took > farTooLate*limit {
			break
		}
	}
	return fmt.Errorf("it was seen after %s; want %v", strings.Join(late, ", "), limit)
}

// oversleep measures until stop is called by how much somebody who only sleeps wakes too late: that
// sees what /proc does not tell, such as the pause of a whole virtual machine.
func oversleep() (stop func() time.Duration) {
	const nap = 5 * time.Millisecond
	over, total := make(chan struct{}), make(chan time.Duration)
	go func() {
		var sum time.Duration
		for {
			begin := time.Now()
			select {
			case <-over:
				total <- sum
				return
			case <-time.After(nap):
				sum += max(0, time.Since(begin)-2*nap)
			}
		}
	}()
	return func() time.Duration {
		close(over)
		return <-total
	}
}

// stalled is for how long, since the machine began, somebody has waited for a processor, for a disk
// or for memory (/proc/pressure), and a processor was another machine's; less is told by kernels
// that do not know all of it.
func stalled() (d time.Duration) {
	for _, what := range []string{"cpu", "io", "memory"} {
		// some avg10=0.00 avg60=0.00 avg300=0.00 total=MICROSECONDS
		b, _ := os.ReadFile("/proc/pressure/" + what)
		_, total, _ := strings.Cut(string(bytes.SplitN(b, []byte("\n"), 2)[0]), "total=")
		var us int64
		if _, err := fmt.Sscan(total, &us); err == nil {
			d += time.Duration(us) * time.Microsecond
		}
	}
	f, err := os.Open("/proc/stat")
	if err != nil {
		return d
	}
	defer f.Close()
	line, _ := bufio.NewReader(f).ReadString('\n')
	// cpu user nice system idle iowait irq softirq steal..., in hundredths of a second
	if fields := strings.Fields(line); len(fields) > 8 {
		var steal int64
		if _, err := fmt.Sscan(fields[8], &steal); err == nil {
			d += time.Duration(steal) * 10 * time.Millisecond
		}
	}
	return d
}
