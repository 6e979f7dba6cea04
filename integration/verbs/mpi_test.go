package verbs

import (
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/vrnic/vrnic/integration/proctest"
)

// An mpiRun is a command line of MPI's, with what its two processes must speak by. Memory that they
// share, and TCP, are not to be had.
const (
	mpiOverFabric = "mpirun.openmpi -n 2 --oversubscribe --mca pml cm --mca mtl ofi " +
		"--mca mtl_ofi_provider_include verbs;ofi_rxm mpi"
	mpiOverDatagrams = "mpirun.openmpi -n 2 --oversubscribe --mca pml cm --mca mtl ofi " +
		"--mca mtl_ofi_provider_include verbs;ofi_rxd mpi"
	mpiOverUCX = "UCX_TLS=rc_verbs,ud_verbs:aux,self mpirun.openmpi -n 2 --oversubscribe " +
		"--mca pml ucx mpi"
	mpichOverUCX = "UCX_TLS=rc_verbs,ud_verbs:aux,self MPIR_CVAR_NOLOCAL=1 mpirun.mpich -n 2 mpi"
)

// mpiProgram compiles testdata/mpi.c for a command line.
func mpiProgram(t *testing.T, words string) string {
	t.Helper()
	cc := strings.Replace(programOf(words), "mpirun", "mpicc", 1)
	need(t, "gcc", cc)
	path := filepath.Join(workDir, cc+"-mpi")
	out, err := exec.Command(cc, "-Wall", "-Werror", "-o", path, "testdata/mpi.c").CombinedOutput()
	if err != nil {
		t.Fatalf("%s testdata/mpi.c: %v\n%s", cc, err, out)
	}
	return path
}

// runMPI wants the processes to have sent by the daemon's devices.
func runMPI(t *testing.T, top *topology, line string) {
	t.Helper()
	path := mpiProgram(t, line)
	env, argv := settings(line)
	argv[len(argv)-1] = path
	p := top.server.in(t)
	// Each process compares what comes, of one octet to four million.
	p.startEnv(append(env, append(ucxSees, "HOME="+workDir)...), argv...).succeed(2*time.Minute,
		"^hello from 0 of 2$", "^hello from 1 of 2$", "^all done$")
	proctest.Eventually(t, patience, "what the devices have sent is counted", func() bool {
		sent := 0.0
		for _, row := range p.stat() {
			n, _ := row["sends"].(float64)
			sent += n
		}
		return sent > 600
	})
}

// mpiRuns are both processes on one device.
func mpiRuns(lines []string) (runs []roceRun) {
	for _, line := range lines {
		runs = append(runs, roceRun{words: line, alone: true,
			do: func(t *testing.T, top *topology) { runMPI(t, top, line) }})
	}
	return runs
}

var (
	mpiLines     = []string{mpiOverFabric}
	roceMPILines = []string{mpiOverFabric, mpiOverDatagrams, mpiOverUCX, mpichOverUCX}
)

func TestMPI(t *testing.T) { runOn(t, onIWARP, iwarpTopologies[:1], mpiRuns(mpiLines)) }

func TestRoCEMPI(t *testing.T) { runRoCE(t, mpiRuns(roceMPILines)) }
