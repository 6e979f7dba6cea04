package proctest

import (
	"fmt"
	"os"
	"strings"
	"testing"
)

// A Holding is what a daemon has because of its clients.
type Holding struct {
	QPs, MRs, CQs, CMs, Clients int
	FDs, Mappings               int
}

// HoldingOf asks a daemon, by show for its rows of a kind, and the kernel for what the process pid
// has. What the question itself takes is in every answer.
func HoldingOf(t testing.TB, pid int, show func(kind string) []map[string]any) Holding {
	t.Helper()
	proc := fmt.Sprintf("/proc/%d/", pid)
	fds, err := os.ReadDir(proc + "fd")
	if err != nil {
		t.Fatal(err)
	}
	maps, err := os.ReadFile(proc + "maps")
	if err != nil {
		t.Fatal(err)
	}
	return Holding{
		QPs: len(show("qp")), MRs: len(show("mr")), CQs: len(show("cq")), CMs: len(show("cm")),
		Clients: len(show("client")), FDs: len(fds), Mappings: strings.Count(string(maps), "memfd:"),
	}
}

// Least is the lesser of each kind.
func (h Holding) Least(o Holding) Holding {
	return Holding{
		QPs: min(h.QPs, o.QPs), MRs: min(h.MRs, o.MRs), CQs: min(h.CQs, o.CQs), CMs: min(h.CMs, o.CMs),
		Clients: min(h.Clients, o.Clients), FDs: min(h.FDs, o.FDs), Mappings: min(h.Mappings, o.Mappings),
	}
}
