package sysfs

import (
	"encoding/json"
	"errors"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
)

// A fake is a daemon that says what it is told.
type fake struct {
	mu   sync.Mutex
	rows map[string][]string // by kind; "stat" are those of Stat
	err  error
}

// set changes what it says while a keeper asks it.
func (f *fake) set(change func()) {
	f.mu.Lock()
	defer f.mu.Unlock()
	change()
}

func (f *fake) of(kind string) (out []json.RawMessage, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, row := range f.rows[kind] {
		out = append(out, json.RawMessage(row))
	}
	return out, f.err
}

func (f *fake) List(kind string) ([]json.RawMessage, error) { return f.of(kind) }
func (f *fake) Stat() ([]json.RawMessage, error)            { return f.of("stat") }
func (f *fake) Close() error                                { return nil }

// twoKinds has a device of each kind.
func twoKinds() *fake {
	return &fake{rows: map[string][]string{
		"dev": {
			`{"dev":"roce0","transport":"roce","mac":"52:54:00:be:00:01","mtu":4200,` +
				`"addrs":["10.0.0.2/24"],"state":"ACTIVE","physical_state":"LINK_UP","gids":3,` +
				`"profile":"mlx5","firmware":"16.27.1016","hca_type":"MT4119",` +
				`"board_id":"MT_0000000080","pci":"15b3:1017"}`,
			`{"dev":"vrnic0","transport":"iwarp","mac":"52:54:00:be:00:02","mtu":1500,"addrs":[],` +
				`"state":"DOWN","physical_state":"DISABLED","gids":1}`,
		},
		"gid": {
			`{"dev":"roce0","port":1,"index":1,"gid":"::ffff:10.0.0.2","type":"RoCE v2"}`,
		},
		"stat": {
			`{"kind":"dev","dev":"roce0","sent_octets":400,"served_octets":8,"received_octets":12,` +
				`"sent_pkts":7,"rcvd_pkts":9,"drop_bad_icrc":2,"drop_bad_checksum":5}`,
			`{"kind":"cm","dev":"roce0","cm_rx_msgs_req":3,"cm_tx_retries_sidr_req":4}`,
			`{"kind":"dev","dev":"vrnic0"}`, // whose totals this user is not told
			`{"kind":"port","port":"tap0","rx_frames":1}`,
		},
	}}
}

// RSYS-001 to RSYS-003, RSYS-005 to RSYS-016: what is in which file.
func TestTree(t *testing.T) {
	tree, err := Ask(twoKinds(), "", nil)
	if err != nil {
		t.Fatal(err)
	}
	const roce, iwarp = "sys/class/infiniband/roce0/", "sys/class/infiniband/vrnic0/"
	want := map[string]string{
		roce + "node_type":                        "1: CA",
		roce + "node_guid":                        "5054:00ff:febe:0001",
		roce + "sys_image_guid":                   "5054:00ff:febe:0001",
		roce + "node_desc":                        "roce0",
		roce + "fw_ver":                           "16.27.1016",
		roce + "hca_type":                         "MT4119",
		roce + "hw_rev":                           "0",
		roce + "board_id":                         "MT_0000000080",
		roce + "parent":                           "roce0",
		roce + "device/vendor":                    "0x15b3",
		roce + "device/device":                    "0x1017",
		iwarp + "fw_ver":                          "vrnic",
		iwarp + "device/vendor":                   "0xffff",
		roce + "device/numa_node":                 "-1",
		roce + "ports/1/state":                    "4: ACTIVE",
		roce + "ports/1/phys_state":               "5: LinkUp",
		roce + "ports/1/rate":                     "100 Gb/sec (4X EDR)",
		roce + "ports/1/lid":                      "0x0",
		roce + "ports/1/lid_mask_count":           "0",
		roce + "ports/1/sm_lid":                   "0x0",
		roce + "ports/1/sm_sl":                    "0",
		roce + "ports/1/cap_mask":                 "0x00010000",
		roce + "ports/1/link_layer":               "Ethernet",
		roce + "ports/1/gids/0":                   "0000:0000:0000:0000:0000:0000:0000:0000",
		roce + "ports/1/gids/1":                   "0000:0000:0000:0000:0000:ffff:0a00:0002",
		roce + "ports/1/gids/2":                   "0000:0000:0000:0000:0000:0000:0000:0000",
		roce + "ports/1/gid_attrs/types/1":        "RoCE v2",
		roce + "ports/1/gid_attrs/ndevs/1":        "roce0",
		roce + "ports/1/pkeys/0":                  "0xffff",
		roce + "ports/1/counters/port_xmit_data":  "102",
		roce + "ports/1/counters/port_rcv_data":   "3",
		roce + "ports/1/counters/port_rcv_errors": "7",
		roce + "ports/1/hw_counters/sent_pkts":    "7",
		roce + "ports/1/hw_counters/lifespan":     "1000",
		roce + "ports/1/cm_rx_msgs/req":           "3",
		roce + "ports/1/cm_tx_retries/sidr_req":   "4",
		iwarp + "node_type":                       "4: RNIC",
		iwarp + "ports/1/state":                   "1: DOWN",
		iwarp + "ports/1/phys_state":              "3: Disabled",
		iwarp + "ports/1/cap_mask":                "0x00000000",
		iwarp + "ports/1/gids/0":                  "5254:00be:0002:0000:0000:0000:0000:0000",
		iwarp + "ports/1/gid_attrs/ndevs/0":       "vrnic0",

		"sys/class/infiniband_verbs/abi_version":         "6",
		"sys/class/infiniband_verbs/uverbs0/ibdev":       "roce0",
		"sys/class/infiniband_verbs/uverbs1/ibdev":       "vrnic0",
		"sys/class/infiniband_verbs/uverbs1/abi_version": "2",
		"sys/class/infiniband_verbs/uverbs1/dev":         "231:193",
		"sys/class/misc/rdma_cm/abi_version":             "4",
		"sys/class/net/roce0/mtu":                        "4200",
		"sys/class/net/roce0/address":                    "52:54:00:be:00:01",
		"sys/class/net/vrnic0/operstate":                 "down",
	}
	for name, text := range want {
		if got := tree[name].Text; got != text+"\n" {
			t.Errorf("%s has %q, want %q", name, got, text)
		}
	}
	for name, to := range map[string]string{
		"sys/class/net/roce0/device":                    "../../infiniband/roce0/device",
		"sys/class/infiniband_verbs/uverbs0/device":     "../../infiniband/roce0/device",
		roce + "device/net/roce0":                       "../../../../net/roce0",
		roce + "device/infiniband_verbs/uverbs0":        "../../../../infiniband_verbs/uverbs0",
		"sys/class/infiniband/vrnic0/device/net/vrnic0": "../../../../net/vrnic0",
	} {
		if got := tree[name].Link; got != to {
			t.Errorf("%s leads to %q, want %q", name, got, to)
		}
	}
	// What there is not, and nobody may take for something: types of empty entries and of iWARP's,
	// counters that the daemon does not tell.
	for _, name := range slices.Sorted(maps.Keys(tree)) {
		for _, none := range []string{roce + "ports/1/gid_attrs/types/0",
			iwarp + "ports/1/gid_attrs/types", iwarp + "ports/1/counters",
			iwarp + "ports/1/hw_counters", iwarp + "hca_type"} {
			if strings.HasPrefix(name, none) {
				t.Errorf("there is %s", name)
			}
		}
	}

	one, err := Ask(twoKinds(), "vrnic0", nil)
	if err != nil {
		t.Fatal(err)
	}
	if one.has("sys/class/infiniband/roce0") || !one.has("sys/class/infiniband/vrnic0") ||
		one["sys/class/infiniband_verbs/uverbs0/ibdev"].Text != "vrnic0\n" {
		t.Error("one device is not the only one")
	}
}

