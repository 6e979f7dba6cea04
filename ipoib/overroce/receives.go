package overroce

import (
	"time"

	"github.com/vrnic/vrnic/ipoib"
	"github.com/vrnic/vrnic/rdma"
)

// connectedID in the ID of a receive says that it is one of connections.
const connectedID = 1 << 32

// receives are buffers for frames that come.
type receives struct {
	n, size int
	mem     []byte
	wrs     []rdma.RecvWR // of each buffer
	done    []rdma.RecvWR // those to be posted again
	to      poster
}

func newReceives(pd rdma.PD, size int, id uint64) (*receives, error) {
	r := &receives{n: room(size), size: size}
	r.mem = make([]byte, r.n*size)
	mr, err := pd.RegisterMemory(r.mem, rdma.LocalWrite)
	if err != nil {
		return nil, err
	}
	for i := range r.n {
		r.wrs = append(r.wrs, rdma.RecvWR{ID: id | uint64(i), SGEs: []rdma.SGE{{
			Addr: mr.Addr() + uint64(i*size), Length: uint32(size), LKey: mr.LKey(),
		}}})
	}
	r.done = make([]rdma.RecvWR, 0, batch)
	return r, nil
}

// A poster takes receives: a queue pair, or an SRQ.
type poster interface {
	PostRecvs([]rdma.RecvWR) (int, error)
}

func (r *receives) postAll(to poster) error {
	r.to = to
	_, err := to.PostRecvs(r.wrs)
	return err
}

// again posts what has been looked at.
func (r *receives) again() error {
	if len(r.done) == 0 {
		return nil
	}
	_, err := r.to.PostRecvs(r.done)
	r.done = r.done[:0]
	return err
}

// got is the frame of a completion, whose buffer is to be posted again.
func (r *receives) got(wc *rdma.WC) []byte {
	i := int(uint32(wc.ID))
	r.done = append(r.done, r.wrs[i])
	return r.mem[i*r.size:][:min(int(wc.ByteLen), r.size)]
}

// batch is how many completions are taken at a time.
const batch = 32

// receive takes what comes until l ends.
func (l *Link) receive(s *side) {
	wcs := make([]rdma.WC, batch)
	packets := make([][]byte, 0, batch)
	for {
		n, err := s.recvCQ.Poll(wcs)
		if err == nil && n == 0 {
			if err = s.recvCQ.Arm(false); err == nil {
				if n, err = s.recvCQ.Poll(wcs); err == nil && n == 0 {
					err = s.recvCQ.Wait(l.life)
				}
			}
		}
		if err != nil {
			if l.life.Err() == nil {
				l.log.Warn("nothing is received any more", "err", err)
			}
			return
		}
		packets = l.came(packets[:0], wcs[:n])
		dropped := uint64(0)
		for _, p := range packets {
			if _, err := l.host.Write(p); err != nil {
				dropped++
			}
		}
		if dropped > 0 {
			l.mu.Lock()
			l.lost.Host += dropped
			l.mu.Unlock()
		}
		for _, r := range s.receives {
			if err := r.again(); err != nil && l.life.Err() == nil {
				l.log.Warn("receives are lost", "err", err)
			}
		}
	}
}

// came gives what has come to the Interface, and adds the packets for the host to packets.
func (l *Link) came(packets [][]byte, wcs []rdma.WC) [][]byte {
	now := time.Now()
	l.mu.Lock()
	defer l.mu.Unlock()
	for i := range wcs {
		if p := l.takeLocked(now, &wcs[i]); p != nil {
			packets = append(packets, p)
		}
	}
	l.pendingLocked()
	return packets
}

// +checklocks:l.mu
func (l *Link) takeLocked(now time.Time, wc *rdma.WC) []byte {
	if wc.Status != rdma.WCSuccess {
		wc.ByteLen = 0
	}
	if wc.ID&connectedID != 0 {
		c, b := l.byQPN[wc.QPN], l.connected.got(wc)
		if wc.Status != rdma.WCSuccess {
			if c != nil {
				l.newsLocked(news{failed: c})
			}
			return nil
		}
		if c == nil { // it is over
			return nil
		}
		if !c.c.Open() {
			l.newsLocked(news{heard: c})
		}
		return l.iface.ReceiveConnected(now, c.c, b)
	}
	b := l.datagrams.got(wc)
	if wc.Status != rdma.WCSuccess || len(b) < rdma.NetworkHeaderLen {
		return nil
	}
	return l.iface.ReceiveDatagram(now, source(b), wc.SrcQP, b[rdma.NetworkHeaderLen:])
}

// source is where a datagram of RoCE has come from: the address in its network header, whether that
// is IPv6's, or IPv4's in the second half.
func source(head []byte) (g ipoib.GID) {
	if head[0]>>4 == 6 {
		return ipoib.GID(head[8:24])
	}
	g[10], g[11] = 0xff, 0xff
	copy(g[12:], head[32:36])
	return g
}
