package sysfs

import (
	"cmp"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
)

// A Node is a file. The zero Node is a directory.
type Node struct {
	Text string    // of a regular file, which ends with a line feed
	Link string    // where a symbolic link leads
	Dev  [2]uint32 // numbers of a device file, major and minor
}

// A Tree is what is in a directory, by path; directories on the way are left out.
type Tree map[string]Node

func (t Tree) text(name, format string, args ...any) {
	t[name] = Node{Text: fmt.Sprintf(format, args...) + "\n"}
}

func (t Tree) link(name, to string) { t[name] = Node{Link: to} }

const (
	classDir = "sys/class"
	ibDir    = classDir + "/infiniband"
	verbsDir = classDir + "/infiniband_verbs"
	devDir   = "dev/infiniband"
)

// Numbers of the device files: uverbs has major 231, and no driver of the kernel has 10:255.
const (
	majorUverbs = 231
	firstUverbs = 192
	majorMisc   = 10
	minorCM     = 255
)

// None is the Tree of no devices, as Linux has it with its modules loaded.
func None() Tree { return newTree(nil) }

// newTree lays out devices as Linux does, ABI versions included.
func newTree(devices []device) Tree {
	t := Tree{ibDir: {}, classDir + "/infiniband_cm": {}}
	t.text(verbsDir+"/abi_version", "6")
	t.text(classDir+"/misc/rdma_cm/abi_version", "4")
	t.text(classDir+"/misc/rdma_cm/dev", "%d:%d", majorMisc, minorCM)
	t[devDir+"/rdma_cm"] = Node{Dev: [2]uint32{majorMisc, minorCM}}
	for i := range devices {
		t.add(&devices[i], i)
	}
	return t
}

func (t Tree) add(d *device, n int) {
	uverbs := fmt.Sprintf("uverbs%d", n)
	dir := ibDir + "/" + d.Name
	t.text(dir+"/node_type", "%s", map[bool]string{true: "1: CA", false: "4: RNIC"}[d.roce()])
	t.text(dir+"/node_guid", "%s", groups(d.guid()))
	t.text(dir+"/sys_image_guid", "%s", groups(d.guid()))
	t.text(dir+"/node_desc", "%s", d.Name)
	t.text(dir+"/fw_ver", "%s", cmp.Or(line(d.Firmware), "vrnic"))
	if d.HCAType != "" {
		t.text(dir+"/hca_type", "%s", line(d.HCAType))
		t.text(dir+"/hw_rev", "%x", d.Revision)
		t.text(dir+"/board_id", "%s", line(d.BoardID))
	}
	t.text(dir+"/parent", "%s", d.Name)
	t.port(d, dir+"/ports/1")
	t.parent(d, dir+"/device", uverbs)
	if d.netdev == d.Name {
		t.netdev(d, classDir+"/net/"+d.Name)
	}

	t.text(verbsDir+"/"+uverbs+"/ibdev", "%s", d.Name)
	t.text(verbsDir+"/"+uverbs+"/abi_version", "2")
	t.text(verbsDir+"/"+uverbs+"/dev", "%d:%d", majorUverbs, firstUverbs+n)
	t.link(verbsDir+"/"+uverbs+"/device", "../../infiniband/"+d.Name+"/device")
	t[devDir+"/"+uverbs] = Node{Dev: [2]uint32{majorUverbs, uint32(firstUverbs + n)}}
}

// line is what a file of one line can have.
func line(s string) string { return strings.ReplaceAll(s, "\n", "") }

// parent is the device that an adapter's would be.
func (t Tree) parent(d *device, dir, uverbs string) {
	vendor, device, _ := strings.Cut(line(d.PCI), ":")
	t.text(dir+"/vendor", "0x%s", cmp.Or(vendor, "ffff"))
	t.text(dir+"/device", "0x%s", cmp.Or(device, "0000"))
	t.text(dir+"/numa_node", "-1")
	t.link(dir+"/net/"+d.netdev, "../../../../net/"+d.netdev)
	t.link(dir+"/infiniband/"+d.Name, "../../../"+d.Name)
	t.link(dir+"/infiniband_verbs/"+uverbs, "../../../../infiniband_verbs/"+uverbs)
}

