package integration

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/vrnic/vrnic/internal/needtest"
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
	rtr    [2]any    // ready-to-receive message
	first  [2]bool   // the responder may speak first
	refuse [2]string // there is no connection: what the initiator is told
}

const asBuilt = "as built"

var (
	revision2 = [2]float64{2, 2}
	crcBoth   = [2]bool{true, true}
	// vrnic as the initiator asks for the peer-to-peer model.
	writeByVrnic = [2]any{nil, "write"}
	vrnicFirst   = [2]bool{false, true}
	// Siw refuses what it has not: ECONNREFUSED as the initiator, a reply with R as the responder.
	notWanted = [2]string{"REJECTED status -111", "connection rejected"}
)

var siwSettings = []siwSetting{
	{name: asBuilt, crc: crcBoth, rev: revision2, rtr: writeByVrnic, first: vrnicFirst},
	{name: "as built; vrnic without CRC", mpa: rdma.MPAParam{CRC: rdma.CRCOff}, rev: revision2,
		rtr: writeByVrnic, first: vrnicFirst},
	{name: "as built; vrnic requires CRC", mpa: rdma.MPAParam{CRC: rdma.CRCRequired}, crc: crcBoth,
		rev: revision2, rtr: writeByVrnic, first: vrnicFirst},
	{name: "as built; vrnic client-server", mpa: rdma.MPAParam{ClientServer: true}, only: []initiator{
		fromVrnic}, crc: crcBoth, rev: revision2},
	{name: "as built; vrnic offers RTR by Write", mpa: rdma.MPAParam{RTR: rdma.RTRWrite},
		only: []initiator{fromVrnic}, crc: crcBoth, rev: revision2, rtr: writeByVrnic, first: vrnicFirst},
	{name: "as built; vrnic offers RTR by Read", mpa: rdma.MPAParam{RTR: rdma.RTRRead},
		only: []initiator{fromVrnic}, crc: crcBoth, rev: revision2, rtr: [2]any{nil, "read"},
		first: vrnicFirst},
	{name: "as built; vrnic asks for revision 1", mpa: rdma.MPAParam{Revision: 1}, only: []initiator{
		fromVrnic}, crc: crcBoth, rev: [2]float64{2, 1}},
	{name: "as built; vrnic's segments of 16384", mpa: rdma.MPAParam{MULPDU: 16384}, crc: crcBoth,
		rev: revision2, rtr: writeByVrnic, first: vrnicFirst},
	{name: "as built; vrnic's segments of 512", mpa: rdma.MPAParam{MULPDU: 512}, crc: crcBoth,
		rev: revision2, rtr: writeByVrnic, first: vrnicFirst},
	{name: "as built; vrnic wants markers", mpa: rdma.MPAParam{Markers: true}, refuse: notWanted},
	{name: "CRC required", params: []string{"mpa_crc_required=1"}, crc: crcBoth, rev: revision2,
		rtr: writeByVrnic, first: vrnicFirst},
	{name: "CRC required; vrnic without CRC", params: []string{"mpa_crc_required=1"},
		mpa: rdma.MPAParam{CRC: rdma.CRCOff}, crc: [2]bool{true, false}, rev: revision2,
		rtr: writeByVrnic, first: vrnicFirst},
	{name: "CRC refused", params: []string{"mpa_crc_strict=1"}, refuse: notWanted},
	{name: "CRC refused; vrnic without CRC", params: []string{"mpa_crc_strict=1"}, mpa: rdma.MPAParam{
		CRC: rdma.CRCOff}, rev: revision2, rtr: writeByVrnic, first: vrnicFirst},
	{name: "revision 1", params: []string{"mpa_version=1"}, crc: crcBoth, rev: [2]float64{1, 2},
		rtr: writeByVrnic, first: vrnicFirst},
	{name: "peer-to-peer, RTR by Write", params: []string{"peer_to_peer=1", "rtr_type=0x8000"},
		crc: crcBoth, rev: revision2, rtr: [2]any{"write", "write"}, first: [2]bool{true, true}},
	{name: "peer-to-peer, RTR by Read", params: []string{"peer_to_peer=1", "rtr_type=0x4000"},
		crc: crcBoth, rev: revision2, rtr: [2]any{"read", "write"}, first: [2]bool{true, true}},
	{name: "peer-to-peer, RTR by either", params: []string{"peer_to_peer=1", "rtr_type=0xc000"},
		crc: crcBoth, rev: revision2, rtr: [2]any{"write+read", "write"}, first: [2]bool{true, true}},
	{name: "peer-to-peer, no RTR", params: []string{"peer_to_peer=1", "rtr_type=0"}, crc: crcBoth,
		rev: revision2, rtr: [2]any{"write+read+send", "write"}, first: vrnicFirst},
	{name: "GSO tried", params: []string{"try_gso=1"}, crc: crcBoth, rev: revision2, rtr: writeByVrnic,
		first: vrnicFirst},
}

