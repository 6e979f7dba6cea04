package integration

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/netip"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/vrnic/vrnic/integration/proctest"
	"github.com/vrnic/vrnic/internal/netlab"
)

// An ipoibEnd is a daemon with an IP interface over its device of RoCE, in a namespace of its own.
type ipoibEnd struct {
	*daemon
	ns    *netlab.NS
	addrs []netip.Addr
}

// ipoibEnds are two, 10.78.0.1 and 2, fd78::1 and 2, whose wire has a tap. options are those of
// each interface.
func ipoibEnds(t *testing.T, options ...string) (a, b *ipoibEnd, wire *tap) {
	t.Helper()
	return ipoibEndsOf(t, "roce", options...)
}

// ipoibEndsOf are those over devices of a transport.
func ipoibEndsOf(t *testing.T, transport string, options ...string) (a, b *ipoibEnd, wire *tap) {
	t.Helper()
	dir := t.TempDir()
	left, right := filepath.Join(dir, "left"), filepath.Join(dir, "right")
	end := func(n int, device, port string) *ipoibEnd {
		e := &ipoibEnd{ns: proctest.NewNS(t), addrs: []netip.Addr{
			netip.AddrFrom4([4]byte{10, 78, 0, byte(n)}), netip.AddrFrom16([16]byte{0: 0xfd, 1: 0x78,
				15: byte(n)})}}
		spec := fmt.Sprintf("ib,dev=vrnic0,tun=ib0,addr=%v/24,addr=%v/64,%s", e.addrs[0], e.addrs[1],
			options[(n-1)%len(options)])
		e.daemon = up(t, e.ns, "--device", device+",mtu=9000,transport="+transport, "--port", port,
			"--ipoib", spec)
		return e
	}
	a = end(1, deviceA, "unix-listen:"+left)
	wire = wiretap(t, right, left)
	b = end(2, deviceB, "unix-connect:"+right)
	return a, b, wire
}

// listen takes connections of TCP in e's namespace, and says back what comes.
func (e *ipoibEnd) listen(addr netip.Addr) (at string) {
	e.T.Helper()
	var l net.Listener
	err := e.ns.Do(func() (err error) {
		l, err = net.Listen("tcp", netip.AddrPortFrom(addr, 0).String())
		return err
	})
	if err != nil {
		e.T.Fatal(err)
	}
	e.T.Cleanup(func() { l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				_, _ = io.Copy(c, c)
			}()
		}
	}()
	return l.Addr().String()
}

// talk sends octets from e's namespace to who says them back.
func (e *ipoibEnd) talk(at string, n int) {
	e.T.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	var c net.Conn
	if err := e.ns.Do(func() (err error) {
		c, err = new(net.Dialer).DialContext(ctx, "tcp", at)
		return err
	}); err != nil {
		e.T.Fatal(err)
	}
	defer c.Close()
	_ = c.SetDeadline(time.Now().Add(time.Minute))
	sent := bytes.Repeat([]byte("IP over InfiniBand\n"), n/19+1)[:n]
	failed := make(chan error, 1)
	go func() {
		_, err := c.Write(sent)
		failed <- err
	}()
	got := make([]byte, n)
	if _, err := io.ReadFull(c, got); err != nil {
		e.T.Fatalf("%v, %v", err, <-failed)
	}
	if err := <-failed; err != nil || !bytes.Equal(got, sent) {
		e.T.Errorf("what comes back is not what was sent: %v", err)
	}
}

// shown is the row of the interface, or the one of a neighbour of its.
func (e *ipoibEnd) shown(neighbour string) (row map[string]any) {
	e.T.Helper()
	var rows []map[string]any
	if err := json.Unmarshal([]byte(e.run("show", "ipoib", "--json")), &rows); err != nil {
		e.T.Fatal(err)
	}
	for _, r := range rows {
		if n, _ := r["neighbour"].(string); n == neighbour {
			return r
		}
	}
	return nil
}

