package verbs

import (
	"encoding/json"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/vrnic/vrnic/internal/needtest"
)

// othersFound are the facts that are told of others' programs, as docs/laboratory.md lists them.
var othersFound = map[string][]string{
	"rping":         {"closed"},
	"ucmatose":      {"never-polled"},
	"cmtime":        {"busy", "leak"},
	"ib_send_bw":    {"changed", "closed", "leak"},
	"ib_send_lat":   {"closed", "leak"},
	"ib_write_bw":   {"closed", "leak"},
	"ib_write_lat":  {"closed", "leak"},
	"ib_read_bw":    {"closed", "leak"},
	"ib_read_lat":   {"closed", "leak"},
	"ib_atomic_lat": {"leak"},
	"fio":           {"busy", "freed", "leak", "no-receive"},
}

// othersJobs are those of each kind that are looked at, by the words of their clients' programs.
func othersJobs() (jobs []job) {
	of := map[string]bool{"rping": true, "rping with QPs of its own": true, "ucmatose": true,
		"rdma_server": true, "rdma_xserver": true, "cmtime": true,
		"ib_send_bw -n 200 -s 4096": true, "ib_send_bw -n 600 -e": true, "ib_write_bw -n 200": true,
		"ib_read_bw -n 200": true, "ib_send_lat -n 200 -s 64": true, "ib_write_lat -n 200 -s 64": true,
		"ib_read_lat -n 200 -s 64": true, "fio write 64k": true, "fio read 64k": true,
		"fio send 64k": true}
	for _, j := range slices.Concat(rpingJobs, cmJobs, perfJobs(), fioJobs()) {
		if of[j.name] {
			jobs = append(jobs, j)
		}
	}
	return jobs
}

// What is found in programs that others have written is what is listed, and nothing else: programs
// of rdma-core, perftest, fio and libfabric, on iWARP and on RoCE.
func TestCheckOthers(t *testing.T) {
	if sanitize.preload != nil || sanitize.wrapper != nil {
		needtest.Lacking(t, "plain libraries", "a sanitizer is in front of the C library, too")
	}
	need(t)
	iwarp := oneDevice(t)
	iwarp.server.checked = t.TempDir()
	for _, j := range othersJobs() {
		if !j.quick && !thorough() {
			continue
		}
		t.Run(j.name, func(t *testing.T) {
			iwarp.run(t, &j, 0)
			iwarp.server.wantListed(t)
		})
	}
	t.Run("fi_pingpong", func(t *testing.T) {
		fabricJob(t, iwarp, fabricQuick[0], patience)
		iwarp.server.wantListed(t)
	})
	d := up(t, nil, "--device", "rocep0,addr=10.78.0.2/24,addr=fd78::2/64,mtu=4200,transport=roce")
	d.checked = t.TempDir()
	p := &place{d, "rocep0", [2]string{"10.78.0.2"}}
	roce := &topology{"one device", p, p}
	plain := regexp.MustCompile(`^ibv_.*-g 1|-n (200|200 -q 8|100)$`)
	for _, n := range slices.Concat(pingpongs, numberedPerf()) {
		if n.notAlone || !n.quick && !thorough() || !plain.MatchString(n.words) {
			continue
		}
		t.Run(n.words, func(t *testing.T) {
			roce.runNumbered(t, &n)
			d.wantListed(t)
		})
	}
}

// wantListed complains of what the checker has told of programs that is not listed for them, and
// forgets it.
func (d *daemon) wantListed(t *testing.T) {
	t.Helper()
	names, _ := filepath.Glob(filepath.Join(d.checked, "*"))
	if len(names) == 0 {
		t.Error("nothing was looked at")
	}
	for _, name := range names {
		text, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		of, _, _ := strings.Cut(filepath.Base(name), "-")
		for line := range strings.Lines(string(text)) {
			var f finding
			if err := json.Unmarshal([]byte(line), &f); err != nil {
				t.Fatal(err)
			}
			if t.Logf("%s: %s", of, f.What); !slices.Contains(othersFound[of], f.What) {
				t.Errorf("of %s is told %+v", of, f)
			}
		}
		if err := os.Remove(name); err != nil {
			t.Fatal(err)
		}
	}
}
