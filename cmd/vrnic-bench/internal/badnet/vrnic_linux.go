package badnet

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"sync/atomic"
	"time"
	"unsafe"

	"github.com/vrnic/vrnic/cmd/vrnic-bench/internal/proc"
	"github.com/vrnic/vrnic/internal/netlab"
	"github.com/vrnic/vrnic/netstack/port/impair"
	"github.com/vrnic/vrnic/rdma"
	"github.com/vrnic/vrnic/shm"
)

const (
	// daemonTAP is the daemon's TAP in each namespace.
	daemonTAP = "vtap0"
	writeSize = 1 << 20
	// depth is how many Writes are outstanding.
	depth = 16
	// attemptTime is how long one attempt to connect may take.
	attemptTime = 15 * time.Second
)

// A Vrnic is what runs two daemons.
type Vrnic struct {
	*site
	program, dir string
}

// NewVrnic makes what two daemons need; program is vrnic, self the command line that runs
// RunBridge.
func NewVrnic(program string, self []string) (v *Vrnic, err error) {
	v = &Vrnic{program: program}
	if v.site, err = newSite(self); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			v.Close()
			v = nil
		}
	}()
	if v.dir, err = os.MkdirTemp("", "vrnic-bench-"); err != nil {
		return v, err
	}
	v.closers = append(v.closers, func() { os.RemoveAll(v.dir) })
	for _, ns := range []*netlab.NS{v.a, v.b} {
		if err := ns.AddBridge(netlab.Bridge); err != nil {
			return v, err
		}
		if err := ns.SetMaster(bridgeTAP, netlab.Bridge); err != nil {
			return v, err
		}
	}
	return v, nil
}

// Measure measures a connection of two new daemons.
func (v *Vrnic) Measure(ctx context.Context, r Run, sctp bool) (g Goodput, err error) {
	defer func() {
		if err != nil {
			kind := "TCP"
			if sctp {
				kind = "SCTP"
			}
			err = fmt.Errorf("vrnic over %s, %v, seed %d: %w", kind, r.Cell, r.Seed, err)
		}
	}()
	var d daemons
	// The end of the daemons is on a good network.
	defer func() {
		err = errors.Join(err, v.begin(ctx, impair.Schedule{}))
		d.close()
	}()
	for i, ns := range []*netlab.NS{v.a, v.b} {
		if err := d.start(i, v, ns); err != nil {
			return g, err
		}
	}
	return v.measure(ctx, r, func(ctx context.Context) (flow, error) {
		ctx, cancel := context.WithTimeout(ctx, attemptTime)
		defer cancel()
		return d.connect(ctx, sctp)
	})
}

// daemons are the two, A's first.
type daemons struct {
	procs   [2]*proc.Process
	clients [2]*shm.Client
}

func (d *daemons) start(i int, v *Vrnic, ns *netlab.NS) (err error) {
	socket := filepath.Join(v.dir, fmt.Sprintf("%d.sock", i))
	d.procs[i], err = proc.Start("ready ", v.program, "up", "--socket", socket, "--device",
		"vrnic0,addr="+[...]netip.Prefix{prefixA, prefixB}[i].String(), "--port",
		"tap:"+daemonTAP+",netns="+ns.Path())
	if err != nil {
		return err
	}
	if err := errors.Join(ns.SetQueue(daemonTAP, bridgeTAPQueue), ns.SetMaster(daemonTAP,
		netlab.Bridge), ns.WaitRunning(daemonTAP, carrierTimeout)); err != nil {
		return err
	}
	d.clients[i], err = shm.Dial(socket)
	return err
}

func (d *daemons) close() {
	for _, c := range d.clients {
		if c != nil {
			c.Close()
		}
	}
	for _, p := range d.procs {
		if p != nil {
			p.Close()
		}
	}
}

// A vrnicFlow is a QP of each daemon: the sender writes one MiB after the other into the slots of
// the receiver. Each block of a MiB ends with the number of its Write, from 1 on, so that the
// receiver's memory tells what has come, be it a part of a Write only.
type vrnicFlow struct {
	daemons []int // processes
	devs    [2]rdma.Device
	from    []byte
	to      []byte
	stopped chan struct{} // the sender has
	failed  atomic.Pointer[error]
}

// blockSize is what has one number.
const blockSize = 1 << 10

