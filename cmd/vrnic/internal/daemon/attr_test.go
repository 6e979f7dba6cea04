package daemon_test

import (
	"encoding/json"
	"errors"
	"net/netip"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/vrnic/vrnic/cmd/vrnic/internal/daemon/daemontest"
	"github.com/vrnic/vrnic/internal/needtest"
	"github.com/vrnic/vrnic/rdma"
	"github.com/vrnic/vrnic/shm/abi"
	"github.com/vrnic/vrnic/shm/rpc"
	"github.com/vrnic/vrnic/shm/shmtest"
)

// CM_INIT_QP_ATTR as rdma_init_qp_attr on an RNIC: INIT with the rights of a peer, and nothing for
// the states that connecting enters, which MODIFY_QP refuses (V9). An id that is on no device has
// no answer.
func TestInitQPAttr(t *testing.T) {
	d := daemontest.Start(t)
	r := shmtest.NewRaw(t, d.Socket()).Hello()
	ch, _ := r.CM()
	ask := func(id, state uint32) (rpc.CMInitQPAttrReply, error) {
		var a rpc.CMInitQPAttrReply
		_, err := r.Call(rpc.OpCMInitQPAttr, &rpc.CMInitQPAttrRequest{ID: id, State: state}, &a)
		return a, err
	}
	bound := r.ID(ch)
	if _, err := ask(bound, abi.StateInit); !errors.Is(err, syscall.EINVAL) {
		t.Errorf("before it is bound: %v", err)
	}
	r.Must(rpc.OpCMBind, &rpc.CMBindRequest{ID: bound,
		Addr: rpc.MakeSockAddr(netip.MustParseAddrPort("10.77.0.2:0"))}, nil)
	for _, tt := range []struct {
		state uint32
		want  rpc.CMInitQPAttrReply
	}{
		// IBV_QP_STATE | IBV_QP_ACCESS_FLAGS
		{1, rpc.CMInitQPAttrReply{Mask: 1 | 8, State: 1, Access: 2 | 4, Port: 1}},
		{2, rpc.CMInitQPAttrReply{State: 2, Port: 1}},
		{3, rpc.CMInitQPAttrReply{State: 3, Port: 1}},
	} {
		if a, err := ask(bound, tt.state); a != tt.want || err != nil {
			t.Errorf("state %d: %+v, %v; want %+v", tt.state, a, err, tt.want)
		}
	}
	for _, state := range []uint32{0, 4, 5, 6, 7, 1 << 31} {
		if _, err := ask(bound, state); !errors.Is(err, syscall.EINVAL) {
			t.Errorf("state %d: %v", state, err)
		}
	}
	wild := r.ID(ch)
	r.Must(rpc.OpCMBind, &rpc.CMBindRequest{ID: wild,
		Addr: rpc.MakeSockAddr(netip.MustParseAddrPort("0.0.0.0:0"))}, nil)
	if _, err := ask(wild, abi.StateInit); !errors.Is(err, syscall.EINVAL) {
		t.Errorf("bound to all devices: %v", err)
	}
	e := newRawEnd(t, d, 4096)
	// what a mask of 0 leads to, and what RTR would
	for mask, want := range map[uint32]error{0: nil, rpc.ModifyQPState: syscall.EINVAL} {
		req := &rpc.ModifyQPRequest{QP: e.qp.CreateQPReply.QP, Mask: mask, State: mask * abi.StateRTR}
		if _, err := e.Call(rpc.OpModifyQP, req, nil); !errors.Is(err, want) {
			t.Errorf("MODIFY_QP with mask %d: %v, want %v", mask, err, want)
		}
	}
}

// A listener and a connection go to another channel in the midst of things, as `ucmatose -m` has
// it: the request that waited comes there, and so does the end of the connection.
func TestMigrate(t *testing.T) {
	d := daemontest.Start(t)
	peer := daemontest.NewEnd(t, daemontest.Open(t, d.Dial(), "vrnic1"), 4096)
	e := newRawEnd(t, d, 4096)
	from, _ := e.CM()
	to, _ := e.CM()
	lis := e.ID(from)
	addr := netip.MustParseAddrPort("10.77.0.2:7000")
	e.Must(rpc.OpCMBind, &rpc.CMBindRequest{ID: lis, Addr: rpc.MakeSockAddr(addr)}, nil)
	e.Must(rpc.OpCMListen, &rpc.CMListenRequest{ID: lis}, nil)
	connected := make(chan error, 1)
	go func() {
		var err error
		peer.Conn, err = peer.Dev.Connect(t.Context(), peer.QP, addr, rdma.ConnParam{
			PrivateData: []byte("for you")})
		connected <- err
	}()
	c := d.Dial()
	if !needtest.Becomes(func() bool {
		rows, err := c.List("cm")
		return err == nil && slices.ContainsFunc(rows,
			func(r json.RawMessage) bool { return strings.Contains(string(r), `"state":"REQUEST"`) })
	}) {
		t.Fatal("no connection request")
	}
	// It waits by now, or is just about to; in either case it ends up on the new channel.
	var r rpc.CMMigrateReply
	e.Must(rpc.OpCMMigrate, &rpc.CMMigrateRequest{ID: lis, Chan: to}, &r)
	ev := e.WantEvent(to, rpc.EvConnectRequest)
	e.Must(rpc.OpCMMigrate, &rpc.CMMigrateRequest{ID: ev.Child, Chan: from}, &r)
	e.Must(rpc.OpCMAccept, &rpc.CMConnectRequest{ID: ev.Child, PD: e.pd, Param: rpc.ConnParam{
		QPN: e.qp.QPN, IRD: rpc.ReadsDefault, ORD: rpc.ReadsDefault}}, nil)
	if ev := e.WantEvent(from, rpc.EvEstablished); ev.Param.PrivateLen != 7 {
		t.Errorf("%+v", ev.Param.PrivateLen)
	}
	if err := <-connected; err != nil {
		t.Fatal(err)
	}
	e.Must(rpc.OpCMMigrate, &rpc.CMMigrateRequest{ID: ev.Child, Chan: to}, &r)
	if err := peer.Conn.Disconnect(); err != nil {
		t.Fatal(err)
	}
	e.WantEvent(to, rpc.EvDisconnected)
}
