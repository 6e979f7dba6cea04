package verbs

import (
	"crypto/rand"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/vrnic/vrnic/integration/proctest"
)

const (
	iserTarget    = "iqn.2026-01.example:disk"
	iserInitiator = "iqn.2026-01.example:initiator"
	iserDisk      = " iscsi://ADDR/" + iserTarget + "/1?iser"
)

// iserJobs are libiscsi's programs, on a disk of tgtd's. The tests of iscsi-test-cu write blocks
// and compare what they read of them: Verify10 has tgtd compare, too.
var iserJobs = []job{
	{client: "iscsi-inq -i " + iserInitiator + iserDisk,
		clientOut: []string{"^Product:VIRTUAL-DISK", "^Peripheral Device Type:DIRECT_ACCESS"}},
	{client: "iscsi-readcapacity16 -i " + iserInitiator + iserDisk,
		clientOut: []string{fmt.Sprintf("^Total size:%d$", iserDiskSize)}},
	{client: "iscsi-perf -b 128 -m 8 -t 1 -i " + iserInitiator + iserDisk,
		clientOut: []string{"iops average [1-9]"}},
	iserTests("Read16", 5), iserTests("Verify10", 8), iserTests("WriteSame16.Check", 1),
	iserTests("OrWrite.Verify", 1),
}

const iserDiskSize = 8 << 20

// iserTests are those of a name, n at least.
func iserTests(name string, n int) job {
	return job{client: "iscsi-test-cu --dataloss --fail --test=SCSI." + name + " -i " +
		iserInitiator + iserDisk, clientOut: []string{fmt.Sprintf(`^ +tests +%d +%d +%[1]d +0 `, n, n)}}
}

// iser has tgtd serve a disk at 3260, its port unless errno happens to be 0 when it reads its
// options, and the program of j use it.
func iser(t *testing.T, top *topology, j *job) {
	t.Helper()
	need(t, "tgtd", "tgtadm", programOf(j.client))
	dir := ownDir(t, ordinary())
	disk, content := filepath.Join(dir, "disk"), make([]byte, iserDiskSize)
	_, _ = rand.Read(content) // it never fails
	if err := errors.Join(os.WriteFile(disk, content, 0o600),
		os.Chown(disk, max(ordinary(), os.Getuid()), -1)); err != nil {
		t.Fatal(err)
	}
	env := []string{"TGT_IPC_SOCKET=" + filepath.Join(dir, "ipc")}
	server := top.server.in(t)
	// It serves iSCSI over TCP as well, as it happens at a port of the kernel's.
	tgtd := server.startWith(env, "tgtd", "-f", "--iscsi", fmt.Sprintf("portal=127.0.0.1:%d",
		nextPort.Add(1)))
	proctest.Eventually(t, patience, "tgtd can be told what to do", func() bool {
		c, err := net.Dial("unix", filepath.Join(dir, "ipc.0"))
		return err == nil && c.Close() == nil
	})
	for _, args := range []string{"--mode target --op new --tid 1 -T " + iserTarget,
		"--mode logicalunit --op new --tid 1 --lun 1 -b " + disk,
		// It wants an initiator to be allowed by its address and by its name.
		"--mode target --op bind --tid 1 -I ALL",
		"--mode target --op bind --tid 1 -Q " + iserInitiator} {
		server.startWith(env, words("tgtadm --lld iser "+args)...).succeed(patience)
	}
	server.listens(tgtd, 3260, 2) // since it has a target, of IPv4 and IPv6
	client := top.client.in(t).startWith(nil, words(j.client, "ADDR", top.server.addrs[0])...)
	client.succeed(time.Minute, j.clientOut...)
	tgtd.Kill()
}

// iserRuns are these on either kind of device.
func iserRuns() (runs []roceRun) {
	for i := range iserJobs {
		j := &iserJobs[i]
		runs = append(runs, roceRun{words: j.client, do: func(t *testing.T, top *topology) {
			iser(t, top, j)
		}})
	}
	return runs
}
