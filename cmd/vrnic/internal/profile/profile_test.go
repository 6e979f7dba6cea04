package profile

import (
	"errors"
	"reflect"
	"strings"
	"syscall"
	"testing"

	"github.com/vrnic/vrnic/rdma"
	"github.com/vrnic/vrnic/shm/abi"
	"github.com/vrnic/vrnic/shm/rpc"
	"github.com/vrnic/vrnic/vnic"
)

// A card is found by its name for what it speaks, and else it is said which there are.
func TestFind(t *testing.T) {
	for name, on := range map[string]string{"siw": "i", "cxgb4": "i", "rxe": "r", "mlx5": "r",
		"irdma": "ir"} {
		for _, roce := range []bool{false, true} {
			p, err := Find(name, roce)
			if strings.Contains(on, map[bool]string{false: "i", true: "r"}[roce]) {
				if err != nil || p.Name != name {
					t.Errorf("%s, RoCE %v: %v, %v", name, roce, p, err)
				}
			} else if err == nil || !strings.Contains(err.Error(), "does not speak") {
				t.Errorf("%s, RoCE %v: %v, want that it does not speak that", name, roce, err)
			}
		}
	}
	if _, err := Find("abc", true); err == nil || !strings.Contains(err.Error(), "irdma, rxe") &&
		!strings.Contains(err.Error(), "rxe, irdma") {
		t.Errorf("a card that there is not: %v, want the names of those that there are", err)
	}
	if got := Names(); !reflect.DeepEqual(got, []string{"siw", "rxe", "cxgb4", "irdma", "mlx5"}) {
		t.Errorf("names %q", got)
	}
}

// No card promises what the rings have no room for, and a device keeps what its card has no figure
// of.
func TestCardsFit(t *testing.T) {
	for i := range all {
		p := &all[i]
		if p.MaxSGE > abi.MaxSGE || p.MaxSRQSGE > abi.MaxSGE || p.MaxInline > abi.MaxInline {
			t.Errorf("%s has %d parts, %d of an SRQ, %d octets inline", p.Name, p.MaxSGE, p.MaxSRQSGE,
				p.MaxInline)
		}
		own := rpc.QueryDeviceReply{MaxQP: 1, MaxInline: 2, MaxSRQ: 3, MaxMR: 4}
		r := own
		p.Describe(&r)
		if r.Card&rpc.CardFigures == 0 || p.MaxQP == 0 && r.MaxQP != own.MaxQP ||
			p.MaxQP != 0 && r.MaxQP != p.MaxQP || p.MaxInline == 0 && r.MaxInline != own.MaxInline {
			t.Errorf("%s: %+v of %+v", p.Name, r, own)
		}
		if none := r.MaxSRQ == 0; none != (p.Lacks&LacksSRQ != 0) {
			t.Errorf("%s: %d shared receive queues, lacks %b", p.Name, r.MaxSRQ, p.Lacks)
		}
		if refused := r.RefusedOps>>rdma.OpFetchAdd&1 == 1; refused != (r.AtomicCap == 0) {
			t.Errorf("%s: atomic_cap %d, refused opcodes %b", p.Name, r.AtomicCap, r.RefusedOps)
		}
	}
	own := rpc.QueryDeviceReply{MaxQP: 9}
	r := own
	new(Profile).Describe(&r)
	if r != own {
		t.Errorf("nobody's card changes %+v to %+v", own, r)
	}
}

// What is asked for above a card's limit is refused with the errno of its driver; at the limit it
// is not.
func TestChecks(t *testing.T) {
	cxgb4, err := Find("cxgb4", false)
	if err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		caps rpc.QPCaps
		want error
	}{
		{rpc.QPCaps{MaxSendWR: 8190, MaxRecvWR: 8190, MaxSendSGE: 4, MaxRecvSGE: 4, MaxInline: 280}, nil},
		{rpc.QPCaps{MaxSendWR: 8191}, syscall.E2BIG},
		{rpc.QPCaps{MaxRecvWR: 8191}, syscall.E2BIG},
		{rpc.QPCaps{MaxSendSGE: 5}, syscall.EINVAL},
		{rpc.QPCaps{MaxRecvSGE: 5}, syscall.EINVAL},
		{rpc.QPCaps{MaxInline: 281}, syscall.EINVAL},
	} {
		if err := cxgb4.CheckQP(&tt.caps, rpc.TypeRC); !errors.Is(err, tt.want) {
			t.Errorf("%+v: %v, want %v", tt.caps, err, tt.want)
		}
		if err := new(Profile).CheckQP(&tt.caps, rpc.TypeRC); err != nil {
			t.Errorf("nobody's card refuses %+v: %v", tt.caps, err)
		}
	}
	for _, depth := range []uint32{0, 16, 65519} {
		if err := cxgb4.CheckResizeCQ(depth); !errors.Is(err, syscall.EOPNOTSUPP) {
			t.Errorf("a CQ of cxgb4 is made to hold %d: %v", depth, err)
		}
	}
	irdma, err := Find("irdma", true)
	if err != nil {
		t.Fatal(err)
	}
	if err := irdma.CheckResizeCQ(1048574); err != nil {
		t.Errorf("a CQ of irdma that is made longer: %v", err)
	}
	if err := irdma.CheckResizeCQ(1048575); !errors.Is(err, syscall.EINVAL) {
		t.Errorf("a CQ of irdma that is made too long: %v", err)
	}
	if err := irdma.CheckSRQ(1, 1); !errors.Is(err, syscall.EOPNOTSUPP) {
		t.Errorf("an SRQ of irdma: %v", err)
	}
	if err := irdma.CheckCQ(1048575); !errors.Is(err, syscall.EINVAL) {
		t.Errorf("a CQ of irdma: %v", err)
	}
	if err := irdma.CheckCQ(1048574); err != nil {
		t.Errorf("the largest CQ of irdma: %v", err)
	}
}

