package mad_test

import (
	"bytes"
	"errors"
	"fmt"
	"net/netip"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/vrnic/vrnic/internal/golden"
	"github.com/vrnic/vrnic/internal/needtest"
	. "github.com/vrnic/vrnic/roce/mad"
	"github.com/vrnic/vrnic/roce/packet"
	"github.com/vrnic/vrnic/roce/rocetest"
)

// mads are the MADs of a recording.
func mads(t testing.TB, name string) (out [][]byte) {
	t.Helper()
	for _, ip := range rocetest.Packets(t, name) {
		var h packet.Header
		payload, err := h.Parse(rocetest.Datagram(ip))
		if err == nil && h.Dest == QPN {
			out = append(out, payload)
		}
	}
	return out
}

// text is a message on one line, without the octets of private data that are 0.
func text(transaction uint64, m Message) string {
	s := fmt.Sprintf("%x %+v", transaction, m)
	for _, zeros := range []string{" 0 0 0 0", " 0 0", " 0]"} {
		for strings.Contains(s, zeros+"]") {
			s = strings.ReplaceAll(s, zeros+"]", "]")
		}
	}
	return strings.TrimPrefix(fmt.Sprintf("%T", m), "*mad.") + " " + s + "\n"
}

// Every MAD that Linux's connection manager sent is taken apart and made again octet for octet;
// what was read is the golden text.
func TestGolden(t *testing.T) {
	kinds := map[Attribute]int{}
	for _, name := range rocetest.Recordings(t) {
		t.Run(strings.TrimSuffix(filepath.Base(name), ".pcap"), func(t *testing.T) {
			var lines strings.Builder
			for i, b := range mads(t, name) {
				transaction, m, err := Parse(b)
				if err != nil {
					t.Fatalf("MAD %d: %v", i, err)
				}
				kinds[m.Attribute()]++
				lines.WriteString(text(transaction, m))
				if got := Append(nil, transaction, m); !bytes.Equal(got, b) {
					t.Errorf("MAD %d is made as\n% x, was\n% x", i, got, b)
				}
			}
			if lines.Len() == 0 {
				return
			}
			golden.Check(t, filepath.Join("testdata",
				strings.TrimSuffix(filepath.Base(name), ".pcap")+".txt"), lines.String())
		})
	}
	for a := AttrREQ; a <= AttrSIDRREP; a++ {
		if kinds[a] == 0 {
			t.Errorf("no recording has attribute %#x", uint16(a))
		}
	}
}

// What tshark reads of a REQ and a REP is what Parse does.
func TestTshark(t *testing.T) {
	tshark, err := exec.LookPath("tshark")
	if err != nil {
		needtest.Lacking(t, "tshark", err)
	}
	var name string
	for _, n := range rocetest.Recordings(t) {
		if filepath.Base(n) == "ird-ord.pcap" {
			name = n
		}
	}
	fields := []string{"mad.transactionid", "mad.attributeid", "cm.req.localcommid",
		"cm.req.serviceid",
		"cm.req.localqpn", "cm.req.respres", "cm.req.initdepth", "cm.req.startpsn", "cm.req.retrycount",
		"cm.req.rnrretrycount", "cm.req.pppkey", "cm.req.pathmtu", "cm.req.prim_localgid_ipv4",
		"cm.req.prim_hop_limit", "cm.rep.localcommid", "cm.rep.remotecommid", "cm.rep.localqpn",
		"cm.rep.startpsn", "cm.rep.respres", "cm.rep.initdepth", "cm.rep.rnrretrycount"}
	args := []string{"-n", "-r", "-", "-Y", "infiniband.mad", "-T", "fields", "-E", "occurrence=f"}
	known, err := exec.Command(tshark, "-G", "fields").Output()
	if err != nil {
		t.Fatal(err)
	}
	var asked []int
	for i, f := range fields {
		if bytes.Contains(known, []byte("\tinfiniband."+f+"\t")) {
			args = append(args, "-e", "infiniband."+f)
			asked = append(asked, i)
		}
	}
	if len(asked) < 10 {
		t.Fatalf("tshark knows %d of the fields", len(asked))
	}
	cmd := exec.Command(tshark, args...)
	cmd.Stdin = bytes.NewReader(rocetest.Recording(t, name))
	out, err := cmd.Output()
	if err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(strings.TrimSuffix(string(out), "\n"), "\n")
	all := mads(t, name)
	if len(lines) != len(all) {
		t.Fatalf("tshark finds %d MADs, there are %d", len(lines), len(all))
	}
	for i, b := range all {
		transaction, m, err := Parse(b)
		if err != nil {
			t.Fatal(err)
		}
		said := map[string]any{"mad.transactionid": transaction, "mad.attributeid": m.Attribute()}
		switch m := m.(type) {
		case *REQ:
			for k, v := range map[string]any{"localcommid": m.LocalID, "serviceid": m.ServiceID,
				"localqpn": m.QPN, "respres": m.ResponderResources, "initdepth": m.InitiatorDepth,
				"startpsn": m.StartingPSN, "retrycount": m.Retries, "rnrretrycount": m.RNRRetries,
				"pppkey": m.PKey, "pathmtu": m.PathMTU, "prim_localgid_ipv4": AddrOf(m.Primary.LocalGID),
				"prim_hop_limit": m.Primary.HopLimit} {
				said["cm.req."+k] = v
			}
		case *REP:
			for k, v := range map[string]any{"localcommid": m.LocalID, "remotecommid": m.RemoteID,
				"localqpn": m.QPN, "startpsn": m.StartingPSN, "respres": m.ResponderResources,
				"initdepth": m.InitiatorDepth, "rnrretrycount": m.RNRRetries} {
				said["cm.rep."+k] = v
			}
		}
		for k, got := range strings.Split(lines[i], "\t") {
			want := fmt.Sprint(said[fields[asked[k]]])
			if v, err := strconv.ParseUint(got, 0, 64); err == nil {
				got = fmt.Sprint(v)
			}
			if got != "" && got != want {
				t.Errorf("%T: tshark has %s %s, Parse %s", m, fields[asked[k]], got, want)
			}
		}
	}
}