// Programs of two namespaces reach each other by their kernels' sockets over the interfaces of two
// daemons, over IPv4 and IPv6: with datagrams, over connections, and one of each. tshark knows what
// is on the wire. IPOIB-001, IPOIB-002, IPOIB-006, IPOIB-015, IPOIB-023, IPOIB-029, IPOIB-041,
// IPOIB-042.
func TestIPoIB(t *testing.T) {
	for _, tt := range []struct {
		name      string
		options   []string
		connected bool
		mtu       float64 // to each other
	}{
		{"datagrams", []string{"mode=datagram"}, false, 2044},
		{"connected", []string{"mode=connected,mtu=65520"}, true, 65520},
		{"one that is connected", []string{"mode=connected,mtu=9000", "mode=datagram"}, false, 2044},
	} {
		t.Run(tt.name, func(t *testing.T) {
			a, b, wire := ipoibEnds(t, tt.options...)
			for i := range a.addrs {
				for _, size := range []int{8, 1900, 60000} { // the kernel cuts what the link does not take
					echo(t, a.ns, b.addrs[i], size)
				}
				a.talk(b.listen(b.addrs[i]), 1<<18)
				b.talk(a.listen(a.addrs[i]), 1<<18)
			}
			ra, rb := a.shown(""), a.shown(b.addrs[0].String())
			if ra == nil || rb == nil || rb["state"] != "reachable" || rb["mtu"] != tt.mtu ||
				rb["connection"] != map[bool]string{false: "none", true: "open"}[tt.connected] {
				t.Errorf("%v\n%v", ra, rb)
			}
			if n, _ := ra["tx_connected"].(float64); (n > 0) != tt.connected {
				t.Errorf("%v packets over connections", n)
			}
			var qpns [2]uint32
			for i, e := range []*ipoibEnd{a, b} {
				n, _ := e.shown("")["qpn"].(float64)
				qpns[i] = uint32(n)
			}
			b.stop()
			a.stop()
			pcap := wire.stop()
			checkRoCE(t, pcap)
			checkIPoIB(t, pcap, tt.connected, qpns)
		})
	}
}

// checkIPoIB has tshark read the frames within RoCE's packets. qpns are the UD queue pairs of
// both ends.
func checkIPoIB(t *testing.T, pcap string, connected bool, qpns [2]uint32) {
	t.Helper()
	var guesses []string
	for _, g := range roceGuesses {
		if g != "eth_over_ib" { // which reads the encapsulation
			guesses = append(guesses, "--disable-heuristic", g)
		}
	}
	out := tshark(t, pcap, append(guesses, "-Y", "udp.port == 4791", "-T", "fields",
		"-E", "separator=|", "-e", "infiniband.bth.opcode", "-e", "arp.hw.type", "-e", "arp.opcode",
		"-e", "arp.hw.size", "-e", "infiniband.cm.req.serviceid", "-e", "tcp.port",
		"-e", "frame.protocols",
		"-e", "ipv6.dst", "-e", "infiniband.cm.req.private",
		"-e", "infiniband.cm.rep.private")...)
	const sendOnlyUD, sendFirst, sendOnly = 0x64, 0, 4
	var requests, replies, inDatagrams, inConnection, groups, asked int
	for line := range strings.Lines(out) {
		f := strings.Split(strings.TrimSuffix(line, "\n"), "|")
		if len(f) != 10 || f[0] == "" {
			t.Fatalf("tshark says %q", line)
		}
		op, err := strconv.ParseInt(f[0], 0, 16)
		if err != nil {
			t.Fatalf("%q: %v", line, err)
		}
		if f[1] != "" {
			if f[1] != "32" || f[3] != "20" || op != sendOnlyUD {
				t.Errorf("ARP: %q", line)
			}
			switch f[2] {
			case "1":
				requests++
			case "2":
				replies++
			}
		}
		if strings.Contains(f[7], "ff12:401b:ffff::ffff:ffff") {
			groups++
		}
		if f[4] != "" { // the Service ID of one, and the private data of both
			service, err := strconv.ParseUint(strings.TrimPrefix(f[4], "0x"), 16, 64)
			private := map[uint64]string{1<<56 | uint64(qpns[1]): says(qpns[0]),
				1<<56 | uint64(qpns[0]): says(qpns[1])}[service] // requests may cross
			if err != nil || private == "" || !strings.HasPrefix(f[8], private) {
				t.Errorf("REQ: %q, queue pairs %#x", line, qpns)
			}
			asked++
		}
		if f[9] != "" && !strings.HasPrefix(f[9], says(qpns[0])) &&
			!strings.HasPrefix(f[9], says(qpns[1])) {
			t.Errorf("REP: %q, queue pairs %#x", line, qpns)
		}
		if f[5] != "" { // TCP inside
			switch op {
			case sendOnlyUD:
				inDatagrams++
			case sendFirst, sendOnly:
				inConnection++
			}
		}
	}
	if requests == 0 || replies == 0 || groups < requests-replies {
		t.Errorf("%d requests of ARP, %d replies, %d to the broadcast group", requests, replies, groups)
	}
	if (asked > 0) != connected {
		t.Errorf("%d REQs", asked)
	}
	if connected && inConnection == 0 || !connected && (inDatagrams == 0 || inConnection > 0) {
		t.Errorf("%d segments of TCP in datagrams, %d on connections", inDatagrams, inConnection)
	}
}

