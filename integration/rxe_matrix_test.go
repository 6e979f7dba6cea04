package integration

import (
	"bytes"
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/vrnic/vrnic/internal/needtest"
	"github.com/vrnic/vrnic/rdma"
)

var roceNets = []roceNet{
	{"clean", ""},
	{"loss of 1 %", "loss 1%"},
	{"loss of 5 %", "loss 5%"},
	{"reordering of 10 %", "delay 5ms reorder 90% 50%"},
	{"duplicates of 20 %", "duplicate 20%"},
}

// A roceOp is a column of the matrix.
type roceOp struct {
	name string
	run  func(p *pair, from, to side)
}

// roceOps are the operations of a way.
func roceOps(w *roceWay) []roceOp {
	clean := w.net.netem == ""
	switch {
	case w.kind == rdma.RC:
		return []roceOp{{"sends", sends}, {"writes", writes}, {"reads", reads}, {"deep Reads", deep},
			{"immediates", immediates}, {"atomics", atomics},
			{"mixed", func(p *pair, from, to side) { mixed(p) }}}
	case !clean:
		return []roceOp{{"what arrives", some(w.kind, w.mtu)}}
	case w.kind == rdma.UC:
		return []roceOp{{"sends", sends}, {"writes", writes}, {"immediates", immediates}}
	default:
		return []roceOp{{"datagrams", datagrams(w.mtu)}}
	}
}

// A roceMatrix is the table that a test makes: a row is a way, a column an operation.
type roceMatrix struct {
	*siwBench
	ops  []string
	rows []roceRow
}

type roceRow struct {
	way   roceWay
	cells map[string]*siwCell
}

// row runs the operations of a way in both directions, each on queue pairs of its own.
func (m *roceMatrix) row(t *testing.T, ctx context.Context, w roceWay) {
	row := roceRow{way: w, cells: make(map[string]*siwCell)}
	for _, op := range roceOps(&w) {
		if !slices.Contains(m.ops, op.name) {
			m.ops = append(m.ops, op.name)
		}
		cell := &siwCell{}
		row.cells[op.name] = cell
		for _, from := range []initiator{fromSiw, fromVrnic} {
			name := fmt.Sprintf("%v/%d/%v/%s/%s/%s", w.kind, w.mtu.Octets(), w.family, w.net.name, op.name,
				[]string{"rxe sends", "vrnic sends"}[from])
			t.Run(name, func(t *testing.T) {
				begin := time.Now()
				err := guarded(func() {
					p := m.join(ctx, w, from)
					x, y := p.ends()
					op.run(p, x, y)
					p.free()
				})
				cell.add(&siwCell{failed: err != nil, runs: 1, took: time.Since(begin)})
				if err != nil {
					t.Errorf("%v\nvrnic's QPs: %v", err, m.d.show("qp"))
					if err := m.restart(ctx); err != nil {
						t.Fatal(err)
					}
				}
			})
		}
	}
	m.rows = append(m.rows, row)
}

// table is the matrix in Markdown: seconds of both directions.
func (m *roceMatrix) table() string {
	var s strings.Builder
	s.WriteString("| | path MTU | | network |")
	for _, op := range m.ops {
		fmt.Fprintf(&s, " %s |", op)
	}
	s.WriteString("\n|---|--:|---|---|" + strings.Repeat("--:|", len(m.ops)) + "\n")
	for _, r := range m.rows {
		fmt.Fprintf(&s, "| %v | %d | %v | %s |", r.way.kind, r.way.mtu.Octets(), r.way.family,
			r.way.net.name)
		for _, op := range m.ops {
			fmt.Fprintf(&s, " %v |", r.cells[op])
		}
		s.WriteString("\n")
	}
	return s.String()
}