// connect makes the QPs on devices of their own and begins to write.
func (d *daemons) connect(ctx context.Context, sctp bool) (flow, error) {
	f := &vrnicFlow{stopped: make(chan struct{}), daemons: []int{d.procs[0].PID(), d.procs[1].PID()}}
	started := false
	defer func() {
		if !started {
			close(f.stopped)
			f.close()
		}
	}()
	var qps [2]rdma.QP
	var mrs [2]rdma.MR
	var cq rdma.CQ
	for i, c := range d.clients {
		dev, err := c.Open("")
		if err != nil {
			return nil, err
		}
		f.devs[i] = dev
		pd, err := dev.AllocPD()
		if err != nil {
			return nil, err
		}
		buf, err := dev.AllocBuffer(depth * writeSize)
		if err != nil {
			return nil, err
		}
		if mrs[i], err = pd.RegisterMemory(buf.Bytes(), rdma.LocalWrite|rdma.RemoteWrite); err != nil {
			return nil, err
		}
		own, err := dev.CreateCQ(depth + 8)
		if err != nil {
			return nil, err
		}
		if qps[i], err = pd.CreateQP(rdma.QPConfig{SendCQ: own, RecvCQ: own, MaxSendWR: depth,
			MaxRecvWR: 1}); err != nil {
			return nil, err
		}
		if i == 0 {
			f.from, cq = buf.Bytes(), own
		} else {
			f.to = buf.Bytes()
		}
	}
	l, err := f.devs[1].Listen(netip.AddrPortFrom(prefixB.Addr(), 0), 1)
	if err != nil {
		return nil, err
	}
	defer l.Close()
	accepted := make(chan error, 1)
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	go func() {
		req, err := l.Next(ctx)
		if err == nil {
			hello := binary.BigEndian.AppendUint64(nil, mrs[1].Addr())
			hello = binary.BigEndian.AppendUint32(hello, mrs[1].RKey())
			_, err = req.Accept(ctx, qps[1], rdma.ConnParam{PrivateData: hello})
		}
		accepted <- err
	}()
	conn, err := f.devs[0].Connect(ctx, qps[0], l.Addr(), rdma.ConnParam{SCTP: sctp})
	if err != nil {
		cancel()
		return nil, errors.Join(err, <-accepted)
	}
	if err := <-accepted; err != nil {
		return nil, fmt.Errorf("accept: %w", err)
	}
	hello := conn.Param().PrivateData
	if len(hello) < 12 {
		return nil, fmt.Errorf("private data %x", hello)
	}
	started = true
	go func() {
		defer close(f.stopped)
		err := f.write(qps[0], cq, mrs[0], binary.BigEndian.Uint64(hello),
			binary.BigEndian.Uint32(hello[8:]))
		f.failed.Store(&err)
	}()
	return f, nil
}

// write keeps depth Writes outstanding until the device is closed.
func (f *vrnicFlow) write(qp rdma.QP, cq rdma.CQ, mr rdma.MR, there uint64, key uint32) error {
	var n uint64
	post := func(slot uint64) error {
		n++
		at := slot * writeSize
		mem := f.from[at : at+writeSize]
		for b := range slices.Chunk(mem, blockSize) {
			binary.NativeEndian.PutUint64(b[blockSize-8:], n)
		}
		return qp.PostSend(&rdma.SendWR{ID: slot, Op: rdma.OpWrite, Flags: rdma.Signaled,
			SGEs:       []rdma.SGE{{Addr: mr.Addr() + at, Length: writeSize, LKey: mr.LKey()}},
			RemoteAddr: there + at, RKey: key})
	}
	for slot := range uint64(depth) {
		if err := post(slot); err != nil {
			return err
		}
	}
	var wcs [depth]rdma.WC
	for {
		if err := cq.Arm(false); err != nil {
			return err
		}
		k, err := cq.Poll(wcs[:])
		if err != nil {
			return err
		}
		for _, wc := range wcs[:k] {
			if wc.Status != rdma.WCSuccess {
				return fmt.Errorf("a Write: %v", wc.Status)
			}
			if err := post(wc.ID); err != nil {
				return err
			}
		}
		if k == 0 {
			if err := cq.Wait(context.Background()); err != nil {
				return err
			}
		}
	}
}

// received looks which numbers the blocks have.
func (f *vrnicFlow) received() (uint64, error) {
	if err := f.failed.Load(); err != nil {
		return 0, *err
	}
	var blocks uint64
	for i := range uint64(depth * writeSize / blockSize) {
		last := (*uint64)(unsafe.Pointer(&f.to[(i+1)*blockSize-8]))
		if n := atomic.LoadUint64(last); n > 0 {
			blocks += (n-1)/depth + 1
		}
	}
	return blocks * blockSize, nil
}

func (f *vrnicFlow) pids() []int { return f.daemons }

func (f *vrnicFlow) close() {
	for _, dev := range f.devs {
		if dev != nil {
			dev.Close()
		}
	}
	<-f.stopped
}
