package main

import (
	"context"
	"encoding/binary"
	"fmt"
	"log"
	"net/netip"

	"github.com/vrnic/vrnic/rdma"
)

// serve lends a table to clients until ctx ends. All that it does for a client is to connect it.
func serve(ctx context.Context, dev rdma.Device, addr netip.AddrPort) error {
	pd, err := dev.AllocPD()
	if err != nil {
		return err
	}
	table, err := dev.AllocBuffer(numSlots * slotLen)
	if err != nil {
		return err
	}
	// What a peer may write into, this end has to be allowed to write into too.
	mr, err := pd.RegisterMemory(table.Bytes(),
		rdma.LocalWrite|rdma.RemoteRead|rdma.RemoteWrite|rdma.RemoteAtomic)
	if err != nil {
		return err
	}
	cq, err := dev.CreateCQ(1) // a QP wants one, and has nothing to say
	if err != nil {
		return err
	}
	listener, err := dev.Listen(addr, 0)
	if err != nil {
		return err
	}
	defer listener.Close()
	fmt.Printf("listening on %v\n", listener.Addr())

	param := rdma.ConnParam{PrivateData: putWhere(mr), Extensions: true}
	for {
		req, err := listener.Next(ctx)
		if err != nil {
			return err
		}
		qp, err := pd.CreateQP(rdma.QPConfig{SendCQ: cq, RecvCQ: cq})
		if err != nil {
			log.Printf("client %v: %v", req.RemoteAddr(), err)
			_ = req.Reject([]byte("the server is full")) // else the client has gone
			continue
		}
		go func() {
			conn, err := req.Accept(ctx, qp, param)
			if err == nil {
				<-conn.Done()
				err = conn.Err()
			}
			if err != nil {
				log.Printf("client %v: %v", req.RemoteAddr(), err)
			}
			qp.Close()
		}()
	}
}

// The server's private data says where its table is.
const whereLen = 12

func putWhere(mr rdma.MR) []byte {
	b := binary.BigEndian.AppendUint64(nil, mr.Addr())
	return binary.BigEndian.AppendUint32(b, mr.RKey())
}

func parseWhere(b []byte) (addr uint64, key uint32, err error) {
	if len(b) != whereLen {
		return 0, 0, fmt.Errorf("the server is no kv: it says %q", b)
	}
	return binary.BigEndian.Uint64(b), binary.BigEndian.Uint32(b[8:]), nil
}