// TestRxeMatrix has every operation between vrnic and Linux's soft RoCEv2, on queue pairs that are
// connected by their attributes, in both directions, with each path MTU, over IPv4 and IPv6, and
// over networks that lose, reorder and double packets.
func TestRxeMatrix(t *testing.T) {
	ctx, cancel := context.WithTimeout(context.Background(), 40*time.Minute)
	defer cancel()
	m := &roceMatrix{siwBench: newSiwBench(t, ctx, siwImage(t, ctx), false, true)}
	// Linux looks for a neighbour for a second, whatever gets lost: it is to know vrnic's before.
	for f := range family(2) {
		if err := guarded(func() {
			m.join(ctx, roceWay{kind: rdma.RC, mtu: rdma.MTU1024, family: f, net: &roceNets[0]},
				fromSiw).free()
		}); err != nil {
			t.Fatal(err)
		}
	}
	for i := range roceNets {
		net := &roceNets[i]
		if err := m.g.Netem(ctx, net.netem, net.netem); err != nil {
			t.Fatal(err)
		}
		for _, kind := range []rdma.QPType{rdma.RC, rdma.UC, rdma.UD} {
			for _, mtu := range []rdma.MTU{rdma.MTU256, rdma.MTU1024, rdma.MTU4096} {
				for f := range family(2) {
					w := roceWay{kind: kind, mtu: mtu, family: f, net: net}
					if siwSmoke() && (i > 1 || mtu != rdma.MTU1024 || int(f) != i%2) {
						continue
					}
					m.row(t, ctx, w)
				}
			}
		}
	}
	m.stop()
	reportSiw(t, "Operations between vrnic and rxe", m.table())
}

// TestRxeConnect has rdma_cm connect queue pairs of vrnic and rxe, from both sides, with private
// data, and end them from both.
func TestRxeConnect(t *testing.T) {
	ctx, cancel := context.WithTimeout(context.Background(), 15*time.Minute)
	defer cancel()
	b := newSiwBench(t, ctx, siwImage(t, ctx), false, true)
	var s strings.Builder
	s.WriteString("| initiator | | sends | writes | reads | immediates | atomics | mixed |\n" +
		"|---|---|--:|--:|--:|--:|--:|--:|\n")
	ops := []roceOp{{"sends", sends}, {"writes", writes}, {"reads", reads}, {"immediates", immediates},
		{"atomics", atomics}, {"mixed", func(p *pair, from, to side) { mixed(p) }}}
	for i := range 4 {
		from, f := initiator(i%2), family(i/2)
		fmt.Fprintf(&s, "| %s | %v |", []string{"rxe", "vrnic"}[from], f)
		for j, op := range ops {
			t.Run(fmt.Sprintf("%s initiates/%v/%s", []string{"rxe", "vrnic"}[from], f, op.name),
				func(t *testing.T) {
					begin := time.Now()
					err := guarded(func() {
						k := plan{from: from, family: f, ird: 16, ord: 16, responderFirst: j%2 == 0}
						for i := range k.private {
							k.private[i] = make([]byte, 10*j)
							fillPattern(k.private[i], uint64(i+j))
						}
						p, _ := b.connect(ctx, k)
						for i, got := range p.got {
							want := k.private[1-i]
							if len(got) < len(want) || !bytes.Equal(got[:len(want)], want) ||
								strings.Trim(string(got[len(want):]), "\x00") != "" {
								failf("private data % x, want % x and zeroes", got, want)
							}
						}
						x, y := p.ends()
						must(p.explained(guarded(func() { op.run(p, x, y); op.run(p, y, x) })))
						p.finish(p.sides()[j%2])
						p.free()
					})
					fmt.Fprintf(&s, " %.2f |", time.Since(begin).Seconds())
					if err != nil {
						t.Errorf("%v\nvrnic's QPs: %v", err, b.d.show("qp"))
						if err := b.restart(ctx); err != nil {
							t.Fatal(err)
						}
					}
				})
		}
		s.WriteString("\n")
	}
	b.stop()
	reportSiw(t, "Connections by rdma_cm between vrnic and rxe", s.String())
}

