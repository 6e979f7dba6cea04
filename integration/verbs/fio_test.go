package verbs

import (
	"fmt"
	"testing"
	"time"
)

// fioJobs: the client says rw=write whatever the verb; with a memory verb the server's memory is
// what it writes to or reads from.
func fioJobs() (jobs []job) {
	for _, verb := range []string{"write", "read", "send"} {
		// Messages have headers that the server checks. With memory verbs it does nothing but wait.
		var verify, header string
		if verb == "send" {
			verify, header = " --verify=crc32c", " --verify=crc32c --do_verify=0"
		}
		for _, size := range []struct{ bs, size, depth string }{{"4k", "2m", "16"}, {"64k", "16m", "8"},
			{"1m", "64m", "2"}} {
			r := func(s string) string { return fmt.Sprintf(s, size.bs, size.size, size.depth) }
			jobs = append(jobs, job{
				name: "fio " + verb + " " + size.bs,
				server: r("fio --thread --name=server --ioengine=rdma --port=PORT --rw=read --bs=%s " +
					"--size=%s --iodepth=%s" + verify),
				client: r("fio --thread --name=client --ioengine=rdma --hostname=ADDR --port=PORT --verb=" +
					verb + " --rw=write --bs=%s --size=%s --iodepth=%s --iodepth_batch_complete=1" + header),
				serverOut: []string{`err= 0`, "!verify:"}, clientOut: []string{`err= 0`},
				limit: time.Minute, quick: size.bs == "64k",
			})
		}
	}
	return jobs
}

func TestFio(t *testing.T) {
	need(t, "fio")
	if jobs := fioJobs(); thorough() {
		inTopologies(t, jobs)
	} else {
		inTopologies(t, jobs, "one device", "two daemons")
	}
}
