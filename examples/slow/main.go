// Slow shows what a receiver does that is slow: it posts a receive for each message, and sleeps
// before each.
//
//	slow [-device NAME] [-pause TIME] receive ADDR:PORT
//	slow [-device NAME] [-roi] send ADDR:PORT COUNT
//
// Try it beside a daemon with two devices, with -roi and without:
//
//	slow -device vrnic0 -pause 6s receive 10.77.0.2:7000 &
//	slow -device vrnic1 -roi send 10.77.0.2:7000 3
//
// iWARP waits 5 s for a receive and ends the connection then; with -roi each Send waits at the
// sender until there is one.
package main

import (
	"context"
	"flag"
	"fmt"
	"io"
	"log"
	"net/netip"
	"os"
	"os/signal"
	"slices"
	"strconv"
	"syscall"
	"time"

	"github.com/vrnic/vrnic/rdma"
	"github.com/vrnic/vrnic/shm"
)

const usage = `usage: slow [-device NAME] [-pause TIME] receive ADDR:PORT
       slow [-device NAME] [-roi] send ADDR:PORT COUNT
`

func main() {
	log.SetFlags(0)
	log.SetPrefix("slow: ")
	device := flag.String("device", "", "the `name` of a device; without it the daemon's first")
	pause := flag.Duration("pause", 6*time.Second, "`time` from one receive to the next")
	roi := flag.Bool("roi", false, "speak draft-bailey-roi-rdma-00 in place of iWARP")
	flag.Usage = func() {
		fmt.Fprint(flag.CommandLine.Output(), usage)
		flag.PrintDefaults()
	}
	flag.Parse()
	args := flag.Args()
	count := 0
	var err error
	if len(args) == 3 && args[0] == "send" {
		count, err = strconv.Atoi(args[2])
	} else if len(args) != 2 || args[0] != "receive" {
		flag.Usage()
		os.Exit(2)
	}
	addr, addrErr := netip.ParseAddrPort(args[1])
	if err != nil || addrErr != nil || count < 0 {
		flag.Usage()
		os.Exit(2)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	client, err := shm.Dial("") // the socket of $VRNIC_SOCKET, or the usual one
	if err != nil {
		log.Fatal(err)
	}
	defer client.Close()
	dev, err := client.Open(*device)
	switch {
	case err != nil:
	case args[0] == "receive":
		err = receive(ctx, dev, addr, *pause)
	default:
		param := rdma.ConnParam{}
		if *roi {
			param.Protocol = rdma.ROI
		}
		err = send(ctx, dev, addr, count, param)
	}
	if err != nil && ctx.Err() == nil { // an interrupt is no failure
		log.Fatal(err)
	}
}

// messageLen is how many octets a message has.
const messageLen = 64

// An end is a QP with a completion queue and memory for one message.
type end struct {
	qp   rdma.QP
	cq   rdma.CQ
	mr   rdma.MR
	made []io.Closer // all that there is, what is used before its user
}

func newEnd(dev rdma.Device) (e *end, err error) {
	e = &end{}
	defer func() {
		if err != nil {
			e.close()
		}
	}()
	buf, err := dev.AllocBuffer(messageLen)
	if err != nil {
		return nil, err
	}
	e.made = append(e.made, buf)
	pd, err := dev.AllocPD()
	if err != nil {
		return nil, err
	}
	e.made = append(e.made, pd)
	if e.mr, err = pd.RegisterMemory(buf.Bytes(), rdma.LocalWrite); err != nil {
		return nil, err
	}
	e.made = append(e.made, e.mr)
	if e.cq, err = dev.CreateCQ(16); err != nil {
		return nil, err
	}
	e.made = append(e.made, e.cq)
	e.qp, err = pd.CreateQP(rdma.QPConfig{SendCQ: e.cq, RecvCQ: e.cq, MaxSendWR: 4, MaxRecvWR: 4,
		MaxSendSGE: 1, MaxRecvSGE: 1, SignalAll: true})
	if err != nil {
		return nil, err
	}
	e.made = append(e.made, e.qp)
	return e, nil
}

func (e *end) close() {
	for _, c := range slices.Backward(e.made) {
		_ = c.Close()
	}
}

func (e *end) sge() []rdma.SGE {
	return []rdma.SGE{{Addr: e.mr.Addr(), Length: messageLen, LKey: e.mr.LKey()}}
}

// next waits for a completion; an error is that of the request, or the end of the connection.
func (e *end) next(ctx context.Context) error {
	var wc [1]rdma.WC
	for {
		for _, arm := range []bool{true, false} {
			if n, err := e.cq.Poll(wc[:]); n > 0 || err != nil {
				if err == nil && wc[0].Status != rdma.WCSuccess {
					err = fmt.Errorf("completed with: %v", wc[0].Status)
				}
				return err
			}
			// Only what comes after Arm raises an event: look once more before
			// sleeping.
			if arm {
				if err := e.cq.Arm(false); err != nil {
					return err
				}
			}
		}
		if err := e.cq.Wait(ctx); err != nil {
			return err
		}
	}
}

// ended waits for the end of a connection and says how it was; an interrupt does not wait.
func ended(ctx context.Context, conn rdma.Conn) error {
	select {
	case <-conn.Done():
		return conn.Err()
	case <-ctx.Done():
		return ctx.Err()
	}
}

// receive serves one sender after the other.
func receive(ctx context.Context, dev rdma.Device, addr netip.AddrPort, pause time.Duration) error {
	listener, err := dev.Listen(addr, 0)
	if err != nil {
		return err
	}
	defer listener.Close()
	fmt.Printf("listening on %v\n", listener.Addr())
	for {
		req, err := listener.Next(ctx)
		if err != nil {
			return err
		}
		e, err := newEnd(dev)
		if err != nil {
			return err
		}
		asked := req.Param() // the sender chooses the protocol
		conn, err := req.Accept(ctx, e.qp, rdma.ConnParam{Protocol: asked.Protocol, ROI: asked.ROI})
		if err == nil {
			err = take(ctx, e, conn, pause, func(n int) {
				fmt.Printf("%v: message %d\n", asked.Protocol, n)
			})
		}
		if err == nil {
			fmt.Printf("%v: the sender has closed\n", asked.Protocol)
		} else {
			fmt.Printf("%v: %v\n", asked.Protocol, err)
		}
		e.close()
	}
}

// take takes messages until the connection ends, and says how.
func take(ctx context.Context, e *end, conn rdma.Conn, pause time.Duration,
	got func(n int)) error {
	connected, stop := context.WithCancel(ctx)
	defer stop()
	go func() {
		<-conn.Done()
		stop()
	}()
	for n := 1; ; n++ {
		select {
		case <-time.After(pause):
		case <-connected.Done():
			return ended(ctx, conn)
		}
		if err := e.qp.PostRecv(&rdma.RecvWR{SGEs: e.sge()}); err != nil {
			return err
		}
		if e.next(connected) != nil {
			return ended(ctx, conn)
		}
		got(n)
	}
}

// send sends count messages, as fast as it may, and waits until they have arrived.
func send(ctx context.Context, dev rdma.Device, addr netip.AddrPort, count int,
	param rdma.ConnParam) error {
	e, err := newEnd(dev)
	if err != nil {
		return err
	}
	defer e.close()
	conn, err := dev.Connect(ctx, e.qp, addr, param)
	if err != nil {
		return err
	}
	begin := time.Now()
	// A Read of nothing is answered when all that was sent before it has been delivered.
	for n := 1; n <= count+1; n++ {
		wr, what := rdma.SendWR{Op: rdma.OpSend, SGEs: e.sge()}, fmt.Sprintf("message %d is out", n)
		if n > count {
			wr, what = rdma.SendWR{Op: rdma.OpRead}, "all have arrived"
		}
		err := e.qp.PostSend(&wr)
		if err == nil {
			err = e.next(ctx)
		}
		if err != nil {
			if how := ended(ctx, conn); how != nil {
				err = how
			}
			return fmt.Errorf("after %.1f s: %w", time.Since(begin).Seconds(), err)
		}
		fmt.Printf("%4.1f s: %s\n", time.Since(begin).Seconds(), what)
	}
	if err := conn.Disconnect(); err != nil {
		return err
	}
	return ended(ctx, conn)
}
