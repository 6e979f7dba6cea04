package rdma_test

import (
	"context"
	"errors"
	"fmt"
	"net/netip"

	"github.com/vrnic/vrnic/rdma"
)

// A program listens, another one connects. Each end says in its private data what the other one
// has to know. The connection is that of two QPs, which the programs have made before.
func ExampleDevice_Connect() {
	ctx := context.Background()
	a, b := newEnd(open()), newEnd(open()) // with a QP each
	defer a.close()
	defer b.close()

	listener := must(b.dev.Listen(netip.MustParseAddrPort("10.0.0.1:7000"), 0))
	defer listener.Close()
	go func() {
		req := must(listener.Next(ctx))
		fmt.Printf("b is asked: %s\n", req.Param().PrivateData)
		must(req.Accept(ctx, b.qp, rdma.ConnParam{PrivateData: []byte("gladly")}))
	}()

	conn := must(a.dev.Connect(ctx, a.qp, listener.Addr(), rdma.ConnParam{
		PrivateData: []byte("may I?"),
	}))
	fmt.Printf("a is answered: %s\n", conn.Param().PrivateData)

	check(conn.Disconnect())
	<-conn.Done()
	fmt.Println("the end:", conn.Err())
	// Output:
	// b is asked: may I?
	// a is answered: gladly
	// the end: <nil>
}

// A program need not accept. The one that wants to connect learns why from the private data.
func ExampleRejectedError() {
	ctx := context.Background()
	a, b := newEnd(open()), newEnd(open())
	defer a.close()
	defer b.close()

	listener := must(b.dev.Listen(netip.MustParseAddrPort("10.0.0.1:7000"), 0))
	defer listener.Close()
	go func() { check(must(listener.Next(ctx)).Reject([]byte("come back tomorrow"))) }()

	_, err := a.dev.Connect(ctx, a.qp, listener.Addr(), rdma.ConnParam{})
	if refused, ok := errors.AsType[*rdma.RejectedError](err); ok {
		fmt.Printf("refused: %s\n", refused.PrivateData)
	}
	// Output:
	// refused: come back tomorrow
}

// Whoever asks for memory that it has no right to loses the connection. The Terminate message says
// to both ends which rule was broken.
func ExampleTerminateError() {
	a, b := connected()
	defer a.close()
	defer b.close()

	check(a.qp.PostSend(&rdma.SendWR{
		Op:         rdma.OpWrite,
		SGEs:       a.sge(8),
		RemoteAddr: b.mr.Addr() + uint64(len(b.mr.Bytes())), // right behind b's memory
		RKey:       b.mr.RKey(),
	}))
	<-a.conn.Done()
	<-b.conn.Done()

	atA, _ := errors.AsType[*rdma.TerminateError](a.conn.Err())
	atB, _ := errors.AsType[*rdma.TerminateError](b.conn.Err())
	fmt.Println("a: from the peer:", atA.Remote, atA.Text)
	fmt.Println("b: from the peer:", atB.Remote, atB.Text)
	fmt.Println("a's QP is in state", a.qp.State())
	// Output:
	// a: from the peer: true base or bounds violation
	// b: from the peer: false base or bounds violation
	// a's QP is in state ERROR
}