// says is the private data of the interface with a UD queue pair, in hexadecimal.
func says(qpn uint32) string { return fmt.Sprintf("%08x0000fff4", qpn) }

// A multicast group that a program joins, of IPv4 or IPv6, is one of the link: the kernel's report
// has the interface join it, and what a program of either daemon's side sends there comes to who is
// in it, and to nobody when the program has left. ping has an answer of the group of all nodes, and
// of one of IPv6 that a program is in. IPOIB-020, IPOIB-021.
func TestIPoIBGroup(t *testing.T) {
	ping := inet(t)["ping"]
	a, b, _ := ipoibEnds(t, "mode=connected", "mode=datagram")
	for _, to := range []struct {
		from, in *ipoibEnd
		group    netip.AddrPort
	}{
		{a, b, netip.MustParseAddrPort("239.7.8.9:7890")},
		{b, a, netip.MustParseAddrPort("239.7.8.10:7890")},
		{a, b, netip.MustParseAddrPort("[ff15::7:8:9]:7890")},
		{b, a, netip.MustParseAddrPort("[ff15::7:8:a]:7890")},
	} {
		from := to.from.addrs[0]
		if to.group.Addr().Is6() {
			from = to.from.addrs[1]
		}
		r := to.in.join(to.group)
		s := to.from.dial(netip.AddrPortFrom(from, 0), to.group)
		got := make([]byte, 100)
		proctest.Eventually(t, patience, "a packet to "+to.group.String(), func() bool {
			if _, err := s.Write([]byte("to all")); err != nil {
				t.Fatal(err)
			}
			_ = r.SetReadDeadline(time.Now().Add(time.Second))
			n, sender, err := r.ReadFromUDPAddrPort(got)
			return err == nil && string(got[:n]) == "to all" && sender.Addr().Unmap() == from
		})
		if to.group.Addr().Is6() {
			to.from.answers(ping, to.group.Addr())
		}
		_ = r.Close() // the kernel tells that nobody is in it
		proctest.Eventually(t, patience, "nobody is in "+to.group.String(), func() bool {
			was, _ := to.in.shown("")["rx_datagrams"].(float64)
			if _, err := s.Write([]byte("to nobody")); err != nil {
				t.Fatal(err)
			}
			to.from.answers(ping, netip.MustParseAddr("ff02::1"))
			is, _ := to.in.shown("")["rx_datagrams"].(float64)
			return is == was+1
		})
	}
}

// join has a program in e's namespace be in a group.
func (e *ipoibEnd) join(group netip.AddrPort) (c *net.UDPConn) {
	e.T.Helper()
	if err := e.ns.Do(func() error {
		i, err := net.InterfaceByName("ib0")
		if err == nil {
			c, err = net.ListenMulticastUDP("udp", i, net.UDPAddrFromAddrPort(group))
		}
		return err
	}); err != nil {
		e.T.Fatal(err)
	}
	e.T.Cleanup(func() { c.Close() })
	return c
}

// dial is a socket that sends to an address from e's namespace.
func (e *ipoibEnd) dial(from, to netip.AddrPort) (c *net.UDPConn) {
	e.T.Helper()
	if err := e.ns.Do(func() (err error) {
		c, err = net.DialUDP("udp", net.UDPAddrFromAddrPort(from), net.UDPAddrFromAddrPort(to))
		return err
	}); err != nil {
		e.T.Fatal(err)
	}
	e.T.Cleanup(func() { c.Close() })
	return c
}

// answers has ping in e's namespace get an answer of a group, not of its own kernel.
func (e *ipoibEnd) answers(ping string, group netip.Addr) {
	e.T.Helper()
	out, err := e.command(nil, ping, "-c", "1", "-L", "-W", "30", "-I", "ib0", group.String())
	if err != nil {
		e.T.Fatalf("ping %v: %v: %s", group, err, out)
	}
}

