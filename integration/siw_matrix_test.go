package integration

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/vrnic/vrnic/integration/peer"
	"github.com/vrnic/vrnic/rdma"
)

// A siwSetting is how siw is built and what vrnic's programs ask for. Pairs are for siw and for
// vrnic as the initiator.
type siwSetting struct {
	name   string
	params []string // of siw; none: as it stands in the source
	mpa    rdma.MPAParam
	only   []initiator // who it means anything for; nil: both
	crc    [2]bool     // CRCs are used
	rev    [2]float64
	rtr    [2]any       // ready-to-receive message
	first  [2]bool      // the responder may speak first
	refuse [2]string    // there is no connection: what the initiator is told
	reads  [2][2]string // what becomes of a Read by siw and by vrnic; empty: it succeeds
}

const asBuilt = "as built"

var (
	revision2 = [2]float64{2, 2}
	crcBoth   = [2]bool{true, true}
	// vrnic as the initiator asks for the peer-to-peer model.
	writeByVrnic = [2]any{nil, "write"}
	vrnicFirst   = [2]bool{false, true}
)

var siwSettings = []siwSetting{
	{name: asBuilt, crc: crcBoth, rev: revision2, rtr: writeByVrnic, first: vrnicFirst},
	{name: "as built; vrnic without CRC", mpa: rdma.MPAParam{CRC: rdma.CRCOff}, rev: revision2, rtr: writeByVrnic, first: vrnicFirst},
	{name: "as built; vrnic requires CRC", mpa: rdma.MPAParam{CRC: rdma.CRCRequired}, crc: crcBoth, rev: revision2, rtr: writeByVrnic, first: vrnicFirst},
	{name: "as built; vrnic client-server", mpa: rdma.MPAParam{ClientServer: true}, only: []initiator{fromVrnic}, crc: crcBoth, rev: revision2},
	{name: "as built; vrnic offers RTR by Write", mpa: rdma.MPAParam{RTR: rdma.RTRWrite}, only: []initiator{fromVrnic}, crc: crcBoth, rev: revision2, rtr: writeByVrnic, first: vrnicFirst},
	{name: "as built; vrnic offers RTR by Read", mpa: rdma.MPAParam{RTR: rdma.RTRRead}, only: []initiator{fromVrnic}, crc: crcBoth, rev: revision2, rtr: [2]any{nil, "read"}, first: vrnicFirst},
	{name: "as built; vrnic asks for revision 1", mpa: rdma.MPAParam{Revision: 1}, only: []initiator{fromVrnic}, crc: crcBoth, rev: [2]float64{2, 1}},
	{name: "as built; vrnic's segments of 16384", mpa: rdma.MPAParam{MULPDU: 16384}, crc: crcBoth, rev: revision2, rtr: writeByVrnic, first: vrnicFirst},
	{name: "as built; vrnic's segments of 512", mpa: rdma.MPAParam{MULPDU: 512}, crc: crcBoth, rev: revision2, rtr: writeByVrnic, first: vrnicFirst},
	{name: "as built; vrnic wants markers", mpa: rdma.MPAParam{Markers: true}, refuse: [2]string{"x", "x"}},
	{name: "CRC required", params: []string{"mpa_crc_required=1"}, crc: crcBoth, rev: revision2, rtr: writeByVrnic, first: vrnicFirst},
	{name: "CRC required; vrnic without CRC", params: []string{"mpa_crc_required=1"}, mpa: rdma.MPAParam{CRC: rdma.CRCOff}, crc: [2]bool{true, false}, rev: revision2, rtr: writeByVrnic, first: vrnicFirst},
	{name: "CRC refused", params: []string{"mpa_crc_strict=1"}, refuse: [2]string{"x", "x"}},
	{name: "CRC refused; vrnic without CRC", params: []string{"mpa_crc_strict=1"}, mpa: rdma.MPAParam{CRC: rdma.CRCOff}, rev: revision2, rtr: writeByVrnic, first: vrnicFirst},
	{name: "revision 1", params: []string{"mpa_version=1"}, crc: crcBoth, rev: [2]float64{1, 2}, rtr: writeByVrnic, first: vrnicFirst},
	{name: "peer-to-peer, RTR by Write", params: []string{"peer_to_peer=1", "rtr_type=0x8000"}, crc: crcBoth, rev: revision2, rtr: [2]any{"write", "write"}, first: [2]bool{true, true}},
	{name: "peer-to-peer, RTR by Read", params: []string{"peer_to_peer=1", "rtr_type=0x4000"}, crc: crcBoth, rev: revision2, rtr: [2]any{"read", "write"}, first: [2]bool{true, true}},
	{name: "peer-to-peer, RTR by either", params: []string{"peer_to_peer=1", "rtr_type=0xc000"}, crc: crcBoth, rev: revision2, rtr: [2]any{"write", "write"}, first: [2]bool{true, true}},
	{name: "peer-to-peer, no RTR", params: []string{"peer_to_peer=1", "rtr_type=0"}, crc: crcBoth, rev: revision2, rtr: writeByVrnic, first: vrnicFirst},
	{name: "GSO tried", params: []string{"try_gso=1"}, crc: crcBoth, rev: revision2, rtr: writeByVrnic, first: vrnicFirst},
}

// A siwOp is a column of the matrix.
type siwOp struct {
	name  string
	reads bool // needs RDMA Reads
	run   func(ctx context.Context, m *siwMatrix, k plan) (retries int)
}

// A siwMatrix is the table that a test makes.
type siwMatrix struct {
	*siwBench
	set   *siwSetting
	ops   []string
	rows  []*matrixRow
	begin time.Time
}

