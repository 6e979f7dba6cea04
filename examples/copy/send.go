package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"path/filepath"

	"github.com/vrnic/vrnic/rdma"
)

// send sends the file at path to the receiver at addr.
func send(ctx context.Context, dev rdma.Device, addr netip.AddrPort, path string) error {
	file, err := os.Open(path)
	if err != nil {
		return err
	}
	defer file.Close()
	info, err := file.Stat()
	if err != nil {
		return err
	}
	if !info.Mode().IsRegular() || len(info.Name()) > maxName {
		return fmt.Errorf("want a regular file, with a name of at most %d octets", maxName)
	}
	e, err := newEnd(dev, 0) // nobody else has to do with this memory
	if err != nil {
		return err
	}
	defer e.close()
	// Immediate data is an extension of iWARP (RFC 7306), which both ends have to want.
	e.conn, err = dev.Connect(ctx, e.qp, addr, rdma.ConnParam{
		PrivateData: putOffer(info.Size(), filepath.Base(path)), Extensions: true,
	})
	if refused, ok := errors.AsType[*rdma.RejectedError](err); ok {
		return fmt.Errorf("%w: %s", err, refused.PrivateData)
	}
	if err != nil {
		return err
	}
	if err := e.sendFile(ctx, file); err != nil {
		return err
	}
	if err := e.conn.Disconnect(); err != nil {
		return err
	}
	return e.ended(ctx)
}

// sendFile sends all pieces and waits until the receiver has the last.
func (e *end) sendFile(ctx context.Context, file io.Reader) error {
	addr, key, err := parseWhere(e.conn.Param().PrivateData)
	if err != nil {
		return err
	}
	pieces, written, credits := 0, 0, 0
	wait := func(under int) error { // until fewer pieces are under way
		for pieces-min(written, credits) >= under {
			wc, err := e.next(ctx)
			if err != nil {
				return err
			}
			if wc.Op != rdma.WCRecvImm {
				written++
				continue
			}
			credits++
			if err := e.postRecv(); err != nil {
				return err
			}
		}
		return nil
	}
	for {
		if err := wait(slots); err != nil {
			return err
		}
		n, err := io.ReadFull(file, e.slot(pieces))
		if err != nil && err != io.EOF && err != io.ErrUnexpectedEOF {
			return err
		}
		off := uint64(pieces % slots * slotLen)
		err = e.qp.PostSend(&rdma.SendWR{
			Op:         rdma.OpWriteImm,
			SGEs:       []rdma.SGE{{Addr: e.mr.Addr() + off, Length: uint32(n), LKey: e.mr.LKey()}},
			RemoteAddr: addr + off,
			RKey:       key,
			Imm:        uint32(n),
		})
		if err != nil {
			return err
		}
		pieces++
		if n == 0 {
			return wait(1)
		}
	}
}
