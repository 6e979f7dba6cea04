package verbs

import (
	"bytes"
	"context"
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"github.com/vrnic/vrnic/rdma"
)

// A goClient is a program in Go, which is the test itself: one end of a connection.
type goClient struct {
	t    *testing.T
	dev  rdma.Device
	qp   rdma.QP
	cq   rdma.CQ
	mr   rdma.MR
	conn rdma.Conn
}

const (
	echoDepth = 4
	echoLen   = 8192
)

func (d *daemon) goClient(t *testing.T) *goClient {
	t.Helper()
	c := &goClient{t: t}
	dev, err := d.client.Open("")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { dev.Close() })
	c.dev = dev
	pd, err := dev.AllocPD()
	if err == nil {
		c.cq, err = dev.CreateCQ(4 * echoDepth)
	}
	if err == nil {
		c.qp, err = pd.CreateQP(rdma.QPConfig{SendCQ: c.cq, RecvCQ: c.cq, MaxSendWR: echoDepth,
			MaxRecvWR: echoDepth})
	}
	var buf rdma.Buffer
	if err == nil {
		buf, err = dev.AllocBuffer(2 * echoDepth * echoLen)
	}
	if err == nil {
		c.mr, err = pd.RegisterMemory(buf.Bytes(), rdma.LocalWrite)
	}
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// slot is the memory of receive i, from 0, or of Send i behind those.
func (c *goClient) slot(i, n int) ([]byte, []rdma.SGE) {
	at := i * echoLen
	return c.mr.Bytes()[at:][:n], []rdma.SGE{{Addr: c.mr.Addr() + uint64(at), Length: uint32(n),
		LKey: c.mr.LKey()}}
}

func (c *goClient) check(err error) {
	c.t.Helper()
	if err != nil {
		c.t.Fatal(err)
	}
}

// next is the next completion. In some hundreds of messages the program sleeps until it comes.
func (c *goClient) next(ctx context.Context, asleep bool) rdma.WC {
	c.t.Helper()
	var wc [1]rdma.WC
	poll := func() bool {
		n, err := c.cq.Poll(wc[:])
		c.check(err)
		return n == 1
	}
	for !poll() {
		c.check(ctx.Err())
		if !asleep {
			continue
		}
		c.check(c.cq.Arm(false))
		if poll() {
			break
		}
		c.check(c.cq.Wait(ctx))
	}
	if wc[0].Status != rdma.WCSuccess {
		c.t.Fatalf("%+v", wc[0])
	}
	return wc[0]
}

// exchange has n messages of all lengths sent, and compares what comes back.
func (c *goClient) exchange(ctx context.Context, n int) {
	c.t.Helper()
	length := func(i int) int { return 1 + i*37%300 + i%10/9*i*11%(echoLen-300) }
	post := func(i int) {
		_, sges := c.slot(i%echoDepth, echoLen)
		c.check(c.qp.PostRecv(&rdma.RecvWR{ID: uint64(i), SGEs: sges}))
	}
	for i := range echoDepth {
		post(i)
	}
	sent, done := 0, 0
	for came := 0; came < n || done < n; {
		for sent < n && sent-min(came, done) < echoDepth {
			b, sges := c.slot(echoDepth+sent%echoDepth, length(sent))
			for k := range b {
				b[k] = byte(sent*3 + k)
			}
			c.check(c.qp.PostSend(&rdma.SendWR{ID: uint64(sent), Op: rdma.OpSend, Flags: rdma.Signaled,
				SGEs: sges}))
			sent++
		}
		wc := c.next(ctx, came/150%2 == 1)
		if wc.Op == rdma.WCSend {
			if wc.ID != uint64(done) {
				c.t.Fatalf("%+v, want Send %d", wc, done)
			}
			done++
			continue
		}
		got, _ := c.slot(came%echoDepth, length(came))
		want := make([]byte, length(came))
		for k := range want {
			want[k] = byte(came*3 + k)
		}
		if wc.ID != uint64(came) || int(wc.ByteLen) != len(want) || !bytes.Equal(got, want) {
			c.t.Fatalf("%+v, or octets, are not those of message %d of %d octets", wc, came, len(want))
		}
		if came += 1; came+echoDepth <= n {
			post(came + echoDepth - 1)
		}
	}
}

// A program in Go and one in C exchange Sends without the daemon, whoever connects to whom.
func TestDirectLanguages(t *testing.T) {
	top := direct(t, "user")
	path := cProgram(t, "echo")
	const messages = 1000
	for _, role := range []string{"serve", "connect"} {
		t.Run("C to "+role, func(t *testing.T) {
			d := top.server.in(t)
			ctx, cancel := context.WithTimeout(context.Background(), patience)
			defer cancel()
			c := d.goClient(t)
			addr := netip.MustParseAddr(top.server.addrs[0])
			var port int
			var l rdma.Listener
			var err error
			if role == "connect" {
				l, err = c.dev.Listen(netip.AddrPortFrom(addr, 0), 1)
				c.check(err)
				defer l.Close()
				port = int(l.Addr().Port())
			} else {
				port = int(nextPort.Add(1))
			}
			before, _ := top.counter("direct_sends")
			p := d.start(path, role, addr.String(), fmt.Sprint(port), fmt.Sprint(messages))
			if l == nil {
				d.listens(p, port, 1)
				c.conn, err = c.dev.Connect(ctx, c.qp, netip.AddrPortFrom(addr, uint16(port)),
					rdma.ConnParam{})
			} else {
				var r rdma.ConnRequest
				r, err = l.Next(ctx)
				c.check(err)
				c.conn, err = r.Accept(ctx, c.qp, rdma.ConnParam{})
			}
			c.check(err)
			c.exchange(ctx, messages)
			c.check(c.conn.Disconnect())
			p.succeed(patience)
			if out := p.Output(); !strings.Contains(out, "ok echo") {
				t.Error(out)
			}
			// Streams go to the ring now and then.
			if after, _ := top.counter("direct_sends"); after-before < messages {
				t.Errorf("%v of %d Sends were direct", after-before, 2*messages)
			}
		})
	}
}
