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
	"github.com/vrnic/vrnic/shm/server"
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
		if got := p.QPSize(&tt.caps, rpc.TypeRC); got.Send != tt.send || got.Recv != tt.recv {
			t.Errorf("%s of %+v: %+v, want %d and %d", tt.card, tt.caps, got, tt.send, tt.recv)
		}
	}
	mlx5, err := Find("mlx5", true)
	if err != nil {
		t.Fatal(err)
	}
	// 192 octets: 3840 of 4096
	caps := rpc.QPCaps{MaxSendWR: 20, MaxSendSGE: 8}
	if got := mlx5.QPSize(&caps, rpc.TypeUD); got != (server.QPSize{Send: 21, Inline: 124}) {
		t.Errorf("a queue pair of datagrams: %+v", got)
	}
	// A request has 1024 octets, 192 of them in front, or 64, and four before what is inline.
	for _, tt := range []struct{ typ, inline, told uint32 }{
		{rpc.TypeRC, 0, 60}, {rpc.TypeRC, 60, 60}, {rpc.TypeRC, 61, 124}, {rpc.TypeRC, 828, 828},
		{rpc.TypeRC, 829, 0}, {rpc.TypeUC, 829, 0}, {rpc.TypeUD, 956, 956}, {rpc.TypeUD, 957, 0},
		{rpc.TypeRC, 1<<32 - 1, 0},
	} {
		caps := rpc.QPCaps{MaxSendWR: 1, MaxSendSGE: 1, MaxInline: tt.inline}
		got := mlx5.QPSize(&caps, tt.typ).Inline
		if err := mlx5.CheckQP(&caps, tt.typ); got != tt.told || errors.Is(err, syscall.EINVAL) !=
			(tt.told == 0) {
			t.Errorf("%d octets inline, type %d: %d, %v, want %d", tt.inline, tt.typ, got, err, tt.told)
		}
	}
}

// A shared receive queue has the size that a card's driver makes of it, and is asked for it, or
// not; what is beyond the card is refused with its errno.
func TestSRQSizes(t *testing.T) {
	for _, tt := range []struct {
		card    string
		wr, sge uint32
		want    SRQSize
		err     error
	}{
		{"siw", 5, 2, SRQSize{WR: 5, SGE: 2}, nil},
		{"siw", 0, 1, SRQSize{}, syscall.EINVAL},
		{"siw", 327681, 1, SRQSize{}, syscall.EINVAL},
		{"siw", 1, 7, SRQSize{}, syscall.EINVAL},
		{"rxe", 5, 0, SRQSize{WR: 7, SGE: 1}, nil},
		{"rxe", 7, 3, SRQSize{WR: 7, SGE: 3}, nil},
		{"rxe", 8, 3, SRQSize{WR: 15, SGE: 3}, nil},
		{"rxe", 0, 3, SRQSize{}, syscall.EINVAL},
		{"rxe", 1, 28, SRQSize{}, syscall.EINVAL},
		{"cxgb4", 0, 1, SRQSize{WR: 15, SGE: 1}, nil},
		{"cxgb4", 16, 4, SRQSize{WR: 31, SGE: 4}, nil},
		{"cxgb4", 8190, 4, SRQSize{WR: 8191, SGE: 4}, nil},
		{"cxgb4", 8191, 4, SRQSize{}, syscall.E2BIG},
		{"cxgb4", 1, 5, SRQSize{}, syscall.E2BIG},
		{"irdma", 1, 1, SRQSize{}, syscall.EOPNOTSUPP},
		{"mlx5", 0, 0, SRQSize{WR: 0, SGE: 1, QueriedWR: 0}, nil},
		{"mlx5", 16, 1, SRQSize{WR: 31, SGE: 1, QueriedWR: 63}, nil},
		{"mlx5", 16383, 2, SRQSize{WR: 16383, SGE: 3, QueriedWR: 32767}, nil},
		{"mlx5", 16384, 16, SRQSize{WR: 32767, SGE: 31, QueriedWR: 32767}, nil},
		{"mlx5", 32767, 31, SRQSize{WR: 32767, SGE: 31, QueriedWR: 32767}, nil},
		{"mlx5", 32768, 1, SRQSize{}, syscall.EINVAL},
		{"mlx5", 1, 32, SRQSize{}, syscall.EINVAL},
		{"mlx5", 1<<32 - 1, 1<<32 - 1, SRQSize{}, syscall.EINVAL},
	} {
		p, err := Find(tt.card, tt.card == "rxe" || tt.card == "mlx5")
		if err != nil {
			t.Fatal(err)
		}
		got, err := p.SRQSize(tt.wr, tt.sge), p.CheckSRQ(tt.wr, tt.sge)
		if got != tt.want || !errors.Is(err, tt.err) {
			t.Errorf("%s of %d with %d parts: %+v, %v, want %+v, %v", tt.card, tt.wr, tt.sge, got, err,
				tt.want, tt.err)
		}
		asked := p.CheckQuerySRQ()
		if refused := tt.card == "siw" || tt.card == "cxgb4"; errors.Is(asked, syscall.EOPNOTSUPP) !=
			refused {
			t.Errorf("%s is asked: %v", tt.card, asked)
		}
	}
	if got := new(Profile).SRQSize(5, 2); got != (SRQSize{}) {
		t.Errorf("nobody's card: %+v", got)
	}
}

// What a card makes of a state that is asked for, in each of the states.
func TestMoves(t *testing.T) {
	for _, tt := range []struct {
		card string
		roce bool
		want map[uint32]string // by the state that it is in: for each that it is to be in
	}{
		// Reset Init RTR RTS SQD SQE Err: as the device, nothing, refused, error
		{"siw", false, map[uint32]string{abi.StateInit: "..0.00.", abi.StateRTS: "0000...",
			abi.StateSQD: ".......", abi.StateSQE: "000000.", abi.StateErr: "0000000"}},
		{"cxgb4", false, map[uint32]string{abi.StateInit: ".00....", abi.StateRTS: "..00...",
			abi.StateSQD: "!!0!0!!", abi.StateSQE: "!!0!!0!", abi.StateErr: "..0...0"}},
		{"irdma", false, map[uint32]string{abi.StateInit: "E00.0..", abi.StateRTS: "E!!....",
			abi.StateSQD: "E!!.0..", abi.StateSQE: "E!!....", abi.StateErr: "E!!...."}},
		{"irdma", true, map[uint32]string{abi.StateRTS: ".......", abi.StateErr: "......."}},
		{"rxe", true, map[uint32]string{abi.StateRTS: ".......", abi.StateErr: "......."}},
		{"mlx5", true, map[uint32]string{abi.StateRTS: "....!..", abi.StateErr: "....!.."}},
	} {
		p, err := Find(tt.card, tt.roce)
		if err != nil {
			t.Fatal(err)
		}
		for from, want := range tt.want {
			var got []byte
			for to := range uint32(len(want)) {
				m, err := p.CheckMove(from, to)
				if (m == MoveRefused) != errors.Is(err, syscall.EINVAL) {
					t.Errorf("%s from %d to %d: %v, %v", tt.card, from, to, m, err)
				}
				got = append(got, ".0!E"[m])
			}
			if string(got) != want {
				t.Errorf("%s, RoCE %v, from %d: %s, want %s", tt.card, tt.roce, from, got, want)
			}
		}
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
