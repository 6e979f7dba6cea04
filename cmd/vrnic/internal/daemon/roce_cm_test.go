package daemon_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"net/netip"
	"slices"
	"syscall"
	"testing"

	"github.com/vrnic/vrnic/cmd/vrnic/internal/daemon/daemontest"
	"github.com/vrnic/vrnic/internal/needtest"
	"github.com/vrnic/vrnic/rdma"
	"github.com/vrnic/vrnic/shm/rpc"
	"github.com/vrnic/vrnic/shm/shmtest"
)

// Two programs connect over rings on devices of RoCE, of which one has the addresses of a device of
// iWARP, too; what they ask for is in their QPs. RCM-056, 058, 059, 063.
func TestRoCEConnect(t *testing.T) {
	d := daemontest.Start(t, devices(t, bothKinds...))
	b := daemontest.Open(t, d.Dial(), "rocep0")
	for _, from := range []string{"rocep0", "rocep1"} {
		t.Run(from, func(t *testing.T) {
			a := daemontest.Open(t, d.Dial(), from)
			_, err := a.Connect(t.Context(), daemontest.NewEnd(t, a, 4096).QP, daemontest.Addr(t, b, false,
				9), rdma.ConnParam{})
			if !errors.Is(err, syscall.ECONNREFUSED) {
				t.Errorf("nobody listens: %v", err)
			}
			x, y := daemontest.NewEnd(t, a, 4096), daemontest.NewEnd(t, b, 4096)
			toInit(t, y)
			y.Recv(1, 0, 100)
			daemontest.Connect(t, x, y, daemontest.Addr(t, b, false, 7471), func(p *rdma.ConnParam) {
				p.IRD, p.ORD, p.PrivateData = 3, rdma.NoReads, []byte("hello")
				p.RoCE = rdma.RoCEParam{RetryCount: 4, RNRRetry: rdma.NoRetry, ACKTimeout: 15,
					TrafficClass: 0x40}
			})
			for i, e := range []*daemontest.End{x, y} {
				q, err := e.QP.Query()
				if err != nil {
					t.Fatal(err)
				}
				if q.State != rdma.QPRTS || q.RetryCount != 4 || q.RNRRetry != 0 || q.Timeout != 15 ||
					q.Path.TrafficClass != 0x40 || q.MaxRead != 0 || q.MaxDestRead != 0 ||
					q.Access != rdma.RemoteWrite {
					t.Errorf("end %d is %+v", i, q)
				}
				if p := e.Conn.Param(); !bytes.HasPrefix(p.PrivateData, []byte("hello\x00")) {
					t.Errorf("end %d was told %+v", i, p)
				}
			}
			x.Fill(0, 100, 1)
			x.Send(2, 0, 100)
			x.WantOK("sent", 2, rdma.WCSend)
			y.WantOK("received", 1, rdma.WCRecv)
			y.Check("received", 0, 100, 1)
			if err := x.Conn.Disconnect(); err != nil {
				t.Fatal(err)
			}
			<-x.Conn.Done()
			<-y.Conn.Done()
			for i, e := range []*daemontest.End{x, y} {
				if !needtest.Becomes(func() bool { return e.QP.State() == rdma.QPError }) {
					t.Errorf("end %d is %v when its connection is over", i, e.QP.State())
				}
			}
		})
	}
}