// TestRxeTshark has tshark look at what vrnic and rxe say to each other in every operation and at
// connections that come and go. It finds no fault, and each packet's ICRC is right. ROCE-023,
// ROCE-025, ROCE-032, RCM-001.
func TestRxeTshark(t *testing.T) {
	ctx, cancel := context.WithTimeout(context.Background(), 15*time.Minute)
	defer cancel()
	m := &roceMatrix{siwBench: newSiwBench(t, ctx, siwImage(t, ctx), true, true)}
	for f := range family(2) {
		for _, kind := range []rdma.QPType{rdma.RC, rdma.UC, rdma.UD} {
			m.row(t, ctx, roceWay{kind: kind, mtu: rdma.MTU1024, family: f, net: &roceNets[0]})
		}
		for _, from := range []initiator{fromSiw, fromVrnic} {
			err := guarded(func() {
				p, _ := m.connect(ctx, plan{from: from, family: f, ird: 16, ord: 16})
				p.finish(p.sides()[f])
				p.free()
			})
			if err != nil {
				t.Fatal(err)
			}
		}
	}
	m.stop()
	said := checkRoCE(t, m.pcap)
	for attr, name := range cmNames {
		if said.cm[attr] == 0 && name != "REJ" {
			t.Errorf("there is no %s", name)
		}
	}
}

// A roceFault is something that one end does and the other must refuse: table 3.6's rows.
type roceFault struct {
	name string
	way  roceWay // what of it is not as usual
	run  func(p *pair, from, to side)
	// want is the requester's status, at vrnic from rxe and at rxe from vrnic.
	want [2]rdma.WCStatus
	// over says that the responder's queue pair is in Error, too.
	over bool
}

// badWrite writes n octets at off of a region of size 4096 with rights, with another key if so.
func badWrite(op rdma.Opcode, rights rdma.Access, off, n int, otherKey bool) func(*pair,
	side, side) {
	return func(p *pair, from, to side) {
		near := from.region(8192, rdma.LocalWrite, 0)
		far := to.region(4096, rdma.LocalWrite|rights, 0)
		key := far.key
		if otherKey {
			key ^= 0xff00
		}
		from.post(work{id: 1, op: op, r: near, n: n, addr: far.addr + uint64(off), key: key})
		from.post(work{id: 2, op: rdma.OpWrite, r: near, n: 8, addr: far.addr, key: far.key})
	}
}

const anyRight = rdma.RemoteWrite | rdma.RemoteRead | rdma.RemoteAtomic

