package rdma_test

import (
	"context"
	"fmt"

	"github.com/vrnic/vrnic/rdma"
)

// A Send takes the oldest receive of the peer. The receive is posted first, and each of the two
// requests completes with the ID that its program has given it.
func ExampleQP_PostSend() {
	a, b := connected()
	defer a.close()
	defer b.close()

	check(b.qp.PostRecv(&rdma.RecvWR{
		ID:   1,
		SGEs: []rdma.SGE{{Addr: b.mr.Addr(), Length: 100, LKey: b.mr.LKey()}},
	}))
	n := copy(a.mr.Bytes(), "hello")
	check(a.qp.PostSend(&rdma.SendWR{
		ID:    2,
		Op:    rdma.OpSend,
		Flags: rdma.Signaled,
		SGEs:  []rdma.SGE{{Addr: a.mr.Addr(), Length: uint32(n), LKey: a.mr.LKey()}},
	}))

	sent, received := a.wait(), b.wait()
	fmt.Printf("request %d: %v\n", sent.ID, sent.Status)
	fmt.Printf("receive %d: %v, %s\n", received.ID, received.Status, b.mr.Bytes()[:received.ByteLen])
	// Output:
	// request 2: success
	// receive 1: success, hello
}

// Few octets need no registered memory: the post takes them.
func ExampleSendWR_inline() {
	a, b := connected()
	defer a.close()
	defer b.close()

	check(b.qp.PostRecv(&rdma.RecvWR{SGEs: b.sge(100)}))
	check(a.qp.PostSend(&rdma.SendWR{
		Op: rdma.OpSend, Flags: rdma.Inline, Inline: []byte("hello"),
	}))
	fmt.Printf("%s\n", b.mr.Bytes()[:b.wait().ByteLen])
	// Output:
	// hello
}

// A program that has nothing else to do sleeps until there is a completion. It polls before it
// arms, and again after: only what comes behind Arm wakes it.
func ExampleCQ_Arm() {
	ctx := context.Background()
	a, b := connected()
	defer a.close()
	defer b.close()
	check(b.qp.PostRecv(&rdma.RecvWR{SGEs: b.sge(100)}))
	check(a.qp.PostSend(&rdma.SendWR{Op: rdma.OpSend, SGEs: a.sge(5)}))

	wc := make([]rdma.WC, 8)
	for armed := false; ; {
		n := must(b.cq.Poll(wc))
		if n > 0 {
			fmt.Println(n, "completion:", wc[0].Status)
			break
		}
		if armed {
			check(b.cq.Wait(ctx)) // the event that Arm asked for
			armed = false
		} else {
			check(b.cq.Arm(false))
			armed = true
		}
	}
	// Output:
	// 1 completion: success
}

// Many QPs take their receives from one queue. A completion says by its QPN whose message it is,
// and by its ID in which buffer.
func ExampleSRQ() {
	dev := open()
	defer dev.Close()
	server := newEnd(dev)
	srq := must(server.pd.CreateSRQ(rdma.SRQConfig{MaxWR: 8, MaxSGE: 1}))
	const size = 100
	for i := range uint64(8) {
		check(srq.PostRecv(&rdma.RecvWR{ID: i, SGEs: []rdma.SGE{
			{Addr: server.mr.Addr() + i*size, Length: size, LKey: server.mr.LKey()},
		}}))
	}

	names := map[uint32]string{}
	for _, name := range []string{"Ann", "Bob"} {
		qp := must(server.pd.CreateQP(rdma.QPConfig{SendCQ: server.cq, RecvCQ: server.cq, SRQ: srq}))
		names[qp.Num()] = name
		client := newEnd(dev)
		join(dev, client.qp, dev, qp)
		check(client.qp.PostSend(&rdma.SendWR{
			Op: rdma.OpSend, Flags: rdma.Inline, Inline: []byte("I am " + name),
		}))
	}
	for range 2 {
		wc := server.wait()
		text := server.mr.Bytes()[wc.ID*size:][:wc.ByteLen]
		fmt.Printf("%s says: %s\n", names[wc.QPN], text)
	}
	// Unordered output:
	// Ann says: I am Ann
	// Bob says: I am Bob
}