// An id that names no device is on that of iWARP, of two that have its address, or reach the peer
// as well, in whatever order they were made: programs of before know of no other.
func TestIWARPFirst(t *testing.T) {
	for name, specs := range map[string][]string{
		"iWARP first": bothKinds,
		"RoCE first":  {bothKinds[1] + ",mtu=4200", bothKinds[2], bothKinds[0]},
	} {
		t.Run(name, func(t *testing.T) {
			d := daemontest.Start(t, devices(t, specs...))
			iwarp := uint32(slices.Index(specs, bothKinds[0]))
			r := shmtest.NewRaw(t, d.Socket()).Hello()
			ch, _ := r.CM()
			on := func(id uint32) uint32 {
				var q rpc.CMQueryReply
				r.Must(rpc.OpCMQuery, &rpc.HandleRequest{Handle: id}, &q)
				return q.Device
			}
			bound := r.ID(ch)
			r.Must(rpc.OpCMBind, &rpc.CMBindRequest{ID: bound,
				Addr: rpc.MakeSockAddr(netip.MustParseAddrPort("10.77.0.2:0"))}, nil)
			if got := on(bound); got != iwarp {
				t.Errorf("bound to the address: device %d, want %d", got, iwarp)
			}
			for _, to := range []string{"10.77.0.2:7471", "[fd77::2]:7471"} {
				id := r.ID(ch)
				r.Must(rpc.OpCMResolveAddr, &rpc.CMResolveAddrRequest{ID: id, TimeoutMS: 1000,
					Dst: rpc.MakeSockAddr(netip.MustParseAddrPort(to))}, nil)
				if got := r.WantEvent(ch, rpc.EvAddrResolved).Device; got != iwarp {
					t.Errorf("on the way to %s: device %d, want %d", to, got, iwarp)
				}
			}
		})
	}
}

// RSYS-013, RSYS-014: STAT has what devices of RoCE count of their packets and of messages of
// connection management, by the names that Linux has for them.
func TestRoCEStat(t *testing.T) {
	// A message between devices of one daemon may be copied, without a packet.
	d := daemontest.Start(t, devices(t, bothKinds[1]+",loopback=wire", bothKinds[2]+",loopback=wire"))
	c := d.Dial()
	x := daemontest.NewEnd(t, daemontest.Open(t, c, "rocep1"), 4096)
	y := daemontest.NewEnd(t, daemontest.Open(t, c, "rocep0"), 4096)
	toInit(t, y)
	y.Recv(1, 0, 100)
	daemontest.Connect(t, x, y, daemontest.Addr(t, y.Dev, false, 7471),
		func(*rdma.ConnParam) {})
	x.Send(2, 0, 100)
	x.WantOK("sent", 2, rdma.WCSend)
	y.WantOK("received", 1, rdma.WCRecv)
	got := make(map[string]map[string]any)
	stat := func() {
		rows, err := c.Stat()
		if err != nil {
			t.Fatal(err)
		}
		for _, raw := range rows {
			var row map[string]any
			if err := json.Unmarshal(raw, &row); err != nil {
				t.Fatal(err)
			}
			if dev, ok := row["dev"].(string); ok && row["qpn"] == nil {
				got[row["kind"].(string)+" "+dev] = row
			}
		}
	}
	// Packets are counted behind what they bring: the ACK behind x's completion.
	needtest.Becomes(func() bool { stat(); return got["dev rocep1"]["rcvd_pkts"] != 0.0 })
	want := map[string][]string{
		"dev rocep1": {"sends", "sent_pkts", "rcvd_pkts", "rdma_sends"},
		"dev rocep0": {"receives", "sent_pkts", "rcvd_pkts", "rdma_recvs"},
		"cm rocep1":  {"cm_tx_msgs_req", "cm_rx_msgs_rep", "cm_tx_msgs_rtu"},
		"cm rocep0":  {"cm_rx_msgs_req", "cm_tx_msgs_rep", "cm_rx_msgs_rtu"},
	}
	for row, keys := range want {
		for _, k := range keys {
			if n, ok := got[row][k].(float64); !ok || n < 1 {
				t.Errorf("%s has %s %v", row, k, got[row][k])
			}
		}
	}
	for _, k := range []string{"duplicate_request", "out_of_seq_request", "rcvd_rnr_err",
		"send_rnr_err", "rcvd_seq_err", "retry_exceeded_err", "retry_rnr_exceeded_err",
		"completer_retry_err", "send_err", "bad_pkey", "bad_qkey", "drop_unknown_qp",
		"drop_foreign_peer", "drop_bad_icrc", "drop_bad_checksum", "drop_full", "ecn_marked",
		"cnps_sent", "cnps_handled", "cm_refused"} {
		if n, ok := got["dev rocep0"][k].(float64); !ok || n != 0 {
			t.Errorf("%s is %v, want 0", k, got["dev rocep0"][k])
		}
	}
	if n := len(got["cm rocep0"]); n != 2+4*9 {
		t.Errorf("%d members of the row of messages: %v", n, got["cm rocep0"])
	}
}
