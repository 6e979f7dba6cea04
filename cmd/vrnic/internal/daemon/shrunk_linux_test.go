package daemon_test

import (
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/vrnic/vrnic/cmd/vrnic/internal/daemon/daemontest"
	"github.com/vrnic/vrnic/rdma"
	"github.com/vrnic/vrnic/shm/abi"
	"github.com/vrnic/vrnic/shm/rpc"
)

// shrunk is a mapping of a file, or of a memfd without seals, and what cuts it to its first page.
// To touch it behind that is SIGBUS.
func shrunk(t *testing.T, plain bool, size int) (b []byte, cut func()) {
	t.Helper()
	open := func() (int, error) { return unix.MemfdCreate("shrunk", unix.MFD_CLOEXEC) }
	if plain {
		open = func() (int, error) {
			return unix.Open(filepath.Join(t.TempDir(), "f"), unix.O_RDWR|unix.O_CREAT|unix.O_CLOEXEC, 0o600)
		}
	}
	fd, err := open()
	if err != nil {
		t.Fatal(err)
	}
	f := os.NewFile(uintptr(fd), "shrunk")
	t.Cleanup(func() { f.Close() })
	if err := f.Truncate(int64(size)); err != nil {
		t.Fatal(err)
	}
	b, err = unix.Mmap(fd, 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Munmap(b) })
	return b, func() {
		if err := f.Truncate(4096); err != nil {
			t.Fatal(err)
		}
	}
}

// A client registers a mapping of a file that is cut afterwards, as a program does that truncates
// what it has mapped. Each way into what is gone is an error of that request, within a device and
// over TCP; the daemon does not get the SIGBUS, the client keeps its session, and its next QP
// works.
func TestMemoryShrinks(t *testing.T) {
	const size, off, n = 64 << 10, 8192, 3000
	const long = size - off // in one copy by the number of the process
	own := func(op uint8) func(*rawEnd, *daemontest.End, rpc.RegMRReply, int) {
		return func(e *rawEnd, p *daemontest.End, mr rpc.RegMRReply, n int) {
			if op == 2 { // IBV_WR_SEND
				p.Recv(1, 0, size)
			}
			e.qp.PostSend(func(w *abi.SendWQE) {
				w.Op, w.Flags, w.NumSGE = op, abi.SQSignaled, 1
				w.SGE[0] = abi.SGE{Addr: hungIOVA + off, Length: uint32(n), LKey: mr.LKey}
				w.RemoteAddr, w.RKey = p.MR.Addr(), p.MR.RKey()
			})
		}
	}
	peer := func(op rdma.Opcode) func(*rawEnd, *daemontest.End, rpc.RegMRReply, int) {
		return func(e *rawEnd, p *daemontest.End, mr rpc.RegMRReply, n int) {
			if op == rdma.OpSend {
				w := abi.RecvWQE{NumSGE: 1}
				w.SGE[0] = abi.SGE{Addr: hungIOVA + off, Length: uint32(n), LKey: mr.LKey}
				e.qp.PostRecv(&w)
			}
			p.Post(&rdma.SendWR{ID: 1, Op: op, Flags: rdma.Signaled, SGEs: []rdma.SGE{p.SGE(0, n)},
				RemoteAddr: hungIOVA + off, RKey: mr.RKey})
		}
	}
	rows := []struct {
		name string
		do   func(e *rawEnd, p *daemontest.End, mr rpc.RegMRReply, n int)
		// of the client's request, and of its peer's; 0: there is none, or any will do
		mine, peers rdma.WCStatus
	}{
		{"a Send from it", own(2), rdma.WCLocProt, 0},
		{"a Write from it", own(0), rdma.WCLocProt, 0},
		{"a Read into it", own(4), rdma.WCLocProt, 0},
		{"a Send into it", peer(rdma.OpSend), rdma.WCLocProt, 0},
		{"a Write into it", peer(rdma.OpWrite), 0, 0},
		{"a Read from it", peer(rdma.OpRead), 0, rdma.WCRemAccess},
	}
	for _, plain := range []bool{false, true} {
		d := daemontest.Start(t)
		kind := map[bool]string{false: "memfd", true: "file"}[plain]
		for _, device := range []string{"vrnic0", "vrnic1"} {
			e := newRawParts(t, d, size)
			for _, tt := range rows {
				for _, n := range []int{n, long} {
					b, cut := shrunk(t, plain, size)
					mr := e.RegMR(e.pd, b, hungIOVA,
						uint32(rdma.LocalWrite|rdma.RemoteWrite|rdma.RemoteRead))
					p := daemontest.NewEnd(t, daemontest.Open(t, d.Dial(), device), size)
					e.qp = e.QP(e.pd, e.cq, e.cq, rpc.QPCaps{MaxSendWR: 4, MaxRecvWR: 4})
					addr, accepted := accept(t, p)
					e.connect(addr)
					accepted()
					cut()
					tt.do(e, p, mr, n)
					if tt.mine != 0 {
						if c := e.Next(e.cq); c.Status != uint32(tt.mine) {
							t.Errorf("%s, %s, %s of %d octets: completion %+v, want status %d", kind, device,
								tt.name, n, c, tt.mine)
						}
					}
					if tt.peers != 0 {
						if c := p.WC("the peer"); c.Status != tt.peers {
							t.Errorf("%s, %s, %s of %d octets: the peer: completion %+v, want %v", kind, device,
								tt.name, n, c, tt.peers)
						}
					}
					wantDone(t, p)
					e.Must(rpc.OpDestroyQP, &rpc.HandleRequest{Handle: e.qp.CreateQPReply.QP}, nil)
					e.Must(rpc.OpDeregMR, &rpc.HandleRequest{Handle: mr.MR}, nil)
				}
			}
		}
	}
}
