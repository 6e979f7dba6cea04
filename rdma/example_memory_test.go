package rdma_test

import (
	"fmt"

	"github.com/vrnic/vrnic/rdma"
)

// Memory has to be registered before an RNIC touches it. A Buffer is good for that wherever the
// device is; one in this process takes any slice.
func ExamplePD_RegisterMemory() {
	dev := open()
	defer dev.Close()

	pd := must(dev.AllocPD())
	buf := must(dev.AllocBuffer(4096))
	// The QPs of pd may write here, and peers that know RKey may read.
	mr := must(pd.RegisterMemory(buf.Bytes(), rdma.LocalWrite|rdma.RemoteRead))
	copy(mr.Bytes(), "hello")

	// What a program of this end posts names a part of the region so:
	sge := rdma.SGE{Addr: mr.Addr(), Length: 5, LKey: mr.LKey()}
	// And what a peer's program posts, once it has been told Addr and RKey:
	wr := rdma.SendWR{Op: rdma.OpRead, RemoteAddr: mr.Addr(), RKey: mr.RKey()}
	fmt.Println(sge.Length, "octets;", wr.RemoteAddr == sge.Addr)

	// In the other order: nothing goes while something uses it.
	check(mr.Close())
	check(buf.Close())
	check(pd.Close())
	// Output:
	// 5 octets; true
}

// A memory window opens a part of a region to the peer of one QP, with a key of its own, and is
// closed again as fast as a message is sent.
func ExampleMW() {
	a, b := connected()
	defer a.close()
	defer b.close()

	mw := must(b.pd.AllocMW(rdma.MWType2))
	key := rdma.NextKey(mw.RKey()) // each binding has a new one
	addr := b.mr.Addr() + 100
	check(b.qp.PostSend(&rdma.SendWR{
		Op:         rdma.OpBindMW,
		RKey:       key,
		RemoteAddr: addr, // what a shall call the window's first octet
		Range: rdma.MemRange{
			Addr: addr, Length: 10, LKey: b.mr.LKey(), Access: rdma.RemoteWrite,
		},
	}))
	fmt.Println("bind:", b.wait().Status)

	// write has a write n octets into the window.
	write := func(n int) {
		check(a.qp.PostSend(&rdma.SendWR{
			Op: rdma.OpWrite, SGEs: a.sge(n), RemoteAddr: addr, RKey: key,
		}))
		fmt.Printf("write %d octets: %v\n", n, a.wait().Status)
	}
	write(10)
	check(b.qp.PostSend(&rdma.SendWR{Op: rdma.OpLocalInv, InvKey: key}))
	fmt.Println("invalidate:", b.wait().Status)
	write(10) // which is against the rules now, and ends the connection
	// Output:
	// bind: success
	// write 10 octets: success
	// invalidate: success
	// write 10 octets: remote access error
}

// A fast registration gives a region other memory, and a new key, by a request on a send queue: no
// call, no waiting. SendInv lets the peer say that it needs the key no more.
func ExamplePD_AllocMR() {
	a, b := connected()
	defer a.close()
	defer b.close()

	region := must(b.pd.AllocMR(1024)) // not valid yet
	key := rdma.NextKey(region.RKey())
	addr := b.mr.Addr()
	check(b.qp.PostSend(&rdma.SendWR{
		Op:         rdma.OpRegMR,
		RKey:       key,
		RemoteAddr: addr, // what a shall call the first octet
		Range: rdma.MemRange{
			Addr: addr, Length: 1024, LKey: b.mr.LKey(), Access: rdma.LocalWrite | rdma.RemoteWrite,
		},
	}))
	fmt.Println("register:", b.wait().Status)

	check(b.qp.PostRecv(&rdma.RecvWR{SGEs: b.sge(100)}))
	copy(a.mr.Bytes(), "into the region")
	check(a.qp.PostSend(&rdma.SendWR{
		Op: rdma.OpWrite, SGEs: a.sge(15), RemoteAddr: addr + 512, RKey: key,
	}))
	check(a.qp.PostSend(&rdma.SendWR{Op: rdma.OpSendInv, InvKey: key}))

	wc := b.wait() // the receive: what a has done before is there
	fmt.Printf("%s\n", b.mr.Bytes()[512:527])
	fmt.Println("the key is over:", wc.Flags&rdma.WCWithInv != 0 && wc.Imm == key)
	// Output:
	// register: success
	// into the region
	// the key is over: true
}
