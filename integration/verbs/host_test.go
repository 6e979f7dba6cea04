package verbs

import (
	"os"
	"testing"
)

// someUser is an ordinary user, or who runs the test if that is not root.
func someUser() int {
	if os.Geteuid() == 0 {
		return 64003
	}
	return 0
}

// Programs of an ordinary user, on that user's daemons, which have addresses of the host: what they
// say to "the device's address" by TCP reaches the other program there, so that one name is enough.
func TestHostPrograms(t *testing.T) {
	uid := someUser()
	addrs := [2]string{"127.77.5.2", "127.77.5.3"}
	var places []*place
	for _, a := range addrs {
		d := upAs(t, nil, uid, "--device", "vrnic0,host="+a+",sctp-udp=off")
		d.uid = uid
		places = append(places, &place{d, "", [2]string{a}})
	}
	top := &topology{"host", places[0], places[1]}
	jobs := []job{perfJob("ib_write_bw", "-n 200", true), perfJob("ib_send_lat", "-n 200 -s 64", true),
		rpingJobs[0]}
	top.runAll(t, jobs)
	t.Run("qperf", func(t *testing.T) {
		need(t, "qperf")
		for _, name := range []string{"rc_lat", "rc_rdma_write_bw", "tcp_lat"} {
			qperf(t, top, "qperf "+addrs[0]+" -lp PORT -t 1 -cm1 "+name, qperfMeasures(name))
		}
	})
	top.settle()
}