// A siwOp is a column of the matrix.
type siwOp struct {
	name string
	run  func(ctx context.Context, m *siwMatrix, k plan) (retries int)
}

// A siwMatrix is the table that a test makes.
type siwMatrix struct {
	*siwBench
	quick bool
	set   *siwSetting
	ops   []string
	rows  []*matrixRow
	terms []siwTerm
	crc   map[uint16]bool // of the connection with this port of the server
}

type matrixRow struct {
	set    string
	from   initiator
	family family
	cells  map[string]*siwCell // by name of operation
}

// onPair is an operation on a connection of its own, which the initiator ends.
func onPair(f func(p *pair)) func(context.Context, *siwMatrix, plan) int {
	return func(ctx context.Context, m *siwMatrix, k plan) int {
		p, retries := m.open(ctx, k)
		must(p.explained(guarded(func() { f(p) })))
		initiator, _ := p.ends()
		p.finish(initiator)
		p.free()
		return retries
	}
}

// open connects and looks at what the set-up has agreed on.
func (m *siwMatrix) open(ctx context.Context, k plan) (p *pair, retries int) {
	p, retries = m.connect(ctx, k)
	m.checkQP(p)
	return p, retries
}

// checkQP wants what the set-up has agreed on as the setting says.
func (m *siwMatrix) checkQP(p *pair) {
	m.crc[p.port] = m.set.crc[p.from]
	for key, want := range map[string]any{"crc": m.set.crc[p.from], "mpa": m.set.rev[p.from],
		"rtr": m.set.rtr[p.from], "transport": "tcp"} {
		if p.qp[key] != want {
			failf("%s of vrnic's QP is %v, want %v", key, p.qp[key], want)
		}
	}
}

var siwBaseOps = []siwOp{
	{"sends", onPair(bothWays(sends))},
	{"writes", onPair(bothWays(writes))},
	{"reads", onPair(bothWays(reads))},
	{"mixed", onPair(mixed)},
	{"invalidate", onPair(bothWays(invalidates))},
}

// siwMoreOps make several connections each.
var siwMoreOps = []siwOp{
	{"deep Reads", func(ctx context.Context, m *siwMatrix, k plan) (retries int) {
		for _, n := range []uint16{1, 4, 16, 128} {
			k.ird, k.ord = n, n
			retries += onPair(bothWays(deep))(ctx, m, k)
		}
		return retries
	}},
	{"private data", privateData},
	{"reject", rejects},
	{"endings", endings},
}

// refused wants no connection, for the reason that the setting says.
func refused(ctx context.Context, m *siwMatrix, k plan) int {
	m.port++
	p := &pair{plan: k, b: m.siwBench, port: m.port}
	p.newSides(ctx)
	err := p.attempt(ctx)
	must(guarded(p.free))
	if want := m.set.refuse[k.from]; err == nil || !strings.Contains(err.Error(), want) {
		failf("the connection ended with %v, want %q", err, want)
	}
	return 0
}

