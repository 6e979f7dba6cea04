package integration

import (
	"fmt"
	"os"
	"strings"
	"testing"
	"time"
)

// siwSmoke reports whether only the quick part is asked for, as in CI.
func siwSmoke() bool { return os.Getenv("VRNIC_TEST_INTEROP") == "smoke" }

// A siwCell is what came of one operation, or of several.
type siwCell struct {
	failed  bool
	runs    int
	retries int
	took    time.Duration
}

func (c *siwCell) add(x *siwCell) {
	if x == nil {
		return
	}
	c.failed = c.failed || x.failed
	c.runs += x.runs
	c.retries += x.retries
	c.took += x.took
}

// String is the cell of a matrix: seconds, retries in brackets.
func (c *siwCell) String() string {
	switch {
	case c == nil:
		return ""
	case c.failed:
		return "failed"
	case c.retries > 0:
		return fmt.Sprintf("%.2f (%d)", c.took.Seconds(), c.retries)
	default:
		return fmt.Sprintf("%.2f", c.took.Seconds())
	}
}

// columns are runs, retries and seconds, in columns of their own.
func (c *siwCell) columns() string {
	if c.failed {
		return fmt.Sprintf("%d, failed | %d | %.2f", c.runs, c.retries, c.took.Seconds())
	}
	return fmt.Sprintf("%d | %d | %.2f", c.runs, c.retries, c.took.Seconds())
}

// siwSections are what the tests of this run have reported, in their order.
var siwSections []string

// reportSiw logs a section of the report, and writes all there are to $VRNIC_TEST_REPORT as
// Markdown.
func reportSiw(t *testing.T, title, table string) {
	t.Helper()
	if t.Failed() {
		t.Logf("%s\n\n%s", title, table)
		return
	}
	section := "#### " + title + "\n\n" + table
	t.Logf("\n%s", section)
	siwSections = append(siwSections, section)
	if path := os.Getenv("VRNIC_TEST_REPORT"); path != "" {
		if err := os.WriteFile(path, []byte(strings.Join(siwSections, "\n")), 0o644); err != nil {
			t.Error(err)
		}
	}
}