// An interface without a TUN is a device of its own: programs reach each other by it, over TCP and
// SCTP, IPv4 and IPv6, in datagrams and over connections, which are RoCE's or streams of iWARP,
// without any privilege.
func TestIPoIBDevice(t *testing.T) {
	for _, tt := range []struct{ transport, options string }{
		{"roce", "mode=datagram"}, {"roce", "mode=connected,mtu=65520"},
		{"iwarp", "mode=datagram"}, {"iwarp", "mode=connected,mtu=65520"},
		{"iwarp", "mode=connected,mtu=65520,stream=sctp"},
	} {
		transport, options := tt.transport, tt.options
		link := filepath.Join(t.TempDir(), "link")
		end := func(n int, device, port string) *daemon {
			return up(t, nil, "--device", device+",mtu=9000,transport="+transport, "--port", port, "--ipoib",
				fmt.Sprintf("ib0,dev=vrnic0,addr=10.78.0.%d/24,addr=fd78::%d/64,%s", n, n, options))
		}
		a, b := end(1, deviceA, "unix-listen:"+link), end(2, deviceB, "unix-connect:"+link)
		for _, how := range [][]string{{"10.78.0.2"}, {"fd78::2"}, {"10.78.0.2", "--sctp"}} {
			s := b.start(append([]string{"ping", "-s", "-d", "ib0", "-C", "10", "-a"}, how...)...)
			s.WaitOutput("listening on", 1)
			a.run(append([]string{"ping", "-c", "-d", "ib0", "-C", "10", "-V", "-S", "65000", "-a"},
				how...)...)
			s.succeed()
		}
		var rows []struct {
			MTU         int    `json:"mtu"`
			TxDatagrams int    `json:"tx_datagrams"`
			TxConnected int    `json:"tx_connected"`
			Dropped     int    `json:"drop_host"`
			Neighbour   string `json:"neighbour"`
			Connection  string `json:"connection"`
		}
		if err := json.Unmarshal([]byte(a.run("show", "ipoib", "--json")), &rows); err != nil {
			t.Fatal(err)
		}
		connected := strings.HasPrefix(options, "mode=connected")
		if len(rows) != 3 || rows[0].TxConnected > 0 != connected || rows[0].TxDatagrams == 0 ||
			rows[0].Dropped != 0 || rows[1].Neighbour != "10.78.0.2" || rows[2].Neighbour != "fd78::2" ||
			rows[1].Connection != map[bool]string{true: "open", false: "none"}[connected] {
			t.Errorf("%s, %s: %+v", transport, options, rows)
		}
		a.stop()
		b.stop()
	}
}

// Over devices of iWARP a connection is a stream, of TCP or SCTP, for all addresses of a neighbour;
// datagrams are RoCE's there, too. tshark shows the set-up, with the private data that say who asks
// whom, and no message of RoCE's connection manager. IPOIB-001, IPOIB-023, IPOIB-029, IPOIB-041.
func TestIPoIBStreams(t *testing.T) {
	for _, stream := range []string{"tcp", "sctp"} {
		a, b, wire := ipoibEndsOf(t, "iwarp", "mode=connected,mtu=65520,stream="+stream)
		for i := range a.addrs {
			for _, size := range []int{8, 1900, 60000} {
				echo(t, a.ns, b.addrs[i], size)
			}
			a.talk(b.listen(b.addrs[i]), 1<<18)
			b.talk(a.listen(a.addrs[i]), 1<<18)
		}
		ra, rb := a.shown(""), a.shown(b.addrs[0].String())
		if ra["carrier"] != stream || ra["gid"] != "fd77::2" || rb["connection"] != "open" ||
			rb["mtu"] != 65520. || rb["gid"] != "fd77::3" {
			t.Errorf("%v\n%v", ra, rb)
		}
		if n, _ := ra["tx_connected"].(float64); n == 0 {
			t.Error("nothing has gone over connections")
		}
		qpn := func(e *ipoibEnd) string {
			n, _ := e.shown("")["qpn"].(float64)
			return fmt.Sprintf("%06x", uint32(n))
		}
		qa, qb := qpn(a), qpn(b)
		b.stop()
		a.stop()
		pcap := wire.stop()
		const gidA, gidB = "fd770000000000000000000000000002", "fd770000000000000000000000000003"
		says := func(from, to, gid string) string {
			return "00" + from + "0000fff4" + "0100000000" + to + gid + "00000000"
		}
		filter, field := "iwarp_mpa.req || iwarp_mpa.rep", "iwarp_mpa.privatedata"
		if stream == "sctp" {
			filter, field = "sctp.data_payload_proto_id == 17", "data.data"
		}
		out := strings.ReplaceAll(tshark(t, pcap, "-Y", filter, "-T", "fields", "-e", field), ":", "")
		if !strings.Contains(out, says(qa, qb, gidA)) && !strings.Contains(out, says(qb, qa, gidB)) {
			t.Errorf("%s: nobody asks by the name of its UD queue pair, %s and %s:\n%s", stream, qa, qb, out)
		}
		out = tshark(t, pcap, "-Y", "arp.hw.type == 32 || infiniband.mad", "-T", "fields",
			"-E", "separator=|", "-e", "infiniband.bth.opcode", "-e", "arp.hw.type", "-e",
			"infiniband.mad.mgmtclass")
		if out == "" {
			t.Errorf("%s: no ARP", stream)
		}
		for line := range strings.Lines(out) {
			if strings.TrimSpace(line) != "100|32|" && strings.TrimSpace(line) != "0x64|32|" {
				t.Errorf("%s: %q", stream, line)
			}
		}
	}
}
