package daemon_test

import (
	"errors"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/vrnic/vrnic/cmd/vrnic/internal/daemon/daemontest"
	"github.com/vrnic/vrnic/rdma"
	"github.com/vrnic/vrnic/shm/abi"
	"github.com/vrnic/vrnic/shm/rpc"
	"github.com/vrnic/vrnic/shm/shmtest"
)

// Memory that is registered and not there: the peer's Write and Read are refused with a Terminate,
// a receive there fails, and only that connection ends.
func TestOwnMemoryHoles(t *testing.T) {
	d := daemontest.Start(t)
	ownMemoryHoles(t, d)
}

func ownMemoryHoles(t *testing.T, d *daemontest.Daemon) {
	const size = 64 << 10
	for _, device := range []string{"vrnic0", "vrnic1"} {
		for _, op := range []rdma.Opcode{rdma.OpWrite, rdma.OpRead, rdma.OpSend} {
			b := daemontest.NewEnd(t, daemontest.Open(t, d.Dial(), device), size)
			a := newRawEnd(t, d, 4096)
			// Behind the end of its file a mapping has no pages.
			there, err := unix.Mmap(a.Memfd(size/2, 0), 0, size, unix.PROT_READ|unix.PROT_WRITE,
				unix.MAP_SHARED)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { unix.Munmap(there) })
			mr := a.RegMR(a.pd, there, hungIOVA, uint32(rdma.LocalWrite|rdma.RemoteWrite|rdma.RemoteRead))
			addr, accepted := accept(t, b)
			a.connect(addr)
			accepted()
			if op == rdma.OpSend {
				w := &abi.RecvWQE{WRID: 1, Cookie: 1, NumSGE: 1}
				w.SGE[0] = abi.SGE{Addr: hungIOVA, Length: size, LKey: mr.LKey}
				a.qp.PostRecv(w)
			}
			b.Post(&rdma.SendWR{ID: 1, Op: op, Flags: rdma.Signaled, SGEs: []rdma.SGE{b.SGE(0, size)},
				RemoteAddr: hungIOVA, RKey: mr.RKey})
			if op == rdma.OpRead {
				b.WantStatus("a Read of what is not there", 1, rdma.WCRemAccess)
			}
			if op == rdma.OpSend {
				if c := a.Next(a.cq); c.Status != uint32(rdma.WCLocProt) {
					t.Errorf("%v on %s: completion %+v", op, device, c)
				}
			}
			wantDone(t, b)
			var term *rdma.TerminateError
			if err := b.Conn.Err(); !errors.As(err, &term) || !term.Remote {
				t.Errorf("%v on %s: the connection ended with %v, want a Terminate of the peer's", op,
					device, err)
			}
			if _, err := a.Call(rpc.OpQueryQP, &rpc.HandleRequest{Handle: a.qp.QPN},
				&rpc.QueryQPReply{}); errors.Is(err, shmtest.ErrHungUp) {
				t.Errorf("%v on %s: the session has ended", op, device)
			}
		}
	}
}