var (
	accessRefused = [2]rdma.WCStatus{rdma.WCRemAccess, rdma.WCRemAccess}
	invalid       = [2]rdma.WCStatus{rdma.WCRemInvReq, rdma.WCRemInvReq}
	noAnswer      = [2]rdma.WCStatus{rdma.WCRetryExc, rdma.WCRetryExc}
	noReceive     = [2]rdma.WCStatus{rdma.WCRNRRetry, rdma.WCRNRRetry}
	tooLong       = [2]rdma.WCStatus{fromSiw: rdma.WCRemInvReq, fromVrnic: rdma.WCRemOp}
	roceFaults    = []roceFault{
		{"Write, key of nothing", roceWay{}, badWrite(rdma.OpWrite, anyRight, 0, 100, true),
			accessRefused, true},
		{"Write beyond the region", roceWay{}, badWrite(rdma.OpWrite, anyRight, 4000, 97, false),
			accessRefused,
			true},
		{"Write without the region's right", roceWay{}, badWrite(rdma.OpWrite, rdma.RemoteRead, 0,
			8, false),
			accessRefused, true},
		{"Read, key of nothing", roceWay{}, badWrite(rdma.OpRead, anyRight, 0, 100, true),
			accessRefused, true},
		{"Read beyond the region", roceWay{}, badWrite(rdma.OpRead, anyRight, 1, 4096, false),
			accessRefused, true},
		{"Read without the region's right", roceWay{}, badWrite(rdma.OpRead, rdma.RemoteWrite, 0,
			8, false),
			accessRefused, true},
		{"atomic without the region's right", roceWay{}, badWrite(rdma.OpFetchAdd, rdma.RemoteRead, 0, 8,
			false), accessRefused, true},
		{"Write without the QP's right", roceWay{access: rdma.RemoteWrite},
			badWrite(rdma.OpWrite, anyRight,
				0, 8, false), invalid, true},
		{"Read without the QP's right", roceWay{access: rdma.RemoteRead}, badWrite(rdma.OpRead, anyRight,
			0, 8, false), invalid, true},
		{"atomic without the QP's right", roceWay{access: rdma.RemoteAtomic}, badWrite(rdma.OpFetchAdd,
			anyRight, 0, 8, false), invalid, true},
		// A receive that is too short: rxe answers with NAK 63, and not 61.
		{"Send longer than the receive", roceWay{}, func(p *pair, from, to side) {
			to.recv(1, to.region(4096, rdma.LocalWrite, 0), 0, 99)
			r := from.region(4096, rdma.LocalWrite, 0)
			from.post(work{id: 1, op: rdma.OpSend, r: r, n: 100})
			from.post(work{id: 2, op: rdma.OpSend, r: r, n: 8})
		}, tooLong, true},
		{"Send without a receive", roceWay{retries: 3}, func(p *pair, from, to side) {
			r := from.region(4096, rdma.LocalWrite, 0)
			from.post(work{id: 1, op: rdma.OpSend, r: r, n: 100})
			from.post(work{id: 2, op: rdma.OpSend, r: r, n: 8})
		}, noReceive, false},
		{"nobody answers", roceWay{retries: 3, stranger: true}, func(p *pair, from, to side) {
			r := from.region(4096, rdma.LocalWrite, 0)
			from.post(work{id: 1, op: rdma.OpSend, r: r, n: 100})
			from.post(work{id: 2, op: rdma.OpSend, r: r, n: 8})
		}, noAnswer, false},
	}
)

// TestRxeFaults has either end do what the other must not allow: what the requester is told, and
// which queue pairs are over.
func TestRxeFaults(t *testing.T) {
	ctx, cancel := context.WithTimeout(context.Background(), 15*time.Minute)
	defer cancel()
	if siwSmoke() {
		needtest.Skip(t, "takes a minute: run `make interop`")
	}
	b := newSiwBench(t, ctx, siwImage(t, ctx), false, true)
	var s strings.Builder
	s.WriteString("| | by rxe | by vrnic |\n|---|---|---|\n")
	for _, f := range roceFaults {
		told := [2]string{"failed", "failed"}
		for _, from := range []initiator{fromSiw, fromVrnic} {
			t.Run(f.name+"/"+[]string{"by rxe", "by vrnic"}[from], func(t *testing.T) {
				err := guarded(func() {
					w := f.way
					w.kind, w.mtu, w.net = rdma.RC, rdma.MTU1024, &roceNets[0]
					p := b.join(ctx, w, from)
					x, y := p.ends()
					f.run(p, x, y)
					got := x.poll(2, doneLimit)
					if len(got) != 2 || got[0].id != 1 || got[0].status != f.want[from] || got[1].id != 2 ||
						got[1].status != rdma.WCFlush {
						failf("%v: completions %+v, want %v and one that is flushed", x, got, f.want[from])
					}
					told[from] = got[0].status.String()
					if s := x.(byHand).state(); s != rdma.QPError {
						failf("%v's QP is in state %v", x, s)
					}
					if s := y.(byHand).state(); (s == rdma.QPError) != f.over {
						failf("%v's QP is in state %v", y, s)
					}
					p.free()
				})
				if err != nil {
					t.Error(err)
					if err := b.restart(ctx); err != nil {
						t.Fatal(err)
					}
				}
			})
		}
		fmt.Fprintf(&s, "| %s | %s | %s |\n", f.name, told[0], told[1])
	}
	b.stop()
	reportSiw(t, "Faults between vrnic and rxe: what the requester is told", s.String())
}