// netdev is the interface of the name that getifaddrs(3) has for the device; the kernel has none.
func (t Tree) netdev(d *device, dir string) {
	state, carrier := "up", 1
	if !d.active() {
		state, carrier = "down", 0
	}
	t.text(dir+"/address", "%s", d.MAC)
	t.text(dir+"/mtu", "%d", d.MTU)
	t.text(dir+"/operstate", "%s", state)
	t.text(dir+"/carrier", "%d", carrier)
	t.text(dir+"/speed", "100000")
	t.text(dir+"/type", "1")
	t.text(dir+"/dev_id", "0x0")
	t.text(dir+"/dev_port", "0")
	t.link(dir+"/device", "../../infiniband/"+d.Name+"/device")
}

func (t Tree) port(d *device, dir string) {
	state, phys, caps := "4: ACTIVE", "5: LinkUp", 0
	if !d.active() {
		state, phys = "1: DOWN", "3: Disabled"
	}
	if d.roce() {
		caps = 1 << 16 // IB_PORT_CM_SUP
	}
	t.text(dir+"/state", "%s", state)
	t.text(dir+"/phys_state", "%s", phys)
	t.text(dir+"/rate", "100 Gb/sec (4X EDR)")
	t.text(dir+"/lid", "0x0")
	t.text(dir+"/lid_mask_count", "0")
	t.text(dir+"/sm_lid", "0x0")
	t.text(dir+"/sm_sl", "0")
	t.text(dir+"/cap_mask", "0x%08x", caps)
	t.text(dir+"/link_layer", "Ethernet")
	t.text(dir+"/pkeys/0", "0xffff")
	for i := range d.GIDs {
		gid, ok := d.gids[i]
		t.text(fmt.Sprintf("%s/gids/%d", dir, i), "%s", groups(gid[:]))
		if ok && d.roce() {
			t.text(fmt.Sprintf("%s/gid_attrs/types/%d", dir, i), "RoCE v2")
		}
		if ok {
			t.text(fmt.Sprintf("%s/gid_attrs/ndevs/%d", dir, i), "%s", d.netdev)
		}
	}
	if d.hw == nil {
		return
	}
	for name, value := range d.portCounters() {
		t.text(dir+"/counters/"+name, "%d", value)
	}
	t.text(dir+"/hw_counters/lifespan", "%d", Interval.Milliseconds())
	for name, value := range d.hw {
		t.text(dir+"/hw_counters/"+name, "%d", value)
	}
	for name, value := range d.messages {
		t.text(dir+"/"+name, "%d", value)
	}
}

// groups writes octets as the kernel does GIDs and GUIDs: 0123:4567:...
func groups(b []byte) string {
	var s strings.Builder
	for i, o := range b {
		if i > 0 && i%2 == 0 {
			s.WriteByte(':')
		}
		fmt.Fprintf(&s, "%02x", o)
	}
	return s.String()
}

// AddClasses adds the names of the kernel's classes. root is /, or a test's.
func (t Tree) AddClasses(root string) error {
	classes, err := os.ReadDir(filepath.Join(root, classDir))
	if err != nil {
		return err
	}
	for _, e := range classes {
		if name := path.Join(classDir, e.Name()); !t.has(name) {
			t[name] = Node{}
		}
	}
	return nil
}

// addKernel adds what the kernel has at places that programs list: the names of its classes, and
// its network interfaces and devices of class misc. root is /, or a test's.
func (t Tree) addKernel(root string) error {
	if err := t.AddClasses(root); err != nil {
		return err
	}
	for _, class := range []string{classDir + "/net", classDir + "/misc"} {
		entries, err := os.ReadDir(filepath.Join(root, class))
		if err != nil {
			continue // a container may lack it
		}
		for _, e := range entries {
			to, err := filepath.EvalSymlinks(filepath.Join(root, class, e.Name()))
			// What is no link is of another vrnic exec, around this one.
			if name := path.Join(class, e.Name()); err == nil && e.Type()&os.ModeSymlink != 0 &&
				!t.has(name) {
				t.link(name, to)
			}
		}
	}
	return nil
}

// has says whether there is something at name or below it.
func (t Tree) has(name string) bool {
	if _, ok := t[name]; ok {
		return true
	}
	for n := range t {
		if strings.HasPrefix(n, name+"/") {
			return true
		}
	}
	return false
}

// dirs are the directories of t, those above first.
func (t Tree) dirs() []string {
	seen := make(map[string]bool)
	for name, node := range t {
		if node != (Node{}) {
			name = path.Dir(name)
		}
		for ; name != "." && !seen[name]; name = path.Dir(name) {
			seen[name] = true
		}
	}
	list := make([]string, 0, len(seen))
	for name := range seen {
		list = append(list, name)
	}
	slices.Sort(list)
	return list
}
