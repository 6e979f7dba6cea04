package vnic_test

import (
	"bytes"
	"encoding/binary"
	"testing"
	"testing/synctest"
	"time"

	"github.com/vrnic/vrnic/rdma"
	"github.com/vrnic/vrnic/vnic"
	"github.com/vrnic/vrnic/vnic/vnictest"
)

// FuzzRequests posts arbitrary requests to a ring, as a hostile client can. Whatever they say: each
// request completes exactly once and in order, no octet outside of the two registered regions
// changes, and a connection of somebody else on the same devices goes on.
func FuzzRequests(f *testing.F) {
	f.Add([]byte{0, 2, 2, 0, 8, 1, 3, 4, 2, 1, 9, 0, 16, 2, 1, 0}, true)
	f.Add([]byte{4, 2, 0, 0, 255, 7, 0, 2, 8, 0, 0, 3, 9, 2, 1, 0}, false)
	f.Add([]byte{6, 0, 2, 8, 0, 1, 3, 4, 5, 0, 3, 8, 0, 1, 1, 4, 1, 0, 1, 9, 1, 1, 0, 0, 3, 2, 0, 0, 0,
		0, 0, 4}, true)
	f.Add([]byte{12, 0, 2, 8, 0, 1, 3, 4, 13, 0, 3, 8, 0, 1, 1, 4, 1, 0, 1, 9, 1, 1, 0, 0, 3, 2, 0, 0,
		0, 0, 0, 4}, false)
	f.Fuzz(func(t *testing.T, script []byte, loop bool) {
		synctest.Test(t, func(t *testing.T) {
			a, b := vnictest.Pair(t)
			if loop {
				b = a
			}
			ca, cb := vnictest.Open(t, a, vnic.ContextConfig{}), vnictest.Open(t, b, vnic.ContextConfig{})
			p, q := vnictest.NewQPs(t, ca, cb, vnictest.PeerConfig{}, vnictest.PeerConfig{})
			y := vnictest.NewPeer(t, cb, ext)
			r := &ring{room: 1 << 20}
			x := foreign(t, ca, r, y)

			// Only the middle of each buffer is registered for x's requests.
			const from, to = 1000, 2000
			mx, my := x.Register(x.Buf[from:to], rdma.LocalWrite), y.Register(y.Buf[from:to], vnictest.Full)
			x.MR.Close()
			fill(x.Buf, 1)
			fill(y.Buf, 2)
			bx, by := bytes.Clone(x.Buf), bytes.Clone(y.Buf)
			for i := range 4 {
				if err := y.QP.PostRecv(&rdma.RecvWR{ID: uint64(i), SGEs: []rdma.SGE{
					{Addr: my.Addr(), Length: 500, LKey: my.LKey()}}}); err != nil {
					t.Fatal(err)
				}
			}
			n := 0
			for ; len(script) >= 8 && n < 40; n++ {
				w := script[:8]
				script = script[8:]
				near := func(m *vnic.MR, k byte) uint64 { return m.Addr() + uint64(int64(int8(k))*8) }
				wr := rdma.SendWR{ID: uint64(n), Op: rdma.Opcode(w[0]), Flags: rdma.SendFlags(w[1]) |
					rdma.Signaled, RemoteAddr: near(my, w[2]), RKey: my.RKey(), InvKey: my.RKey(),
					Imm: uint32(w[3])}
				wr.Atomic = rdma.AtomicArgs{CompareAdd: uint64(w[6]), Swap: uint64(w[7]),
					CompareMask: uint64(w[4]), SwapMask: uint64(w[3])}
				length := uint32(binary.LittleEndian.Uint16(w[3:])) % 1200
				for range w[5] % 4 {
					wr.SGEs = append(wr.SGEs, rdma.SGE{Addr: near(mx, w[6]), Length: length, LKey: mx.LKey()})
				}
				wr.Inline = make([]byte, w[5]%20)
				switch w[7] {
				case 1:
					wr.RKey, wr.InvKey = wr.RKey+1, mx.LKey()
				case 2:
					wr.RemoteAddr = -uint64(w[2])
				case 3:
					for i := range wr.SGEs {
						wr.SGEs[i].Length = ^uint32(0)
					}
				}
				r.mu.Lock()
				r.sq = append(r.sq, wr)
				r.mu.Unlock()
				if w[7]&4 != 0 {
					x.QP.Ring()
				}
			}
			x.QP.Ring()
			synctest.Wait()
			time.Sleep(time.Minute) // Sends without a receive, and closes, time out
			x.QP.Abort()
			synctest.Wait()

			r.mu.Lock()
			defer r.mu.Unlock()
			if len(r.wcs) != n || r.retired != n {
				t.Fatalf("%d completions and %d retired of %d requests", len(r.wcs), r.retired, n)
			}
			for i, wc := range r.wcs {
				if wc.ID != uint64(i) {
					t.Fatalf("completion %d is that of request %d", i, wc.ID)
				}
			}
			for _, z := range []struct {
				name     string
				now, was []byte
			}{{"requester", x.Buf, bx}, {"responder", y.Buf, by}} {
				if !bytes.Equal(z.now[:from], z.was[:from]) || !bytes.Equal(z.now[to:], z.was[to:]) {
					t.Fatalf("the %s's memory outside of its region was changed", z.name)
				}
			}
			q.Recv(1, 0, 10)
			p.Send(2, 0, 10)
			q.WantRecv("others go on", is(1, ok))
		})
	})
}