// RSYS-006, RSYS-010: an address that the kernel has is on the kernel's interface, and that is the
// device's.
func TestTreeHostInterface(t *testing.T) {
	host := Interfaces{netip.MustParseAddr("10.0.0.2"): "eth0", netip.MustParseAddr("::1"): "other"}
	tree, err := Ask(twoKinds(), "", host)
	if err != nil {
		t.Fatal(err)
	}
	const roce, iwarp = "sys/class/infiniband/roce0/", "sys/class/infiniband/vrnic0/"
	for name, want := range map[string]Node{
		roce + "device/net/eth0":           {Link: "../../../../net/eth0"},
		roce + "ports/1/gid_attrs/ndevs/1": {Text: "eth0\n"},
		iwarp + "device/net/vrnic0":        {Link: "../../../../net/vrnic0"},
	} {
		if tree[name] != want {
			t.Errorf("%s: %+v, want %+v", name, tree[name], want)
		}
	}
	if tree.has(roce+"device/net/roce0") || tree.has("sys/class/net/roce0") ||
		tree.has("sys/class/net/eth0") {
		t.Error("there are interfaces that the kernel does not have, or has itself")
	}
}

// What a daemon says makes no file elsewhere, and no crash.
func TestTreeHostile(t *testing.T) {
	f := twoKinds()
	f.rows["dev"] = append(f.rows["dev"], `{"dev":"../../x","transport":"roce","gids":1}`,
		`{"dev":"","gids":5}`, `{"dev":"huge","transport":"roce","mac":"zz","gids":1000000000}`)
	f.rows["gid"] = append(f.rows["gid"], `{"dev":"nobody","index":-1,"gid":"::1"}`,
		`{"dev":"huge","index":-7,"gid":"::1"}`)
	f.rows["stat"] = append(f.rows["stat"], `{"kind":"dev","dev":"huge","../up":5,"a/b":1,"n":-1}`)
	tree, err := Ask(f, "", nil)
	if err != nil {
		t.Fatal(err)
	}
	if len(tree) > 5000 {
		t.Errorf("%d files", len(tree))
	}
	for name := range tree {
		if strings.Contains(name, "..") || strings.Contains(name, "//") {
			t.Errorf("there is %q", name)
		}
	}
	for _, rows := range []map[string][]string{{"dev": {"["}}, {"gid": {`{"gid":"x"}`}},
		{"stat": {"1"}}} {
		if _, err := Ask(&fake{rows: rows}, "", nil); err == nil {
			t.Errorf("%v is taken", rows)
		}
	}
	if _, err := Ask(&fake{err: errors.New("gone")}, "", nil); err == nil {
		t.Error("an error is not told")
	}
}
