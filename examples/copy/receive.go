package main

import (
	"context"
	"errors"
	"fmt"
	"log"
	"net/netip"
	"os"
	"path/filepath"
	"sync"

	"github.com/vrnic/vrnic/rdma"
)

// receiveAll takes files at addr into a directory, several at a time, until ctx ends.
func receiveAll(ctx context.Context, dev rdma.Device, addr netip.AddrPort, dir string) error {
	listener, err := dev.Listen(addr, 0)
	if err != nil {
		return err
	}
	defer listener.Close()
	fmt.Printf("listening on %v\n", listener.Addr())

	var transfers sync.WaitGroup
	defer transfers.Wait()
	for {
		req, err := listener.Next(ctx)
		if err != nil {
			return err
		}
		transfers.Go(func() {
			if err := receive(ctx, dev, req, dir); err != nil && ctx.Err() == nil {
				log.Printf("from %v: %v", req.RemoteAddr(), err)
			}
		})
	}
}

// receive takes the file that a request offers. It appears in dir when it is whole.
func receive(ctx context.Context, dev rdma.Device, req rdma.ConnRequest, dir string) error {
	refuse := func(err error) error { return errors.Join(err, req.Reject([]byte(err.Error()))) }
	size, name, err := parseOffer(req.Param().PrivateData)
	if err != nil {
		return refuse(err)
	}
	if name != filepath.Base(name) || !filepath.IsLocal(name) { // a peer's word
		return refuse(fmt.Errorf("%q is not the name of a file", name))
	}
	file, err := os.CreateTemp(dir, ".copy-")
	if err != nil {
		return refuse(err)
	}
	defer os.Remove(file.Name()) // unless it has got its name
	defer file.Close()
	e, err := newEnd(dev, rdma.LocalWrite|rdma.RemoteWrite)
	if err != nil {
		return refuse(err)
	}
	defer e.close()
	e.conn, err = req.Accept(ctx, e.qp, rdma.ConnParam{PrivateData: putWhere(e.mr), Extensions: true})
	if err != nil {
		return err
	}

	got, err := e.receiveFile(ctx, file)
	if err != nil {
		return err
	}
	if got != size {
		return fmt.Errorf("%s has %d octets, and should have %d", name, got, size)
	}
	if err := errors.Join(file.Sync(), file.Close()); err != nil {
		return err
	}
	if err := os.Rename(file.Name(), filepath.Join(dir, name)); err != nil {
		return err
	}
	fmt.Printf("%s: %d octets\n", name, got)
	if err := e.credit(); err != nil { // for the end of the file
		return err
	}
	return e.ended(ctx)
}

// receiveFile writes the pieces to file up to its end.
func (e *end) receiveFile(ctx context.Context, file *os.File) (got int64, err error) {
	for piece := 0; ; {
		wc, err := e.next(ctx)
		if err != nil {
			return got, err
		}
		if wc.Op != rdma.WCRecvImm {
			continue // a credit has gone out
		}
		switch n := wc.Imm; {
		case n == 0:
			return got, nil
		case n > slotLen: // a peer's word
			return got, fmt.Errorf("a piece of %d octets, want at most %d", n, slotLen)
		default:
			if _, err := file.Write(e.slot(piece)[:n]); err != nil {
				return got, err
			}
			got += int64(n)
		}
		piece++
		if err := e.credit(); err != nil {
			return got, err
		}
	}
}

// credit lets the sender use the oldest slot again. The receive for that comes first.
func (e *end) credit() error {
	if err := e.postRecv(); err != nil {
		return err
	}
	return e.qp.PostSend(&rdma.SendWR{Op: rdma.OpSendImm})
}
