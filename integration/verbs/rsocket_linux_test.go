package verbs

import (
	"context"
	"fmt"
	"os"
	"testing"
	"time"

	"github.com/vrnic/vrnic/internal/needtest"
)

// linuxRsocketJobs are programs of sockets that understand each other only if the protocol is
// rdma-core's.
func linuxRsocketJobs() (jobs []siwJob) {
	for i, words := range []string{
		"rstream %s ADDR -p PORT -S 4096 -C 20 -I 10 -T v",
		"rstream %s ADDR -p PORT -S 200000 -C 3 -I 3 -T v",
		"rstream %s ADDR -p PORT -S 64 -C 500 -I 2 -T b",
		"riostream %s ADDR -p PORT -S 30000 -C 3 -I 5 -T v",
	} {
		jobs = append(jobs, siwJob{server: fmt.Sprintf(words, "-b"), client: fmt.Sprintf(words, "-s"),
			out: `^custom +[\d.]+\w* +`, smoke: i == 0})
	}
	return jobs
}

// Sockets over RDMA with rdma-core's library on the kernel's rxe at the other end, both ways.
func TestRxeRsocket(t *testing.T) {
	if os.Getenv("VRNIC_TEST_INTEROP") == "smoke" {
		needtest.Skip(t, "boots a guest of its own: run `make interop`")
	}
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Minute)
	defer cancel()
	need(t, "rstream", "riostream")
	l := newLinuxLab(t, ctx, true)
	for _, j := range linuxRsocketJobs() {
		t.Run("client of rxe's/"+j.client, func(t *testing.T) { l.client(t, ctx, &j) })
		t.Run("server of rxe's/"+j.server, func(t *testing.T) { l.server(t, ctx, &j) })
	}
}