// row runs ops on connections of one kind and puts a line into the table.
func (m *siwMatrix) row(t *testing.T, ctx context.Context, from initiator, f family, ops []siwOp) {
	row := &matrixRow{set: m.set.name, from: from, family: f, cells: make(map[string]*siwCell)}
	m.rows = append(m.rows, row)
	k := plan{from: from, family: f, mpa: m.set.mpa, ird: 16, ord: 16,
		responderFirst: m.set.first[from]}
	for _, op := range ops {
		if !slices.Contains(m.ops, op.name) {
			m.ops = append(m.ops, op.name)
		}
		t.Run(fmt.Sprintf("%s/%v initiates/%v/%s", m.set.name, from, f, op.name), func(t *testing.T) {
			c := &siwCell{failed: true, runs: 1}
			row.cells[op.name] = c
			begin := time.Now()
			err := guarded(func() { c.retries = op.run(ctx, m, k) })
			c.took = time.Since(begin)
			if c.failed = err != nil; !c.failed {
				return
			}
			said, _ := m.g.Kmsg(ctx) // the guest may be what has failed
			t.Errorf("%v\nvrnic's QPs: %v\nthe guest's kernel: %s", err, m.d.show("qp"), said)
			if err := m.restart(ctx); err != nil {
				t.Fatal(err)
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
			fmt.Fprintf(&s, " %v |", r.cells[op])
		}
		s.WriteString("\n")
	}
	return s.String()
}

// TestSiwMatrix has every operation between vrnic and siw in every setting.
func TestSiwMatrix(t *testing.T) {
	ctx, cancel := context.WithTimeout(context.Background(), 15*time.Minute)
	defer cancel()
	m := newSiwMatrix(t, ctx, true)
	for i := range siwSettings {
		m.set = &siwSettings[i]
		if m.quick && m.set.name != asBuilt {
			continue
		}
		if err := m.reload(ctx, m.set.params...); err != nil {
			t.Fatal(err)
		}
		ops := siwBaseOps
		if m.set.name == asBuilt {
			ops = slices.Concat(siwBaseOps, siwMoreOps)
		}
		if m.set.refuse != [2]string{} {
			ops = []siwOp{{"refused", refused}}
		}
		m.rowsOf(t, ctx, ops)
	}
	m.stop()
	reportSiw(t, "Operations in every setting", m.table("siw"))
	t.Run("wire", func(t *testing.T) {
		checkSiwWire(t, m.pcap, m.crc)
		checkTerminates(t, m.pcap, m.terms)
	})
}

// siwImpairments are what netem does, in the words of tc-netem(8), to the frames of both ends.
var siwImpairments = []struct{ name, netem string }{
	{"loss of 1 %", "loss 1%"},
	{"loss of 5 %", "loss 5%"},
	{"delay of 10 ± 3 ms", "delay 10ms 3ms"},
	{"reordering of 25 %", "delay 5ms reorder 75% 50%"},
	{"duplicates of 10 %", "duplicate 10%"},
	{"some of each", "delay 5ms 2ms loss 2% duplicate 2% reorder 90%"},
}

// TestSiwNetem has the operations over a wire that loses, delays, reorders and doubles
// frames in both directions. The guest's kernel does that: netem for what it sends, and for what it
// receives on the way through an ifb device.
func TestSiwNetem(t *testing.T) {
	ctx, cancel := context.WithTimeout(context.Background(), 15*time.Minute)
	defer cancel()
	if siwSmoke() {
		needtest.Skip(t, "takes minutes: run `make interop`")
	}
	m := newSiwMatrix(t, ctx, true)
	ops := slices.Concat(siwBaseOps, []siwOp{{"1 MiB", onPair(bothWays(large(1 << 20)))}})
	for _, imp := range siwImpairments {
		set := siwSettings[0]
		set.name = imp.name
		m.set = &set
		if err := m.g.Netem(ctx, imp.netem, imp.netem); err != nil {
			t.Fatal(err)
		}
		m.rowsOf(t, ctx, ops)
	}
	m.stop()
	reportSiw(t, "Impairments", m.table("on the wire"))
}

// TestSiwLarge moves 64 MiB by one request. QEMU does not record it.
func TestSiwLarge(t *testing.T) {
	ctx, cancel := context.WithTimeout(context.Background(), 15*time.Minute)
	defer cancel()
	if siwSmoke() {
		needtest.Skip(t, "takes minutes: run `make interop`")
	}
	m := newSiwMatrix(t, ctx, false)
	const size = 64 << 20
	var ops []siwOp
	for i, by := range []initiator{fromSiw, fromVrnic} {
		for _, op := range []rdma.Opcode{rdma.OpSend, rdma.OpWrite, rdma.OpRead} {
			ops = append(ops, siwOp{fmt.Sprintf("%v by %v", op, by), onPair(func(p *pair) {
				transfer(p, op, size, p.sides()[i], p.sides()[1-i])
			})})
		}
	}
	m.set = &siwSettings[0]
	m.rowsOf(t, ctx, ops)
	m.stop()
	reportSiw(t, "64 MiB in one request", m.table("siw"))
}

// TestSiwTerminate has either end do what the other must not allow.
func TestSiwTerminate(t *testing.T) {
	ctx, cancel := context.WithTimeout(context.Background(), 15*time.Minute)
	defer cancel()
	m := newSiwMatrix(t, ctx, true)
	m.set = &siwSettings[0]
	var ops []siwOp
	for i := range siwFaults {
		f := &siwFaults[i]
		for _, at := range []initiator{fromSiw, fromVrnic} {
			ops = append(ops, siwOp{faultName(f, at), func(ctx context.Context, m *siwMatrix, k plan) int {
				return m.terminate(ctx, k, f, at)
			}})
		}
	}
	m.rowsOf(t, ctx, ops)
	m.stop()
	reportSiw(t, "Faults and Terminates", m.faultTable())
	t.Run("wire", func(t *testing.T) {
		checkSiwWire(t, m.pcap, m.crc)
		checkTerminates(t, m.pcap, m.terms)
	})
}

// iwcmBug is what the guest's kernel says when siw tells iw_cm of the end of a connection that it
// has accepted and not established: its responder waits for a ready-to-receive message, and the
// peer goes.
const iwcmBug = "kernel BUG at drivers/infiniband/core/iwcm.c"

// TestSiwBug offers siw a ready-to-receive message by Send only. Siw confirms one by Write, which
// nobody has offered, so that vrnic ends the connection (RFC 6581, section 9.2), and this kernel
// stops. A kernel that does not is fine too: what vrnic does is the same.
func TestSiwBug(t *testing.T) {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
	defer cancel()
	if siwSmoke() {
		needtest.Skip(t, "ends its guest: run `make interop`")
	}
	m := newSiwMatrix(t, ctx, false)
	m.port++
	p := &pair{plan: plan{from: fromVrnic, mpa: rdma.MPAParam{RTR: rdma.RTRSend}, ird: 16, ord: 16},
		b: m.siwBench, port: m.port}
	p.newSides(ctx)
	p.s.do("listen %s %d", guestAddrs[0], p.port)
	result := make(chan error, 1)
	go func() {
		cctx, cancel := context.WithTimeout(ctx, 20*time.Second)
		defer cancel()
		_, err := m.dev.Connect(cctx, p.v.qp, addrPort(guestAddrs[0], p.port), rdma.ConnParam{
			IRD: 16, ORD: 16, MPA: p.mpa})
		result <- err
	}()
	accepted := guarded(func() { p.s.do("accept %s 16 16 -", p.s.do("request")[0]) })
	err := <-result
	if !errors.Is(err, syscall.EPROTO) {
		t.Errorf("vrnic's connection ended with %v, want that siw does not do what RFC 6581 says", err)
	}
	stopped := accepted != nil && strings.Contains(accepted.Error(), iwcmBug)
	t.Logf("vrnic: %v\nsiw: %v", err, accepted)
	if accepted == nil || !stopped && strings.Contains(accepted.Error(), "kernel BUG") {
		t.Errorf("siw's accept ended with %v", accepted)
	}
	p.v.close()
	says := "the connection ends, on both sides"
	if stopped {
		says = "the guest's kernel stops: " + iwcmBug
	}
	reportSiw(t, "What no table can hold", "vrnic offers a ready-to-receive message by Send only: "+
		says+".\n")
}

// newSiwMatrix boots a guest for a table, or skips the test. With VRNIC_TEST_INTEROP=smoke it is
// quick.
func newSiwMatrix(t *testing.T, ctx context.Context, record bool) *siwMatrix {
	t.Helper()
	img := siwImage(t, ctx)
	return &siwMatrix{siwBench: newSiwBench(t, ctx, img, record, false), quick: siwSmoke(),
		crc: make(map[uint16]bool)}
}

// rowsOf has a line for each initiator and family.
func (m *siwMatrix) rowsOf(t *testing.T, ctx context.Context, ops []siwOp) {
	for _, from := range []initiator{fromSiw, fromVrnic} {
		if m.set.only != nil && !slices.Contains(m.set.only, from) {
			continue
		}
		for f := range family(2) {
			if f == 0 || !m.quick {
				m.row(t, ctx, from, f, ops)
			}
		}
	}
}
