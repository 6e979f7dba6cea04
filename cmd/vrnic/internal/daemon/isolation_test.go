package daemon_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/vrnic/vrnic/cmd/vrnic/internal/daemon"
	"github.com/vrnic/vrnic/cmd/vrnic/internal/daemon/daemontest"
	"github.com/vrnic/vrnic/internal/needtest"
	"github.com/vrnic/vrnic/rdma"
	"github.com/vrnic/vrnic/shm"
	"github.com/vrnic/vrnic/shm/abi"
	"github.com/vrnic/vrnic/shm/osmem"
	"github.com/vrnic/vrnic/shm/rpc"
	"github.com/vrnic/vrnic/shm/server"
	"github.com/vrnic/vrnic/shm/shmtest"
)

// stable is a row without what changes by itself.
func stable(t *testing.T, row json.RawMessage) string {
	t.Helper()
	var m map[string]any
	if err := json.Unmarshal(row, &m); err != nil {
		t.Fatalf("row %s: %v", row, err)
	}
	for _, k := range []string{"seconds", "state", "wire"} {
		delete(m, k)
	}
	var b strings.Builder
	for _, k := range slices.Sorted(maps.Keys(m)) {
		switch k {
		case "session", "pid", "uid", "comm", "dev", "qpn", "mrn", "cqn", "id", "stag", "pdn",
			"local", "port":
			fmt.Fprintf(&b, "%s=%v ", k, m[k])
		}
	}
	return b.String()
}

// clientRow is a row of LIST client.
func clientRow(t *testing.T, row json.RawMessage) (c server.ClientRow) {
	t.Helper()
	if err := json.Unmarshal(row, &c); err != nil {
		t.Fatalf("row %s: %v", row, err)
	}
	return c
}

// A client's keys are of no use to another: not for its own work requests, and not through a
// connection that is not the owner's.
func TestKeysOfOthers(t *testing.T) {
	d := daemontest.Start(t)
	for _, path := range []struct{ name, peer string }{{"TCP", "vrnic1"}, {"loopback", "vrnic0"}} {
		victim := daemontest.NewEnd(t, daemontest.Open(t, d.Dial(), path.peer), 4096)
		victim.Fill(0, 4096, 77)
		// The attacker and its accomplice are connected; the victim's region is on the accomplice's
		// device, in another PD.
		pair := func(t *testing.T) (a, b *daemontest.End) {
			a = daemontest.NewEnd(t, daemontest.Open(t, d.Dial(), "vrnic0"), 4096)
			b = daemontest.NewEnd(t, daemontest.Open(t, d.Dial(), path.peer), 4096)
			daemontest.Connect(t, a, b, daemontest.Addr(t, b.Dev, false, 0))
			return a, b
		}
		t.Run(path.name+" local key", func(t *testing.T) {
			_, b := pair(t)
			b.Post(&rdma.SendWR{ID: 1, Op: rdma.OpSend, Flags: rdma.Signaled,
				SGEs: []rdma.SGE{{Addr: victim.MR.Addr(), Length: 64, LKey: victim.MR.LKey()}}})
			b.WantStatus("a Send from the victim's memory", 1, rdma.WCLocProt)
		})
		t.Run(path.name+" receive", func(t *testing.T) {
			a, b := pair(t)
			if err := b.QP.PostRecv(&rdma.RecvWR{ID: 1, SGEs: []rdma.SGE{{Addr: victim.MR.Addr(), Length: 64,
				LKey: victim.MR.LKey()}}}); err != nil {
				t.Fatal(err)
			}
			a.Send(2, 0, 64)
			b.WantStatus("a receive into the victim's memory", 1, rdma.WCLocProt)
		})
		t.Run(path.name+" Write", func(t *testing.T) {
			a, b := pair(t)
			a.Write(1, 0, 64, victim, 0)
			a.Send(2, 0, 1) // makes the Write's refusal known at the latest
			wantDone(t, b)
			wantDone(t, a)
			var term *rdma.TerminateError
			if err := a.Conn.Err(); !errors.As(err, &term) || term.Layer != 1 || term.Type != 1 {
				t.Errorf("the attacker's connection ended with %v, want a DDP tagged buffer error", err)
			}
		})
		t.Run(path.name+" Read", func(t *testing.T) {
			a, _ := pair(t)
			a.Read(1, 0, 64, victim, 0)
			a.WantStatus("a Read of the victim's memory", 1, rdma.WCRemAccess)
			for i, x := range a.Buf.Bytes()[:64] {
				if x != 0 {
					t.Fatalf("octet %d of the victim's memory came over", i)
				}
			}
		})
		victim.Check("the victim's memory", 0, 4096, 77)
	}
}