// A queue pair of a card has the depths that its driver makes of what is asked for.
func TestDepths(t *testing.T) {
	for _, tt := range []struct {
		card       string
		caps       rpc.QPCaps
		send, recv uint32
	}{
		{"cxgb4", rpc.QPCaps{MaxSendWR: 1, MaxRecvWR: 100}, 7, 100},
		{"cxgb4", rpc.QPCaps{MaxSendWR: 8190, MaxRecvWR: 7}, 8190, 7},
		{"cxgb4", rpc.QPCaps{MaxSendWR: 8191, MaxRecvWR: 7}, 0, 0}, // which is refused
		// 16 of two units and 258 are 290 of 512; 128 of four and 258 are 770 of 1024
		{"irdma", rpc.QPCaps{MaxSendWR: 16, MaxRecvWR: 16, MaxSendSGE: 1, MaxRecvSGE: 1}, 127, 31},
		{"irdma", rpc.QPCaps{MaxSendWR: 128, MaxRecvWR: 1, MaxSendSGE: 3, MaxRecvSGE: 2}, 191, 7},
		{"irdma", rpc.QPCaps{MaxSendWR: 1, MaxRecvWR: 1, MaxSendSGE: 1, MaxRecvSGE: 6,
			MaxInline: 101}, 63, 7},
		{"irdma", rpc.QPCaps{MaxSendWR: 8127, MaxRecvWR: 8127, MaxSendSGE: 6, MaxRecvSGE: 6}, 8127,
			8191},
		{"siw", rpc.QPCaps{MaxSendWR: 100, MaxRecvWR: 100}, 0, 0},
		// 256 octets each, up to four parts
		{"mlx5", rpc.QPCaps{MaxSendWR: 100, MaxRecvWR: 100, MaxSendSGE: 4}, 128, 0},
		{"mlx5", rpc.QPCaps{MaxSendWR: 8192, MaxSendSGE: 1, MaxInline: 60}, 8192, 0},
		{"mlx5", rpc.QPCaps{MaxSendWR: 8193, MaxSendSGE: 1}, 0, 0}, // which is refused
		// 320: 5120 of 8192 octets; 704: 7040; 448 of those inline: 4480
		{"mlx5", rpc.QPCaps{MaxSendWR: 16, MaxSendSGE: 6}, 25, 0},
		{"mlx5", rpc.QPCaps{MaxSendWR: 10, MaxSendSGE: 30}, 11, 0},
		{"mlx5", rpc.QPCaps{MaxSendWR: 10, MaxSendSGE: 1, MaxInline: 200}, 18, 0},
	} {
		p, err := Find(tt.card, tt.card == "mlx5")
		if err != nil {
			t.Fatal(err)
		}
		if send, recv := p.QPDepths(&tt.caps, rpc.TypeRC); send != tt.send || recv != tt.recv {
			t.Errorf("%s of %+v: %d and %d, want %d and %d", tt.card, tt.caps, send, recv, tt.send,
				tt.recv)
		}
	}
	mlx5, err := Find("mlx5", true)
	if err != nil {
		t.Fatal(err)
	}
	// 192 octets: 3840 of 4096
	caps := rpc.QPCaps{MaxSendWR: 20, MaxSendSGE: 8}
	if send, recv := mlx5.QPDepths(&caps, rpc.TypeUD); send != 21 || recv != 0 {
		t.Errorf("a queue pair of datagrams: %d and %d", send, recv)
	}
}

// So has a completion queue, and one that is refused has none.
func TestCQDepths(t *testing.T) {
	for _, tt := range []struct {
		card        string
		asked, want uint32
	}{
		{"siw", 100, 0}, {"cxgb4", 1, 14}, {"cxgb4", 14, 14}, {"cxgb4", 15, 30}, {"irdma", 100, 100},
		{"rxe", 1, 1}, {"rxe", 2, 3}, {"rxe", 32767, 32767}, {"rxe", 32768, 0},
		{"mlx5", 16, 31}, {"mlx5", 4194303, 4194303}, {"mlx5", 4194304, 0},
	} {
		p, err := Find(tt.card, tt.card == "rxe" || tt.card == "mlx5")
		if err != nil {
			t.Fatal(err)
		}
		if got := p.CQDepth(tt.asked); got != tt.want {
			t.Errorf("%s of %d: %d, want %d", tt.card, tt.asked, got, tt.want)
		}
	}
}

// A card bounds what a session has, and gives it no more.
func TestBound(t *testing.T) {
	irdma, err := Find("irdma", false)
	if err != nil {
		t.Fatal(err)
	}
	got := irdma.Bound(vnic.Limits{QP: 100000, CQ: 10})
	if got.QP != 4092 || got.CQ != 10 || got.IRD != 8 || got.SRQ != 0 {
		t.Errorf("%+v", got)
	}
	mlx5, err := Find("mlx5", true)
	if err != nil {
		t.Fatal(err)
	}
	got = mlx5.Bound(vnic.Limits{MR: 7})
	if got.AH != 0 || got.MRLen != 0 || got.MR != 7 || got.ORD != 16 {
		t.Errorf("%+v", got)
	}
}
