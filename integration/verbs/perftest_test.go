package verbs

import (
	"fmt"
	"strings"
	"testing"
	"time"
)

// What perftest's clients say that are not to blame anybody else for what comes then.
const (
	// The second connection, of two, comes before its server has begun to listen for that. It tries
	// again, but with an array that it has freed.
	perfTooEarly = "RDMA_CM_EVENT_REJECTED; error: -111"
	// It measures the processor's clock first. If others take the processor meanwhile it goes on
	// without one, and prints inf for each time.
	perfNoClock = "Correlation coefficient r^2"
)

// perfJob is one of perftest's programs with -R: by rdma_cm, as is the rule on iWARP. Its programs
// verify no data; that they count as many messages as they were to send is in their output.
func perfJob(tool, options string, quick bool) job {
	sides := fmt.Sprintf("%s -R -F -p PORT %s", tool, options)
	name := tool + " " + options
	row, limit := `^ *\d+ +\d+ +[\d.]+ +`, time.Minute
	if strings.Contains(options, "-a") {
		// 1.7 GB, which two daemons with the race detector move at 7 MB/s where others want the
		// processors too.
		row, limit = `^ *8388608 +\d+ +`, 12*time.Minute
	}
	return job{name: name, server: sides, client: sides + " ADDR", clientOut: []string{row},
		quick: quick, limit: limit,
		again: []string{perfTooEarly, perfNoClock}}
}

// perfJobs are the tools with each of the options that say how completions and queues are used.
//
// On iWARP perftest limits its Sends by credits that the receiver writes into the sender's memory.
// With events it sleeps until a completion comes, so that it sleeps for ever if it has used up its
// credit of as many messages as the queue of the receiver holds, 512, or all of fewer: -n is to be
// well beyond that. With an SRQ a receiver counts the credits of several QPs wrongly: -q is to be
// 1.
func perfJobs() (jobs []job) {
	quick := map[string]bool{
		"ib_send_bw -n 200 -s 4096": true, "ib_write_bw -n 200": true, "ib_read_bw -n 200": true,
		"ib_send_lat -n 200 -s 64": true, "ib_write_lat -n 200 -s 64": true,
		"ib_read_lat -n 200 -s 64": true,
		"ib_send_bw -n 600 -e":     true, "ib_send_bw -n 200 -b -s 4096": true,
		"ib_send_bw -n 200 --use-srq": true, "ib_write_bw -n 200 -q 4 -b -s 4096": true,
		"ib_send_lat -n 100 -e -I 64 -s 64": true,
	}
	add := func(tool, options string) {
		jobs = append(jobs, perfJob(tool, options, quick[tool+" "+options]))
	}
	for _, op := range []string{"send", "write", "read"} {
		bw, lat := "ib_"+op+"_bw", "ib_"+op+"_lat"
		for _, o := range []string{"-n 200", "-n 200 -s 4096", "-n 2000 -s 64", "-n 200 -b",
			"-n 200 -b -s 4096", "-n 200 -q 4 -b", "-n 200 -q 4 -b -s 4096", "-n 200 -q 16", "-n 100 -a",
			"-D 2", "-n 100 -s 1048576", "-n 1000 -Q 1", "-n 1000 -t 8", "-n 200 -l 8 -s 1024"} {
			add(bw, o)
		}
		for _, o := range []string{"-n 200 -s 64", "-n 20 -a", "-D 2 -s 64", "-n 200 -s 65536"} {
			add(lat, o)
		}
		if op != "write" { // which has no events
			add(lat, "-n 100 -e -s 64")
			add(bw, "-n 600 -e")
		}
	}
	for _, o := range []string{"-n 200 --use-srq", "-n 600 --use-srq -e", "-n 200 --use-srq -b",
		"-n 200 --use-srq -s 1024", "-n 200 -I 64 -s 64", "-n 200 -r 16 -s 1024"} {
		add("ib_send_bw", o)
	}
	for _, o := range []string{"-n 100 -e -I 64 -s 64", "-n 200 --use-srq -s 64",
		"-n 200 -I 128 -s 128"} {
		add("ib_send_lat", o)
	}
	for _, o := range []string{"-n 200 -I 32 -s 32", "-n 200 -I 64 -s 64 -q 4", "-n 200 --odp"} {
		add("ib_write_bw", o)
	}
	add("ib_write_lat", "-n 200 -I 64 -s 64")
	for _, o := range []string{"-n 200", "-n 200 -A CMP_AND_SWAP", "-n 200 -A FETCH_AND_ADD -q 4",
		"-n 200 -b"} {
		add("ib_atomic_bw", o)
	}
	add("ib_atomic_lat", "-n 200")
	return jobs
}

func TestPerftest(t *testing.T) { inTopologies(t, perfJobs(), "two daemons") }
