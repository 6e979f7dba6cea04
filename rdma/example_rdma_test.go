package rdma_test

import (
	"encoding/binary"
	"fmt"

	"github.com/vrnic/vrnic/rdma"
)

// A Write puts octets into the peer's memory. The peer's program does nothing for it, and does not
// hear of it: here a Send behind the Write says that it is there.
func ExampleSendWR_write() {
	a, b := connected()
	defer a.close()
	defer b.close()
	check(b.qp.PostRecv(&rdma.RecvWR{}))

	n := copy(a.mr.Bytes(), "written")
	must(a.qp.PostSends([]rdma.SendWR{
		{
			Op:         rdma.OpWrite,
			SGEs:       a.sge(n), // from here
			RemoteAddr: b.mr.Addr() + 100,
			RKey:       b.mr.RKey(),
		},
		{Op: rdma.OpSend}, // of no octets
	}))
	b.wait()
	fmt.Printf("%s\n", b.mr.Bytes()[100:107])
	// Output:
	// written
}

// A Read fetches octets from the peer's memory, without its program. They are there when it has
// completed.
func ExampleSendWR_read() {
	a, b := connected()
	defer a.close()
	defer b.close()
	copy(b.mr.Bytes()[100:], "read")

	check(a.qp.PostSend(&rdma.SendWR{
		Op:         rdma.OpRead,
		SGEs:       a.sge(4), // to here
		RemoteAddr: b.mr.Addr() + 100,
		RKey:       b.mr.RKey(),
	}))
	wc := a.wait()
	fmt.Printf("%s, %d octets\n", a.mr.Bytes()[:4], wc.ByteLen)
	// Output:
	// read, 4 octets
}

// A Write with immediate data takes a receive of the peer, which so learns that the Write is there,
// and eight octets more. The receive's memory stays as it is.
func ExampleSendWR_writeImm() {
	a, b := connected() // with ConnParam.Extensions
	defer a.close()
	defer b.close()
	check(b.qp.PostRecv(&rdma.RecvWR{ID: 1}))

	n := copy(a.mr.Bytes(), "a piece of a file")
	check(a.qp.PostSend(&rdma.SendWR{
		Op:         rdma.OpWriteImm,
		SGEs:       a.sge(n),
		RemoteAddr: b.mr.Addr(),
		RKey:       b.mr.RKey(),
		Imm:        uint32(n),
	}))
	wc := b.wait()
	if wc.Op == rdma.WCRecvImm && wc.Flags&rdma.WCWithImm != 0 {
		fmt.Printf("%s\n", b.mr.Bytes()[:wc.Imm])
	}
	// Output:
	// a piece of a file
}

// An atomic changes eight octets of the peer's memory, and brings their old value. Here both ends
// count with one counter, which each of them numbers something by.
func ExampleAtomicArgs() {
	a, b := connected() // with ConnParam.Extensions
	defer a.close()
	defer b.close()
	binary.NativeEndian.PutUint64(b.mr.Bytes(), 41)

	fetchAdd := rdma.SendWR{
		Op:         rdma.OpFetchAdd,
		SGEs:       a.sge(8), // for the old value
		RemoteAddr: b.mr.Addr(),
		RKey:       b.mr.RKey(),
		Atomic:     rdma.AtomicArgs{CompareAdd: 1},
	}
	check(a.qp.PostSend(&fetchAdd))
	fmt.Println(a.wait().Status, binary.NativeEndian.Uint64(a.mr.Bytes()))

	compareSwap := fetchAdd
	compareSwap.Op = rdma.OpCompareSwap
	compareSwap.Atomic = rdma.AtomicArgs{CompareAdd: 42, Swap: 1000} // if it is 42: 1000
	check(a.qp.PostSend(&compareSwap))
	fmt.Println(a.wait().Status, binary.NativeEndian.Uint64(a.mr.Bytes()))
	fmt.Println("now", binary.NativeEndian.Uint64(b.mr.Bytes()))
	// Output:
	// success 41
	// success 42
	// now 1000
}
