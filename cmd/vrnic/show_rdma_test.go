package main

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"os"
	"strings"
	"testing"

	"github.com/vrnic/vrnic/rdma"
	"github.com/vrnic/vrnic/shm"
)

// What `rdma` of iproute2 prints, which asks the kernel over netlink, `vrnic show` prints
// with the same columns and keys.
func TestShowRDMA(t *testing.T) {
	socket := pingDaemon(t)
	client, err := shm.Dial(socket)
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	device, err := client.Open("right")
	if err != nil {
		t.Fatal(err)
	}
	pd, err := device.AllocPD()
	if err != nil {
		t.Fatal(err)
	}
	buf, err := device.AllocBuffer(100)
	if err != nil {
		t.Fatal(err)
	}
	mr, err := pd.RegisterMemory(buf.Bytes(), rdma.LocalWrite)
	if err != nil {
		t.Fatal(err)
	}
	cq, err := device.CreateCQ(10)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := pd.CreateQP(rdma.QPConfig{SendCQ: cq, RecvCQ: cq, MaxSendWR: 1, MaxRecvWR: 1,
		MaxSendSGE: 1, MaxRecvSGE: 1}); err != nil {
		t.Fatal(err)
	}
	listener, err := device.Listen(netip.AddrPortFrom(netip.IPv4Unspecified(), 0), 1)
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	me := fmt.Sprintf("pid %d comm ", os.Getpid())
	for _, tt := range []struct {
		args []string
		want []string // the beginnings of lines
	}{
		{[]string{"link"}, []string{
			"link left/1 state ACTIVE physical_state LINK_UP netdev left",
			"link right/1 state ACTIVE physical_state LINK_UP netdev right"}},
		{[]string{"link", "-d", "right"}, []string{
			"link right/1 state ACTIVE physical_state LINK_UP netdev right"}},
		{[]string{"resource"}, []string{"0: left: pd 0 cq 0 qp 0 cm_id 0 mr 0 ctx 0 srq 0",
			"1: right: pd 1 cq 1 qp 1 cm_id 1 mr 1 ctx 1 srq 0"}},
		{[]string{"resource", "pd"}, []string{"dev right pdn 1 users 2 ctxn 1 " + me}},
		{[]string{"resource", "cq"}, []string{"dev right cqn 1 cqe "}},
		{[]string{"resource", "qp"}, []string{"link right/1 lqpn 1 pdn 1 type RC state INIT " + me}},
		{[]string{"resource", "mr"}, []string{fmt.Sprintf(
			"dev right mrn 1 rkey %#x lkey %#x iova %#x mrlen 100 pdn 1 %s", mr.RKey(), mr.LKey(),
			mr.Addr(), me)}},
		{[]string{"resource", "ctx"}, []string{"dev right ctxn 1 " + me}},
		{[]string{"resource", "cm_id"}, []string{"link right/1 state LISTEN ps TCP " + me}},
		{[]string{"resource", "srq"}, nil},
		{[]string{"resource", "qp", "--json"}, []string{"[",
			`  {"ifindex":1,"ifname":"right","port":1,"lqpn":1,"pdn":1,"type":"RC","state":"INIT","pid":`,
			"]"}},
	} {
		args := append([]string{"show"}, tt.args...)
		status, stdout, stderr := vrnic(append(args, "--socket", socket)...)
		lines := strings.Split(strings.TrimSuffix(stdout, "\n"), "\n")
		if stdout == "" {
			lines = nil
		}
		if status != 0 || stderr != "" || len(lines) != len(tt.want) {
			t.Errorf("%q: status %d, stderr %q, stdout\n%s", args, status, stderr, stdout)
			continue
		}
		for i, want := range tt.want {
			if !strings.HasPrefix(lines[i], want) {
				t.Errorf("%q: line %d is %q, want %q", args, i+1, lines[i], want)
			}
		}
	}
	_, stdout, _ := vrnic("show", "link", "--json", "--socket", socket)
	var rows []map[string]any
	if err := json.Unmarshal([]byte(stdout), &rows); err != nil || len(rows) != 2 ||
		rows[1]["ifname"] != "right" || rows[1]["physical_state"] != "LINK_UP" {
		t.Errorf("%v: %s", err, stdout)
	}
	status, _, stderr := vrnic("show", "resource", "-d", "nobody", "--socket", socket)
	if status != exitUsage || !strings.Contains(stderr, "left, right") {
		t.Errorf("a device that is not there: %d, %q", status, stderr)
	}
}