// What a MAD of connection management must be, and that nothing else is taken: RCM-002, 004, 006.
func TestParseRefuses(t *testing.T) {
	good := Append(nil, 7, &RTU{LocalID: 1, RemoteID: 2})
	if tid, m, err := Parse(good); err != nil || tid != 7 || m.(*RTU).RemoteID != 2 {
		t.Fatal(tid, m, err)
	}
	for n := range 300 {
		if _, _, err := Parse(make([]byte, n)); n != Len && !errors.Is(err, ErrLength) {
			t.Errorf("%d octets: %v", n, err)
		}
	}
	for at, want := range map[int]error{0: ErrClass, 1: ErrClass, 2: ErrClass, 3: ErrClass,
		16: ErrAttribute, 17: ErrAttribute} {
		b := bytes.Clone(good)
		b[at] ^= 0x80
		if _, _, err := Parse(b); !errors.Is(err, want) {
			t.Errorf("octet %d changed: %v, want %v", at, err, want)
		}
	}
	for _, a := range []byte{0, 0xf, 0x19, 0x1f, 0xff} {
		b := bytes.Clone(good)
		b[17] = a
		if _, _, err := Parse(b); !errors.Is(err, ErrAttribute) {
			t.Errorf("attribute %#x: %v", a, err)
		}
	}
}

// The address header of rdma_cm, both families, and what is none: RCM-011, 013, 015, 062.
func TestAddress(t *testing.T) {
	for _, a := range []Address{
		{netip.MustParseAddr("10.88.0.1"), netip.MustParseAddr("10.88.0.2"), 4711},
		{netip.MustParseAddr("fd88::1"), netip.MustParseAddr("fd88::2"), 1},
	} {
		b := a.Append([]byte{})
		got, rest, err := ParseAddress(append(b, 1, 2, 3))
		if err != nil || got != a || len(b) != AddressLen || len(rest) != 3 {
			t.Errorf("%+v, %d octets behind, %v; want %+v", got, len(rest), err, a)
		}
		for _, ip := range []netip.Addr{a.Source, a.Dest} {
			if got := AddrOf(GIDOf(ip)); got != ip {
				t.Errorf("the GID of %v is that of %v", ip, got)
			}
		}
	}
	for _, bad := range [][]byte{{0x10, 0x40}, {0, 0x50}, {0, 0}} {
		if _, _, err := ParseAddress(append(bad, make([]byte, 34)...)); !errors.Is(err, ErrAddress) {
			t.Errorf("% x: %v", bad, err)
		}
	}
	if _, _, err := ParseAddress(make([]byte, AddressLen-1)); !errors.Is(err, ErrAddress) {
		t.Error(err)
	}
	if ps, port, ok := ServiceOf(ServiceID(PortSpaceUDP, 7174)); !ok || ps != PortSpaceUDP ||
		port != 7174 {
		t.Error(ps, port, ok)
	}
	if _, _, ok := ServiceOf(0x1000000001061d2f); ok {
		t.Error("a service of somebody else is rdma_cm's")
	}
}

// Whatever Parse takes Append makes again, but for reserved bits: what Append has made, both take
// and make again without a difference.
func FuzzParse(f *testing.F) {
	for _, name := range rocetest.Recordings(f) {
		for _, b := range mads(f, name) {
			f.Add(b)
		}
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		transaction, m, err := Parse(b)
		if err != nil {
			return
		}
		once := Append(nil, transaction, m)
		tid, again, err := Parse(once)
		if err != nil || tid != transaction || text(tid, again) != text(transaction, m) {
			t.Fatalf("%v: %s, was %s", err, text(tid, again), text(transaction, m))
		}
		if twice := Append(nil, tid, again); !bytes.Equal(twice, once) {
			t.Fatalf("made as % x, then as % x", once, twice)
		}
		for i := range b {
			if once[i]&^b[i] != 0 {
				t.Fatalf("octet %d is %#x, was %#x", i, once[i], b[i])
			}
		}
	})
}