// callTime bounds what must come.
const callTime = time.Minute

// A raw client speaks the control protocol without the client library's checks.
type rawClient struct {
	t   *testing.T
	c   *net.UnixConn
	seq uint32
}

func newRawClient(t *testing.T, socket string) *rawClient {
	t.Helper()
	c, err := net.DialUnix("unixpacket", nil, &net.UnixAddr{Name: socket, Net: "unixpacket"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	r := &rawClient{t: t, c: c}
	hello := rpc.HelloRequest{Magic: abi.MagicHello, Major: abi.Major, Minor: abi.Minor}
	if errno := r.call(rpc.OpHello, &hello, &rpc.HelloReply{}); errno != 0 {
		t.Fatalf("HELLO: %v", errno)
	}
	return r
}

// call makes a request and returns the errno of its reply; descriptors are closed.
func (r *rawClient) call(op rpc.Op, req, rep rpc.Message) syscall.Errno {
	r.t.Helper()
	r.seq++
	if _, err := r.c.Write(rpc.AppendMessage(nil, rpc.Header{Op: op, Seq: r.seq}, req)); err != nil {
		r.t.Fatalf("%v: %v", op, err)
	}
	b, oob := make([]byte, rpc.MaxMessage), make([]byte, 64)
	n, oobn, _, _, err := r.c.ReadMsgUnix(b, oob)
	if err != nil || n == 0 {
		r.t.Fatalf("%v: no reply: %v", op, errors.Join(err, io.EOF))
	}
	if msgs, err := syscall.ParseSocketControlMessage(oob[:oobn]); err == nil {
		for i := range msgs {
			fds, _ := syscall.ParseUnixRights(&msgs[i])
			for _, fd := range fds {
				syscall.Close(fd)
			}
		}
	}
	h, body, err := rpc.ParseMessage(b[:n])
	if err != nil {
		r.t.Fatalf("%v: %v", op, err)
	}
	if h.Status == 0 {
		if err := rpc.Decode(body, rep); err != nil {
			r.t.Fatalf("%v: %v", op, err)
		}
	}
	return syscall.Errno(-h.Status)
}

// Every handle that another client has is unknown to this one.
func TestHandlesOfOthers(t *testing.T) {
	d := daemontest.Start(t)
	victim, _ := listed(t, d.Dial())
	if _, err := victim.Dev.Listen(daemontest.Addr(t, victim.Dev, false, 0), 0); err != nil {
		t.Fatal(err)
	}
	r := newRawClient(t, d.Socket())
	// The attacker's own context, so that it fails for the handles only.
	var ctx rpc.CtxOpenReply
	var pd rpc.AllocPDReply
	var cq rpc.CreateCQReply
	if errno := r.call(rpc.OpCtxOpen, &rpc.CtxOpenRequest{}, &ctx); errno != 0 {
		t.Fatal(errno)
	}
	if errno := r.call(rpc.OpAllocPD, &rpc.AllocPDRequest{Ctx: ctx.Ctx}, &pd); errno != 0 {
		t.Fatal(errno)
	}
	if errno := r.call(rpc.OpCreateCQ, &rpc.CreateCQRequest{Ctx: ctx.Ctx, CQE: 16}, &cq); errno != 0 {
		t.Fatal(errno)
	}
	for h := range uint32(8) {
		for _, op := range []rpc.Op{
			rpc.OpDelMem, rpc.OpDeregMR, rpc.OpDestroyQP, rpc.OpQueryQP, rpc.OpDestroyChan,
			rpc.OpCMDestroyID, rpc.OpCMDestroyChan, rpc.OpCMDisconnect, rpc.OpCMQuery, rpc.OpCMGetEvent,
			rpc.OpDeallocMW, rpc.OpQuerySRQ, rpc.OpDestroySRQ,
		} {
			if errno := r.call(op, &rpc.HandleRequest{Handle: h}, &rpc.CMEvent{}); errno != syscall.ENOENT {
				t.Errorf("%v of handle %d: %v, want %v", op, h, errno, syscall.ENOENT)
			}
		}
		for what, errno := range map[string]syscall.Errno{
			"MODIFY_QP": r.call(rpc.OpModifyQP, &rpc.ModifyQPRequest{
				QP: h, Mask: rpc.ModifyQPState, State: abi.StateErr}, &rpc.Empty{}),
			"REG_MR of a mem": r.call(rpc.OpRegMR, &rpc.RegMRRequest{PD: pd.PD,
				Mode: rpc.ModeShared, Mem: h, Length: 64, Access: 1}, &rpc.RegMRReply{}),
			"REREG_MR": r.call(rpc.OpReregMR, &rpc.ReregMRRequest{
				MR: h, Flags: rpc.ReregAccess}, &rpc.RegMRReply{}),
			"MODIFY_SRQ": r.call(rpc.OpModifySRQ, &rpc.ModifySRQRequest{SRQ: h},
				&rpc.Empty{}),
			"CM_MIGRATE": r.call(rpc.OpCMMigrate, &rpc.CMMigrateRequest{ID: h, Chan: h},
				&rpc.CMMigrateReply{}),
			"CM_INIT_QP_ATTR": r.call(rpc.OpCMInitQPAttr, &rpc.CMInitQPAttrRequest{ID: h, State: 1},
				&rpc.CMInitQPAttrReply{}),
			"CM_BIND": r.call(rpc.OpCMBind, &rpc.CMBindRequest{
				ID: h, Addr: rpc.MakeSockAddr(daemontest.Addr(t, victim.Dev, false, 0))}, &rpc.Empty{}),
			"CM_CREATE_ID on a channel": r.call(rpc.OpCMCreateID, &rpc.CMCreateIDRequest{
				Chan: h, PS: rpc.PSTCP, Type: 2}, &rpc.CMCreateIDReply{}),
		} {
			if errno != syscall.ENOENT {
				t.Errorf("%s of handle %d: %v, want %v", what, h, errno, syscall.ENOENT)
			}
		}
		if h != pd.PD {
			for what, errno := range map[string]syscall.Errno{
				"ALLOC_MW": r.call(rpc.OpAllocMW, &rpc.AllocMWRequest{PD: h, Type: 1}, &rpc.AllocMWReply{}),
				"ALLOC_MR": r.call(rpc.OpAllocMR, &rpc.AllocMRRequest{PD: h, MaxLen: 1}, &rpc.RegMRReply{}),
				"CREATE_SRQ": r.call(rpc.OpCreateSRQ, &rpc.CreateSRQRequest{PD: h, MaxWR: 1},
					&rpc.CreateSRQReply{}),
			} {
				if errno != syscall.ENOENT {
					t.Errorf("%s in PD %d: %v, want %v", what, h, errno, syscall.ENOENT)
				}
			}
			if errno := r.call(rpc.OpDeallocPD, &rpc.HandleRequest{Handle: h}, &rpc.Empty{}); errno !=
				syscall.ENOENT {
				t.Errorf("DEALLOC_PD of handle %d: %v", h, errno)
			}
		}
	}
	// A QP of somebody else is not found by its number either.
	var ch rpc.CMCreateChanReply
	var id rpc.CMCreateIDReply
	if errno := r.call(rpc.OpCMCreateChan, &rpc.Empty{}, &ch); errno != 0 {
		t.Fatal(errno)
	}
	if errno := r.call(rpc.OpCMCreateID, &rpc.CMCreateIDRequest{Chan: ch.Chan, PS: rpc.PSTCP, Type: 2},
		&id); errno != 0 {
		t.Fatal(errno)
	}
	connect := rpc.CMConnectRequest{ID: id.ID, PD: pd.PD, Param: rpc.ConnParam{QPN: victim.QP.Num()}}
	for _, op := range []rpc.Op{rpc.OpCMConnect, rpc.OpCMAccept} {
		if errno := r.call(op, &connect, &rpc.Empty{}); errno != syscall.ENOENT {
			t.Errorf("%v with the victim's QP: %v, want %v", op, errno, syscall.ENOENT)
		}
	}
	if s := victim.QP.State(); s != rdma.QPIdle {
		t.Errorf("the victim's QP is in state %v", s)
	}
}

// TestHelperLister prints what a user sees.
func TestHelperLister(t *testing.T) {
	args := daemontest.Child(t)
	c := daemontest.Dial(t, args[0])
	listed(t, c)
	for _, kind := range []string{"client", "qp", "pd", "mr", "mw", "cq", "srq", "port", "daemon",
		"peer"} {
		rows, err := c.List(kind)
		if err != nil {
			t.Fatal(err)
		}
		daemontest.Tell(kind, len(rows))
	}
	rows, err := c.Stat()
	if err != nil {
		t.Fatal(err)
	}
	qps, srqs := 0, 0
	for _, row := range rows {
		if strings.Contains(string(row), `"qpn"`) {
			qps++
		}
		if strings.Contains(string(row), `"srqn"`) {
			srqs++
		}
	}
	daemontest.Tell("stat", qps)
	daemontest.Tell("srqs", srqs)
}

// listed makes a QP with an SRQ, and with the region that it comes with a window: two rows of kind
// mr.
func listed(t *testing.T, c *shm.Client) (e *daemontest.End, srq rdma.SRQ) {
	t.Helper()
	e = daemontest.NewEnd(t, daemontest.Open(t, c, "vrnic0"), 4096,
		func(e *daemontest.End, cfg *rdma.QPConfig) {
			var err error
			if srq, err = e.PD.CreateSRQ(rdma.SRQConfig{MaxWR: 4}); err != nil {
				t.Fatal(err)
			}
			cfg.SRQ = srq
		})
	if _, err := e.PD.AllocMW(rdma.MWType2); err != nil {
		t.Fatal(err)
	}
	return e, srq
}

// SRQs and windows are in the rows of the QPs and regions that they belong to, and SRQs have
// counters.
func TestListShared(t *testing.T) {
	d := daemontest.Start(t)
	c := d.Dial()
	e, srq := listed(t, c)
	x := daemontest.NewEnd(t, daemontest.Open(t, d.Dial(), "vrnic1"), 4096)
	daemontest.Connect(t, x, e, daemontest.Addr(t, e.Dev, false, 0))
	mr, err := e.PD.RegisterMemory(e.Buf.Bytes(), rdma.LocalWrite|rdma.MWBind)
	if err != nil {
		t.Fatal(err)
	}
	mw, err := e.PD.AllocMW(rdma.MWType2)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := e.PD.AllocMR(100); err != nil {
		t.Fatal(err)
	}
	e.Post(&rdma.SendWR{ID: 1, Op: rdma.OpBindMW, Flags: rdma.Signaled, RKey: rdma.NextKey(mw.RKey()),
		RemoteAddr: 0x77,
		Range: rdma.MemRange{Addr: mr.Addr() + 8, Length: 16, LKey: mr.LKey(),
			Access: rdma.RemoteRead}})
	e.WantOK("bind", 1, rdma.WCBindMW)
	if err := srq.PostRecv(&rdma.RecvWR{ID: 2, SGEs: []rdma.SGE{e.SGE(0, 10)}}); err != nil {
		t.Fatal(err)
	}
	x.Send(3, 0, 10)
	e.WantOK("a receive of the SRQ", 2, rdma.WCRecv)

	find := func(rows []json.RawMessage, err error, parts ...string) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		for _, row := range rows {
			has := true
			for _, p := range parts {
				has = has && strings.Contains(string(row), p)
			}
			if has {
				return
			}
		}
		t.Errorf("no row with %q among\n%s", parts, rows)
	}
	qpn := fmt.Sprintf(`"qpn":%d,`, e.QP.Num())
	rows, err := c.List("qp")
	find(rows, err, qpn, `"srqn":1,`)
	find(rows, err, fmt.Sprintf(`"qpn":%d,`, x.QP.Num()), `"srqn":null,`)
	rows, err = c.List("mr")
	find(rows, err, `"kind":"window"`, `"type":2,"mrn":null,"iova":null`)
	find(rows, err, `"kind":"window"`, `"type":2,`, `"iova":"0x77","length":16,"access":"--r--",`+
		strings.TrimSuffix(qpn, ","))
	find(rows, err, `"kind":"region"`, `"mode":"shared","valid":true,"users":1,`)
	find(rows, err, `"kind":"fast"`, `"length":100,`, `"valid":false,`)
	rows, err = c.List("mw")
	find(rows, err, `"kind":"window"`, `"type":2,"mrn":null,"iova":null`)
	if len(rows) != 2 {
		t.Errorf("%d rows of windows, want 2: %s", len(rows), rows)
	}
	rows, err = c.List("pd")
	find(rows, err, `"dev":"vrnic0"`, `"mrs":2,"mws":3,"qps":1,"srqs":1,"ahs":0,`)
	find(rows, err, `"dev":"vrnic1"`, `"mrs":1,"mws":0,"qps":1,"srqs":0,"ahs":0,`)
	rows, err = c.List("srq")
	find(rows, err, `"dev":"vrnic0","srqn":1,`, `"rq_size":4,"posted":0,"limit":0,"qps":1,`)
	rows, err = c.List("peer")
	find(rows, err, `"dev":"vrnic0","peer":"10.`, `"half_open":0,"pending":0,"connections":1,`)
	rows, err = c.List("dev")
	find(rows, err, `"mws":2,`, `"srqs":1,`)
	rows, err = c.List("client")
	find(rows, err, `"srq":1,"mw":2,`)
	rows, err = c.Stat()
	find(rows, err, `"kind":"srq"`, `"qps":1,"posted":0,"taken":1,`)
	find(rows, err, `"kind":"qp"`, qpn, `"srq_taken":1,`)
}

// Root and the daemon's own user see everything, others what is theirs.
func TestListVisibility(t *testing.T) {
	d := daemontest.Start(t, func(c *daemon.Config) { c.SocketMode = 0o666 })
	listed(t, d.Dial())
	wants := func(c *daemontest.ChildProcess, n int) {
		t.Helper()
		for _, kind := range []string{"client", "qp", "pd", "mr", "mw", "cq", "srq", "port", "daemon",
			"peer", "stat", "srqs"} {
			want := n
			switch kind {
			case "peer": // there are none
				want = 0
			case "mr":
				want = 2 * n
			case "port": // one of each device
				want = 2 * (n - 1)
			case "daemon":
				want = n - 1 // only for who could end it, too
			}
			if got := c.Want(kind); got != fmt.Sprint(want) {
				t.Errorf("sees %s of kind %s, want %d", got, kind, want)
			}
		}
		if err := c.Wait(); err != nil {
			t.Error(err)
		}
	}
	wants(daemontest.StartChild(t, "TestHelperLister", d.Socket()), 2)

	needtest.Root(t) // to become another user
	// The test binary and the socket are in directories that only their owner enters.
	if err := os.Chmod(filepath.Dir(d.Socket()), 0o755); err != nil {
		t.Fatal(err)
	}
	wants(startNobody(t, "TestHelperLister", d.Socket()), 1)
}

// What the daemon has allocated is counted to the object.
func TestListDaemon(t *testing.T) {
	c := daemontest.Start(t).Dial()
	look := func() (row daemon.DaemonRow) {
		t.Helper()
		rows, err := c.List("daemon")
		if err != nil || len(rows) != 1 {
			t.Fatalf("%s, %v", rows, err)
		}
		if err := json.Unmarshal(rows[0], &row); err != nil {
			t.Fatal(err)
		}
		return row
	}
	before := look() // of this process, where the daemon is
	const many = 100
	kept := make([]*[64]byte, many)
	for i := range kept {
		kept[i] = new([64]byte)
	}
	after := look()
	if after.PID != os.Getpid() || after.Allocs < before.Allocs+many || after.Goroutines == 0 ||
		after.Heap == 0 || after.Collections < before.Collections {
		t.Errorf("%+v, then %+v", before, after)
	}
	runtime.KeepAlive(kept)
}

// startNobody runs a helper test as another user. Root calls it.
func startNobody(t *testing.T, helper string, args ...string) *daemontest.ChildProcess {
	t.Helper()
	binary, err := os.ReadFile("/proc/self/exe")
	if err != nil {
		t.Fatal(err)
	}
	dir, err := os.MkdirTemp("", "vrnic")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	copied := filepath.Join(dir, "test")
	if err := errors.Join(os.Chmod(dir, 0o755), os.WriteFile(copied, binary, 0o755)); err != nil {
		t.Fatal(err)
	}
	nobody := &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
	return daemontest.StartChildAs(t, copied, nobody, helper, args...)
}

// A limit is an error that says so, for the client that is over it only.
func TestLimits(t *testing.T) {
	d := daemontest.Start(t, func(c *daemon.Config) {
		c.Limits = server.DefaultLimits()
		for _, s := range []string{"pds=2", "mrs=2", "cqs=2", "qps=2", "depth=64", "cq-depth=128",
			"mem-bytes=8192", "cm-ids=2", "srqs=2", "mws=2", "sessions-per-uid=2"} {
			if err := c.Limits.Set(s); err != nil {
				t.Fatal(err)
			}
		}
	})
	dev := daemontest.Open(t, d.Dial(), "vrnic0")
	pd, err := dev.AllocPD()
	if err != nil {
		t.Fatal(err)
	}
	cq, err := dev.CreateCQ(64)
	if err != nil {
		t.Fatal(err)
	}
	buf, err := dev.AllocBuffer(8192)
	if err != nil {
		t.Fatal(err)
	}
	for what, make := range map[string]func() error{
		"PD": func() error { _, err := dev.AllocPD(); return err },
		"MR": func() error { _, err := pd.RegisterMemory(buf.Bytes(), 0); return err },
		"CQ": func() error { _, err := dev.CreateCQ(1); return err },
		"QP": func() error {
			_, err := pd.CreateQP(rdma.QPConfig{SendCQ: cq, RecvCQ: cq})
			return err
		},
		"SRQ":    func() error { _, err := pd.CreateSRQ(rdma.SRQConfig{}); return err },
		"window": func() error { _, err := pd.AllocMW(rdma.MWType1); return err },
		"buffer": func() error { _, err := dev.AllocBuffer(4096); return err },
		"listener": func() error {
			_, err := dev.Listen(daemontest.Addr(t, dev, false, 0), 0)
			return err
		},
	} {
		var err error
		n := 0
		for ; err == nil && n < 4; n++ {
			err = make()
		}
		if !errors.Is(err, rdma.ErrLimit) || !strings.Contains(err.Error(), "limit") {
			t.Errorf("%s number %d: %v, want one that is and says limit", what, n, err)
		}
	}
	if _, err := dev.CreateCQ(129); err == nil || errors.Is(err, rdma.ErrLimit) {
		t.Errorf("a CQ deeper than the limit: %v, want an invalid argument", err)
	}
	if a := dev.Attr(); a.MaxQP != 2 || a.MaxDepth != 64 || a.MaxCQ != 2 || a.MaxPD != 2 ||
		a.MaxMR != 2 || a.MaxSRQ != 2 || a.MaxMW != 2 || a.MaxSRQWR != 64 {
		t.Errorf("the attributes do not show the limits: %+v", a)
	}
	other := daemontest.Open(t, d.Dial(), "vrnic0") // has all of its own
	if _, err := other.AllocPD(); err != nil {
		t.Errorf("another client: %v", err)
	}
	look := d.Dial() // of the daemon's own user: it may look, and no more
	if _, err := look.List("user"); err != nil {
		t.Errorf("a third session of a user with two cannot look: %v", err)
	}
	if _, err := look.Open("vrnic0"); !errors.Is(err, rdma.ErrLimit) ||
		!strings.Contains(err.Error(), "--limit sessions-per-uid=N") {
		t.Errorf("a third session of a user with two opens a device: %v", err)
	}
}

// What the daemon takes for itself when a client makes queue pairs is counted, and a client can
// have no more of it than the limit.
func TestQPMemory(t *testing.T) {
	const room = 200 << 20
	d := daemontest.Start(t, func(c *daemon.Config) {
		c.Limits = server.DefaultLimits()
		c.Limits.QueueBytes = room
	})
	heap := func() int64 {
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return int64(m.HeapAlloc)
	}
	counted := func() int64 {
		for _, p := range d.Metrics().Pools {
			if p.Limit == "queue-bytes" {
				return p.Used
			}
		}
		t.Fatal("nothing is counted")
		return 0
	}
	r := shmtest.NewRaw(t, d.Socket()).Hello()
	ctx := r.Ctx(0)
	pd, cq := r.PD(ctx), r.CQ(ctx, 8, 0)
	for _, caps := range []rpc.QPCaps{
		{MaxSendWR: 1024, MaxSendSGE: 1, MaxRecvWR: 32768},
		{MaxSendWR: 32768, MaxSendSGE: 1},
		{MaxSendWR: 32768, MaxSendSGE: 32, MaxInline: 1024, TxSlab: 1 << 20},
	} {
		var qps []uint32
		made := func() error {
			var rep rpc.CreateQPReply
			fds, err := r.Call(rpc.OpCreateQP, &rpc.CreateQPRequest{PD: pd, SendCQ: cq.Handle,
				RecvCQ: cq.Handle, Caps: caps}, &rep)
			osmem.CloseFDs(fds)
			if err == nil {
				qps = append(qps, rep.QP)
			}
			return err
		}
		before := heap()
		for range 2 {
			if err := made(); err != nil {
				t.Fatal(err)
			}
		}
		// What else the process does meanwhile takes some.
		const more = 256 << 10
		if took, n := heap()-before, counted(); took > n+more || n > took+took/4+more {
			t.Errorf("%+v: two take %d octets, counted as %d", caps, took, n)
		}
		for err := error(nil); caps.MaxSendWR == 32768 && err == nil; {
			if err = made(); err != nil && !errors.Is(err, syscall.ENOMEM) {
				t.Error(err)
			}
		}
		if n := counted(); n > room {
			t.Errorf("%+v: %d take %d octets of %d", caps, len(qps), n, room)
		}
		for _, q := range qps {
			r.Must(rpc.OpDestroyQP, &rpc.HandleRequest{Handle: q}, nil)
		}
		if n := counted(); n != 0 {
			t.Errorf("%+v: %d octets are counted when all are gone", caps, n)
		}
	}
}
