package integration

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/vrnic/vrnic/internal/needtest"
	"github.com/vrnic/vrnic/lab/rawroce"
	"github.com/vrnic/vrnic/rdma"
	"github.com/vrnic/vrnic/shm"
)

// Two daemons of an ordinary user with devices of RoCE on a Unix-stream link, with a tap on the
// wire: every operation of every type of queue pair, over IPv4 and IPv6, groups, and connections
// that are made, rejected, refused and ended. Each packet is as the specification has it, and
// tshark finds no fault with any. ROCE-023, ROCE-025, ROCE-032, RCM-001.
func TestRoCEWire(t *testing.T) {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
	defer cancel()
	dir := t.TempDir()
	left, right := filepath.Join(dir, "left"), filepath.Join(dir, "right")
	a := up(t, nil, "--device", deviceA+",transport=roce", "--port", "unix-listen:"+left)
	wire := wiretap(t, right, left)
	b := up(t, nil, "--device", deviceB+",transport=roce", "--port", "unix-connect:"+right)
	w := &roceWire{ctx: ctx, clean: &roceNet{}}
	for i, d := range []*daemon{a, b} {
		c, err := shm.Dial(d.socket)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		if w.devs[i], err = c.Open(""); err != nil {
			t.Fatal(err)
		}
	}
	err := guarded(func() {
		for f := range family(2) {
			for _, kind := range []rdma.QPType{rdma.RC, rdma.UC, rdma.UD} {
				w.data(kind, f)
			}
			w.faults(f)
			w.group(f)
			w.connections(f)
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	b.stop()
	a.stop()
	said := checkRoCE(t, wire.stop())
	for op := range 0x18 {
		if op != 0x15 && said.opcodes[op] == 0 { // Resync is of no connection
			t.Errorf("there is no packet of RC's opcode %#02x", op)
		}
		if op < 0x0c && said.opcodes[0x20+op] == 0 {
			t.Errorf("there is no packet of UC's opcode %#02x", 0x20+op)
		}
	}
	for _, op := range []int{0x64, 0x65} {
		if said.opcodes[op] == 0 {
			t.Errorf("there is no packet of UD's opcode %#02x", op)
		}
	}
	for attr, name := range cmNames {
		if said.cm[attr] == 0 {
			t.Errorf("there is no %s", name)
		}
	}
}

// cmNames are the messages of the connection manager that a wire must have.
var cmNames = map[int]string{0x10: "REQ", 0x12: "REJ", 0x13: "REP", 0x14: "RTU", 0x15: "DREQ",
	0x16: "DREP"}

// A roceWire is two devices, and who has them speak.
type roceWire struct {
	ctx   context.Context
	devs  [2]rdma.Device
	clean *roceNet
	port  uint16
}

// join makes two ends of a type that reach each other. The second has memory for first messages.
func (w *roceWire) join(way roceWay) (p *pair, x, y *vrnicSide) {
	w.port++
	p = &pair{plan: plan{family: way.family, kind: way.kind}, port: w.port}
	x, y = newVrnicSide(w.ctx, w.devs[0], way.kind), newVrnicSide(w.ctx, w.devs[1], way.kind)
	p.v, p.mem[1] = y, y.region(4096, rdma.LocalWrite, 0)
	way.net = w.clean
	p.connectByNumber([2]byHand{x, y}, way, 0)
	return p, x, y
}

// data has the operations of a type, there and back.
func (w *roceWire) data(kind rdma.QPType, f family) {
	way := roceWay{kind: kind, mtu: rdma.MTU1024, family: f, net: w.clean}
	ops := roceOps(&way)
	if kind == rdma.RC {
		ops = append(ops[:len(ops)-1], roceOp{"invalidates", func(p *pair, from, to side) {
			if to == side(p.v) {
				invalidates(p, from, to)
			}
		}})
	}
	for _, op := range ops {
		p, x, y := w.join(way)
		for _, dir := range [][2]side{{x, y}, {y, x}} {
			if err := guarded(func() { op.run(p, dir[0], dir[1]) }); err != nil {
				failf("%v over %v: %s: %w", kind, f, op.name, err)
			}
		}
		x.close()
		y.close()
	}
}

// faults has requests that are refused, and one that waits for a receive.
func (w *roceWire) faults(f family) {
	way := roceWay{kind: rdma.RC, mtu: rdma.MTU256, family: f}
	p, x, y := w.join(way)
	r := x.region(4096, rdma.LocalWrite, 0)
	x.fill(r, 0, 600, uint64(p.port))
	x.post(work{id: 1, op: rdma.OpSend, r: r, n: 600})
	if got := x.poll(1, 50*time.Millisecond); len(got) != 0 { // nothing is to come
		failf("a Send without a receive has completed as %+v", got)
	}
	y.recv(0, p.mem[1], 0, 600)
	succeeded(x, 1, 1)
	received(y, 600)
	x.close()
	y.close()
	for _, fault := range roceFaults {
		if fault.way.stranger || fault.way.retries > 0 {
			continue // they take their time, and say nothing new
		}
		way.access = fault.way.access
		p, x, y := w.join(way)
		fault.run(p, x, y)
		if got := x.poll(2, doneLimit); len(got) != 2 || got[0].status == rdma.WCSuccess ||
			got[1].status != rdma.WCFlush {
			failf("%s: completions %+v", fault.name, got)
		}
		x.close()
		y.close()
	}
}

// group has a datagram to a group that the other end has joined.
func (w *roceWire) group(f family) {
	p, x, y := w.join(roceWay{kind: rdma.UD, mtu: rdma.MTU1024, family: f})
	group := rdma.GIDOf(addrPort([]string{"239.77.1.1", "ff15::77"}[f], 0).Addr())
	must(y.qp.AttachMulticast(group))
	const n = 100
	r := x.region(n, rdma.LocalWrite, 0)
	x.fill(r, 0, n, uint64(p.port))
	y.recv(0, p.mem[1], 0, grhLen+n)
	to := p.path(x, y)
	to.GID = group
	x.post(work{id: 0, op: rdma.OpSend, r: r, n: n,
		to: rdma.Datagram{AH: x.address(to), QPN: 0xffffff, QKey: roceQKey}})
	succeeded(x, 0, 1)
	received(y, grhLen+n)
	y.check(p.mem[1], grhLen, n, uint64(p.port))
	must(y.qp.DetachMulticast(group))
	x.close()
	y.close()
}

// connections has one that is made and ended, one that is rejected, and one that nobody listens
// for.
func (w *roceWire) connections(f family) {
	x, y := newVrnicSide(w.ctx, w.devs[0], rdma.RC), newVrnicSide(w.ctx, w.devs[1], rdma.RC)
	l, err := w.devs[1].Listen(addrPort(addrsB[f], firstPort), 1)
	must(err)
	result := make(chan error, 1)
	serve := func(answer func(req rdma.ConnRequest) error) {
		go func() {
			req, err := l.Next(w.ctx)
			if err == nil {
				err = answer(req)
			}
			result <- err
		}()
	}
	param := rdma.ConnParam{PrivateData: []byte("private data"), IRD: 4, ORD: 4}
	serve(func(req rdma.ConnRequest) error { return req.Reject([]byte("no")) })
	_, err = w.devs[0].Connect(w.ctx, x.qp, l.Addr(), param)
	var rejected *rdma.RejectedError
	if !errors.As(err, &rejected) || string(rejected.PrivateData[:2]) != "no" {
		failf("a connection that was rejected: %v", err)
	}
	must(<-result)
	x.close()
	x = newVrnicSide(w.ctx, w.devs[0], rdma.RC)
	serve(func(req rdma.ConnRequest) (err error) {
		y.conn, err = req.Accept(w.ctx, y.qp, param)
		return err
	})
	x.conn, err = w.devs[0].Connect(w.ctx, x.qp, l.Addr(), param)
	must(err)
	must(<-result)
	src, dst := x.region(100, rdma.LocalWrite, 0), y.region(100, rdma.LocalWrite|rdma.RemoteWrite, 0)
	x.post(work{id: 0, op: rdma.OpWrite, r: src, n: 100, addr: dst.addr, key: dst.key})
	succeeded(x, 0, 1)
	x.disconnect()
	y.ended(doneLimit)
	y.disconnect()
	x.ended(doneLimit)
	must(l.Close())
	z := newVrnicSide(w.ctx, w.devs[0], rdma.RC)
	if _, err = w.devs[0].Connect(w.ctx, z.qp, l.Addr(), param); !errors.Is(err,
		syscall.ECONNREFUSED) {
		failf("a connection that nobody listens for: %v", err)
	}
	for _, s := range []*vrnicSide{x, y, z} {
		s.close()
	}
}

// What a recording of RoCE has, by opcode, and by attribute of messages of connection managers.
type roceSaid struct{ opcodes, cm map[int]int }

// roceGuesses are dissectors that take payloads of others for theirs.
var roceGuesses = []string{"smcr_infiniband", "smb_direct_infiniband", "rpcrdma_infiniband",
	"nvme_rdma", "nvme_rdma_cm_private", "lnet_ib", "iser_infiniband", "eth_over_ib",
	"sdp_infiniband", "mellanox_eoib", "fc_infiniband"}

// roceKnown is what tshark 4.0 complains of that is right, and why.
var roceKnown = map[string]string{
	"Illegal checksum value (0)": "RoCEv2 has no UDP checksum, over IPv6 neither: RFC 6935, annex A17",
}

// checkRoCE holds each packet of a recording to the specification, by itself and in the eyes of
// tshark, which checks all but the ICRC.
func checkRoCE(t *testing.T, pcap string) roceSaid {
	t.Helper()
	frames := 0
	eachFrame(t, pcap, func(n int, ip []byte) {
		frames++
		if _, err := rawroce.Read(ip); err != nil {
			t.Errorf("frame %d: %v: % x", n, err, ip)
		}
	})
	said := roceSaid{map[int]int{}, map[int]int{}}
	path, err := exec.LookPath("tshark")
	if err != nil {
		needtest.Lacking(t, "tshark", err)
	}
	args := []string{"-n", "-r", pcap, "-Y", "udp.port == 4791", "-o", "ip.check_checksum:true",
		"-T", "fields", "-E", "separator=|", "-E", "occurrence=a", "-E",
		"aggregator=;"}
	for _, f := range []string{"frame.number", "infiniband.bth.opcode", "infiniband.mad.attributeid",
		"_ws.expert.severity", "_ws.malformed", "_ws.expert.message"} {
		args = append(args, "-e", f)
	}
	for _, g := range roceGuesses {
		args = append(args, "--disable-heuristic", g)
	}
	out, err := exec.Command(path, args...).Output()
	if err != nil {
		t.Fatal(err)
	}
	seen := 0
	for line := range strings.Lines(string(out)) {
		f := strings.SplitN(strings.TrimSuffix(line, "\n"), "|", 6)
		if len(f) != 6 || f[1] == "" {
			t.Errorf("tshark says %q", line)
			continue
		}
		seen++
		var op, attr int
		_, _ = fmt.Sscan(f[1], &op)
		said.opcodes[op]++
		if _, err := fmt.Sscan(f[2], &attr); err == nil {
			said.cm[attr]++
		}
		if f[4] != "" || f[3] != "" && !known(f[5]) {
			t.Errorf("tshark complains of frame %s: severity %s, malformed %q: %s", f[0], f[3], f[4], f[5])
		}
	}
	if seen != frames {
		t.Errorf("tshark finds %d packets of RoCE in %s, there are %d", seen, pcap, frames)
	}
	t.Logf("%d packets of RoCE: opcodes %v, messages %v", frames, said.opcodes, said.cm)
	return said
}

// known reports whether each thing that tshark says of a packet is in roceKnown.
func known(messages string) bool {
	for _, m := range strings.Split(messages, ";") {
		if roceKnown[m] == "" {
			return false
		}
	}
	return true
}

// eachFrame calls f with the IP packets to port 4791 of a recording, of either order of octets.
func eachFrame(t *testing.T, pcap string, f func(n int, ip []byte)) {
	t.Helper()
	b, err := os.ReadFile(pcap)
	if err != nil || len(b) < 24 {
		t.Fatalf("%s: %d octets, %v", pcap, len(b), err)
	}
	order := binary.ByteOrder(binary.LittleEndian)
	if order.Uint32(b) != 0xa1b2c3d4 {
		order = binary.BigEndian
	}
	n := 0
	for b = b[24:]; len(b) >= 16; n++ {
		size := int(order.Uint32(b[8:]))
		if len(b) < 16+size {
			break // whoever recorded was stopped in the midst of it
		}
		frame := b[16:][:size]
		b = b[16+size:]
		if size < 14+20+8 {
			continue
		}
		ip := frame[14:]
		head, udp := 40, ip[6] == 17
		if ip[0]>>4 == 4 {
			head, udp = int(ip[0]&15)*4, ip[9] == 17
		}
		kind := binary.BigEndian.Uint16(frame[12:])
		if (kind == 0x0800 || kind == 0x86dd) && udp && binary.BigEndian.Uint16(ip[head+2:]) == 4791 {
			f(n+1, ip)
		}
	}
}