type matrixRow struct {
	set    string
	from   initiator
	family family
	cells  map[string]string // by name of operation
}

// onPair is an operation on a connection of its own, which the initiator ends.
func onPair(f func(p *pair)) func(context.Context, *siwMatrix, plan) int {
	return func(ctx context.Context, m *siwMatrix, k plan) int {
		p, retries := m.connect(ctx, k)
		m.checkQP(p)
		f(p)
		initiator, _ := p.ends()
		p.finish(initiator)
		p.free()
		return retries
	}
}

// checkQP wants what the set-up has agreed on as the setting says.
func (m *siwMatrix) checkQP(p *pair) {
	for key, want := range map[string]any{"crc": m.set.crc[p.from], "mpa": m.set.rev[p.from], "rtr": m.set.rtr[p.from], "transport": "tcp"} {
		if p.qp[key] != want {
			failf("%s of vrnic's QP is %v, want %v", key, p.qp[key], want)
		}
	}
}

var siwBaseOps = []siwOp{
	{"sends", false, onPair(bothWays(sends))},
	{"writes", false, onPair(bothWays(writes))},
	{"reads", true, func(ctx context.Context, m *siwMatrix, k plan) int {
		why := m.set.reads[k.from]
		return onPair(func(p *pair) {
			for i, x := range p.sides() {
				if why[0] == "" {
					_ = i
				}
				reads(p, x, p.sides()[1-i])
			}
		})(ctx, m, k)
	}},
	{"mixed", true, func(ctx context.Context, m *siwMatrix, k plan) int {
		why := m.set.reads[k.from]
		return onPair(mixed([2]bool{why[0] == "", why[1] == ""}))(ctx, m, k)
	}},
	{"invalidate", false, onPair(bothWays(invalidates))},
}

var siwMoreOps = []siwOp{
	{"private data", false, func(ctx context.Context, m *siwMatrix, k plan) int { return privateData(ctx, m.siwBench, k) }},
	{"reject", false, func(ctx context.Context, m *siwMatrix, k plan) int { return rejects(ctx, m.siwBench, k) }},
	{"endings", false, func(ctx context.Context, m *siwMatrix, k plan) int { return endings(ctx, m.siwBench, k) }},
	{"deep", true, func(ctx context.Context, m *siwMatrix, k plan) (retries int) {
		for _, n := range []uint16{1, 4, 16, 128} {
			k.ird, k.ord = n, n
			retries += onPair(bothWays(deep))(ctx, m, k)
		}
		return retries
	}},
}

// row runs ops on connections of one kind and puts a line into the table.
func (m *siwMatrix) row(t *testing.T, ctx context.Context, from initiator, f family, ops []siwOp) {
	row := &matrixRow{set: m.set.name, from: from, family: f, cells: make(map[string]string)}
	m.rows = append(m.rows, row)
	k := plan{from: from, family: f, mpa: m.set.mpa, ird: 16, ord: 16, responderFirst: m.set.first[from]}
	for _, op := range ops {
		if !slices.Contains(m.ops, op.name) {
			m.ops = append(m.ops, op.name)
		}
		t.Run(fmt.Sprintf("%s/%v initiates/%v/%s", m.set.name, from, f, op.name), func(t *testing.T) {
			row.cells[op.name] = "failed"
			begin := time.Now()
			var retries int
			if err := guarded(func() { retries = op.run(ctx, m, k) }); err != nil {
				t.Error(err)
				if err := m.restart(ctx); err != nil {
					t.Fatal(err)
				}
				return
			}
			row.cells[op.name] = fmt.Sprintf("%.2f", time.Since(begin).Seconds())
			if retries > 0 {
				row.cells[op.name] += fmt.Sprintf(" (%d)", retries)
			}
		})
	}
}

// table is the matrix in Markdown.
func (m *siwMatrix) table(first string) string {
	var s strings.Builder
	fmt.Fprintf(&s, "| %s | initiator | |", first)
	for _, op := range m.ops {
		fmt.Fprintf(&s, " %s |", op)
	}
	s.WriteString("\n|---|---|---|" + strings.Repeat("--:|", len(m.ops)) + "\n")
	for _, r := range m.rows {
		fmt.Fprintf(&s, "| %s | %v | %v |", r.set, r.from, r.family)
		for _, op := range m.ops {
			fmt.Fprintf(&s, " %s |", r.cells[op])
		}
		s.WriteString("\n")
	}
	return s.String()
}

// TestSiwMatrix is every operation between vrnic and siw in every setting.
func TestSiwMatrix(t *testing.T) {
	ctx, cancel := context.WithTimeout(context.Background(), 15*time.Minute)
	defer cancel()
	img := siwImage(t, ctx)
	m := &siwMatrix{siwBench: newSiwBench(t, ctx, img, true)}
	for i := range siwSettings {
		m.set = &siwSettings[i]
		if err := m.reload(ctx, m.set.params...); err != nil {
			t.Fatal(err)
		}
		ops := siwBaseOps
		if m.set.name == asBuilt {
			ops = slices.Concat(siwBaseOps, siwMoreOps)
		}
		for _, from := range []initiator{fromSiw, fromVrnic} {
			if m.set.only != nil && !slices.Contains(m.set.only, from) {
				continue
			}
			for f := range family(2) {
				m.row(t, ctx, from, f, ops)
			}
		}
	}
	m.stop()
	t.Logf("\n%s", m.table("setting"))
	_ = img
	_ = os.Stdout
	_ = peer.Config{}
}
