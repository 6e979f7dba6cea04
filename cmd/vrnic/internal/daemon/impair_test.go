package daemon_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/vrnic/vrnic/cmd/vrnic/internal/daemon"
	"github.com/vrnic/vrnic/cmd/vrnic/internal/daemon/daemontest"
	"github.com/vrnic/vrnic/internal/needtest"
	"github.com/vrnic/vrnic/rdma"
	"github.com/vrnic/vrnic/shm"
)

// An impairment is a row of LIST impair.
type impairment struct {
	Target, Direction, Words                           string
	Packets, Lost, Duplicated, Corrupted, Marked, Seed uint64
	NoRoom                                             uint64 `json:"no_room"`
	Reordered                                          uint64
	Waiting, Outside                                   int
}

func impairments(t *testing.T, d *daemontest.Daemon) map[string]impairment {
	t.Helper()
	all := make(map[string]impairment)
	rows, err := d.Dial().List("impair")
	if err != nil {
		t.Fatal(err)
	}
	for _, raw := range rows {
		var r impairment
		if err := json.Unmarshal(raw, &r); err != nil {
			t.Fatal(err)
		}
		all[r.Target+" "+r.Direction] = r
	}
	return all
}

// near is a pair of connected Ends of the devices of those names.
func near(t *testing.T, d *daemontest.Daemon, from, to string, v6 bool) (a, b *daemontest.End) {
	t.Helper()
	c := d.Dial()
	a = daemontest.NewEnd(t, daemontest.Open(t, c, from), 1<<18)
	b = daemontest.NewEnd(t, daemontest.Open(t, c, to), 1<<18)
	daemontest.Connect(t, a, b, daemontest.Addr(t, b.Dev, v6, 0))
	return a, b
}

// Lengths of messages: of RoCE a short one is a packet, which loses no time by another order.
const short, long = 1000, 60000

// echo has n messages of up to most octets go each way, one after the other, and says how long that
// took.
func echo(t *testing.T, a, b *daemontest.End, n, most int) time.Duration {
	t.Helper()
	begun := time.Now()
	for i := range n {
		size := 1 + i*4099%most
		a.Fill(0, size, byte(i))
		b.Recv(1, 0, 1<<17)
		a.Send(2, 0, size)
		a.WantStatus("a Send", 2, 0)
		if wc := b.WantStatus("its receive", 1, 0); int(wc.ByteLen) != size {
			t.Fatalf("message %d: %d octets of %d", i, wc.ByteLen, size)
		}
		b.Check("what came", 0, size, byte(i))
		a.Recv(3, 1<<17, 1<<17)
		b.Send(4, 0, size)
		b.WantStatus("the answer", 4, 0)
		a.WantStatus("its receive", 3, 0)
		a.Check("what came back", 1<<17, size, byte(i))
	}
	return time.Since(begun)
}

// disturbed has messages between a and b disturbed at target, which is a's device: they come whole
// all the same. When it is off nothing is done.
func disturbed(t *testing.T, d *daemontest.Daemon, a, b *daemontest.End, target string) {
	t.Helper()
	mustChange(t, d, shm.Set, "impair", "out 7 "+target+"\ndelay 10ms")
	if took := echo(t, a, b, 3, short); took < 3*10*time.Millisecond {
		t.Errorf("three rounds with a delay of 10 ms took %v", took)
	}
	if all := impairments(t, d); len(all) != 1 || all[target+" out"].Packets == 0 ||
		all[target+" out"].Seed != 7 || all[target+" out"].Words != "delay 10ms" {
		t.Errorf("%+v", all)
	}
	mustChange(t, d, shm.Set, "impair",
		"both 1 "+target+"\ndelay 500us 100us\nduplicate 20%\nreorder 20% gap 2")
	echo(t, a, b, 20, short)
	for _, direction := range []string{"out", "in"} {
		if i := impairments(t, d)[target+" "+direction]; i.Duplicated == 0 || i.Reordered == 0 ||
			i.Lost+i.Corrupted+i.NoRoom != 0 {
			t.Errorf("%s: %+v", direction, i)
		}
	}
	mustChange(t, d, shm.Set, "impair", "out 1 "+target+"\ncorrupt 100%")
	b.Recv(1, 0, 1000)
	a.Fill(0, 1000, 9)
	a.Send(2, 0, 1000)
	if !needtest.Becomes(func() bool { return impairments(t, d)[target+" out"].Corrupted > 0 }) {
		t.Error("nothing is wrong")
	}
	mustChange(t, d, shm.Del, "impair", target)
	if all := impairments(t, d); len(all) != 0 {
		t.Errorf("off, there are still %v", all)
	}
	a.WantStatus("what was wrong is sent again", 2, 0)
	b.WantStatus("what was wrong is sent again", 1, 0)
	b.Check("what came", 0, 1000, 9)
	echo(t, a, b, 3, short)
}

// What is done to the packets of a device is done to those of its connections, in the direction
// that was said and no other, on iWARP and RoCE, also to those that were copied before.
func TestImpairDevice(t *testing.T) {
	for name, specs := range map[string][]string{
		"iwarp": daemontest.Devices,
		"roce": {"vrnic0,addr=10.77.0.2/24,transport=roce,mtu=4200",
			"vrnic1,addr=10.77.0.3/24,transport=roce,mtu=4200"},
		"roce, within the device": {"vrnic0,addr=10.77.0.2/24,transport=roce,mtu=4200"},
	} {
		t.Run(name, func(t *testing.T) {
			d := daemontest.Start(t, devices(t, specs...))
			a, b := near(t, d, "vrnic0", fmt.Sprint("vrnic", len(specs)-1), false)
			echo(t, a, b, 3, short)
			disturbed(t, d, a, b, "vrnic0")
			if name == "iwarp" {
				mustChange(t, d, shm.Set, "impair", "both 1 vrnic0\nloss 3%\ncorrupt 3%")
				echo(t, a, b, 30, long)
				if i := impairments(t, d)["vrnic0 in"]; i.Lost == 0 || i.Corrupted == 0 {
					t.Errorf("%+v", i)
				}
			}
		})
	}
}

// What is done to the packets of a queue pair is done to those of no other.
func TestImpairQP(t *testing.T) {
	for _, tt := range []struct {
		transport, peer string
		v6              bool
	}{{"iwarp", "vrnic1", true}, {"roce", "vrnic1", false}, {"roce", "vrnic0", true}} {
		transport := tt.transport
		d := daemontest.Start(t, devices(t,
			"vrnic0,addr=10.77.0.2/24,addr=fd77::2/64,transport="+transport,
			"vrnic1,addr=10.77.0.3/24,addr=fd77::3/64,transport="+transport))
		a, b := near(t, d, "vrnic0", tt.peer, tt.v6)
		x, y := near(t, d, "vrnic0", tt.peer, tt.v6)
		name := fmt.Sprintf("vrnic0/%d", a.QP.Num())
		mustChange(t, d, shm.Set, "impair", "both 7 "+name+"\nloss 100%")
		echo(t, x, y, 5, short)
		b.Recv(1, 0, 100)
		a.Send(2, 0, 100)
		if !needtest.Becomes(func() bool { return impairments(t, d)[name+" out"].Lost > 0 }) {
			t.Errorf("%s: nothing is lost", transport)
		}
		mustChange(t, d, shm.Del, "impair", "")
		a.WantStatus("what was lost comes again", 2, 0)
		b.WantStatus("what was lost comes again", 1, 0)
		mustChange(t, d, shm.Set, "impair", "out 7 "+name+"\ndelay 1ms")
		if tt.peer == "vrnic0" { // the one way only, of what goes both ways within the device
			if took := echo(t, a, b, 3, short); took < 3*time.Millisecond {
				t.Errorf("three rounds with a delay of 1 ms took %v", took)
			}
			if i := impairments(t, d)[name+" out"]; i.Packets == 0 || i.Packets > 20 {
				t.Errorf("of three rounds %d packets are the queue pair's", i.Packets)
			}
		}
		if err := a.QP.Close(); err != nil {
			t.Fatal(err)
		}
		if all := impairments(t, d); len(all) != 0 {
			t.Errorf("%s: behind the queue pair: %v", transport, all)
		}
	}
}

// What is done to a port that leads out is done to what goes through it, either way.
func TestImpairPort(t *testing.T) {
	dir, err := os.MkdirTemp("", "vrnic")
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(dir)
	with := func(device, port string) func(*daemon.Config) {
		return func(c *daemon.Config) {
			devices(t, device)(c)
			p, err := daemon.ParsePort(port)
			if err != nil {
				t.Fatal(err)
			}
			c.Ports = []daemon.PortSpec{p}
		}
	}
	left := daemontest.Start(t, with("left,addr=10.88.0.1/24", "unix-listen:"+dir+"/link"))
	right := daemontest.Start(t, with("right,addr=10.88.0.2/24", "unix-connect:"+dir+"/link"))
	a := daemontest.NewEnd(t, daemontest.Open(t, left.Dial(), "left"), 1<<18)
	b := daemontest.NewEnd(t, daemontest.Open(t, right.Dial(), "right"), 1<<18)
	daemontest.Connect(t, a, b, daemontest.Addr(t, b.Dev, false, 0))
	rows, err := left.Dial().List("port")
	if err != nil {
		t.Fatal(err)
	}
	name := ""
	for _, raw := range rows {
		var row struct{ Port, Kind string }
		if err := json.Unmarshal(raw, &row); err != nil {
			t.Fatal(err)
		}
		if row.Kind == "unix" {
			name = row.Port
		}
	}
	mustChange(t, left, shm.Set, "impair", "both 3 "+name+"\ndelay 5ms\nloss 2%")
	if took := echo(t, a, b, 30, long); took < 30*2*5*time.Millisecond {
		t.Errorf("thirty rounds with a delay of 5 ms either way took %v", took)
	}
	for _, direction := range []string{"out", "in"} {
		if i := impairments(t, left)[name+" "+direction]; i.Lost == 0 {
			t.Errorf("%s: %+v", direction, i)
		}
	}
	c := left.Dial()
	if err := c.Change(changeTime(t), shm.Change{Verb: shm.Del, Key: "port", Value: name,
		Force: true}); err != nil {
		t.Fatal(err)
	}
	if all := impairments(t, left); len(all) != 0 {
		t.Errorf("behind the port: %+v", all)
	}
}

// Of two devices that are one station only one has its packets impaired.
func TestImpairOneOfStation(t *testing.T) {
	d := daemontest.Start(t, devices(t, "iw0,addr=10.77.0.2/24", "iw1,addr=10.77.0.3/24",
		"rocep0,addr=10.77.0.2/24,transport=roce", "rocep1,addr=10.77.0.3/24,transport=roce"))
	a, b := near(t, d, "iw0", "iw1", false)
	x, y := near(t, d, "rocep0", "rocep1", false)
	for _, tt := range []struct {
		impaired, other string
		a, b            *daemontest.End
	}{{"iw0", "rocep0", x, y}, {"rocep0", "iw0", a, b}} {
		mustChange(t, d, shm.Set, "impair", "both 7 "+tt.impaired+"\nloss 100%")
		echo(t, tt.a, tt.b, 5, short)
		mustChange(t, d, shm.Del, "impair", tt.impaired)
	}
	echo(t, a, b, 1, short)
	echo(t, x, y, 1, short)
}

// A device with an address of the host has its datagrams impaired. Its streams are the kernel's.
func TestImpairHost(t *testing.T) {
	d := daemontest.Start(t, devices(t, "iw0,host=127.77.9.1", "roce0,host=127.77.9.2,transport=roce",
		"roce1,host=127.77.9.3,transport=roce"))
	wantRefused(t, change(t, d, shm.Set, "impair", "both 7 iw0\nloss 1%"), syscall.EINVAL,
		"tc-netem(8)")
	a, b := near(t, d, "roce0", "roce1", false)
	disturbed(t, d, a, b, "roce0")
}

// Two queue pairs of one device of iWARP, whose messages were copied or went through its stack,
// have the network of their device, or of the one of them, as others have: those that there are,
// and those that are connected meanwhile.
func TestImpairWithinIWARP(t *testing.T) {
	for _, loopback := range []string{"copy", "wire"} {
		for _, v6 := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, IPv6 %v", loopback, v6), func(t *testing.T) {
				d := daemontest.Start(t, devices(t,
					"vrnic0,addr=10.77.0.2/24,addr=fd77::2/64,loopback="+loopback))
				a, b := near(t, d, "vrnic0", "vrnic0", v6)
				x, y := near(t, d, "vrnic0", "vrnic0", v6)
				echo(t, a, b, 3, short)
				disturbed(t, d, a, b, "vrnic0")
				name := fmt.Sprintf("vrnic0/%d", a.QP.Num())
				mustChange(t, d, shm.Set, "impair", "both 7 "+name+"\nloss 100%")
				echo(t, x, y, 3, short)
				b.Recv(1, 0, 100)
				a.Send(2, 0, 100)
				needtest.Eventually(t, "a packet that is lost", func() bool {
					return impairments(t, d)[name+" out"].Lost > 0
				})
				mustChange(t, d, shm.Del, "impair", "")
				a.WantStatus("what was lost comes again", 2, 0)
				b.WantStatus("what was lost comes again", 1, 0)

				mustChange(t, d, shm.Set, "impair", "both 7 vrnic0\ndelay 200us\nloss 2%\ncorrupt 1%")
				v, w := near(t, d, "vrnic0", "vrnic0", v6) // this one meanwhile
				for _, p := range [][2]*daemontest.End{{a, b}, {x, y}, {v, w}} {
					was := impairments(t, d)["vrnic0 out"].Packets
					echo(t, p[0], p[1], 15, long)
					if i := impairments(t, d)["vrnic0 out"]; i.Packets-was < 100 || i.Outside != 0 {
						t.Errorf("%+v, %d packets before", i, was)
					}
				}
				for _, direction := range []string{"out", "in"} {
					if i := impairments(t, d)["vrnic0 "+direction]; i.Lost == 0 || i.Corrupted == 0 {
						t.Errorf("%s: %+v", direction, i)
					}
				}
			})
		}
	}
}

// What goes through memory of the daemon, since somebody has captured the device, has the network
// of the device, too, or of its queue pair, while it is captured and behind that.
func TestImpairCaptured(t *testing.T) {
	for _, whole := range []bool{false, true} {
		d := daemontest.Start(t, devices(t, "vrnic0,addr=10.77.0.2/24"))
		a, b := near(t, d, "vrnic0", "vrnic0", false)
		conn, err := d.Dial().Capture(changeTime(t), []string{"vrnic0"}, 64, false)
		if err != nil {
			t.Fatal(err)
		}
		echo(t, a, b, 3, long)
		if whole {
			conn.Close()
		}
		name := fmt.Sprintf("vrnic0/%d", a.QP.Num())
		if whole {
			name = "vrnic0"
		}
		mustChange(t, d, shm.Set, "impair", "both 7 "+name+"\ndelay 200us\nloss 2%\ncorrupt 1%")
		was := impairments(t, d)[name+" out"].Packets
		echo(t, a, b, 20, long)
		for _, direction := range []string{"out", "in"} {
			i := impairments(t, d)[name+" "+direction]
			if i.Outside != 0 || i.Packets-was < 100 || i.Lost == 0 || i.Corrupted == 0 {
				t.Errorf("%s: %+v", direction, i)
			}
		}
		mustChange(t, d, shm.Del, "impair", name)
		echo(t, a, b, 3, long)
		conn.Close()
		echo(t, a, b, 3, long)
	}
}

// A connection that was asked for before its device is impaired, and comes about meanwhile, has the
// device's network, too.
func TestImpairPending(t *testing.T) {
	d := daemontest.Start(t, devices(t, "vrnic0,addr=10.77.0.2/24"))
	c, other := d.Dial(), d.Dial()
	a := daemontest.NewEnd(t, daemontest.Open(t, c, "vrnic0"), 1<<18)
	b := daemontest.NewEnd(t, daemontest.Open(t, other, "vrnic0"), 1<<18)
	ctx := changeTime(t)
	l, err := b.Dev.Listen(daemontest.Addr(t, b.Dev, false, 0), 1)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	done := make(chan error, 1)
	go func() {
		var err error
		a.Conn, err = a.Dev.Connect(ctx, a.QP, l.Addr(), rdma.ConnParam{})
		done <- err
	}()
	req, err := l.Next(ctx)
	if err != nil {
		t.Fatal(err)
	}
	mustChange(t, d, shm.Set, "impair", "both 7 vrnic0\ndelay 10ms")
	if b.Conn, err = req.Accept(ctx, b.QP, rdma.ConnParam{}); err != nil {
		t.Fatal(err)
	}
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	needtest.Eventually(t, "none that copies", func() bool {
		return impairments(t, d)["vrnic0 out"].Outside == 0
	})
	if took := echo(t, a, b, 3, short); took < 3*10*time.Millisecond {
		t.Errorf("three rounds with a delay of 10 ms took %v", took)
	}
}

// What is on its way when a schedule changes, the device goes or the daemon ends disturbs nobody;
// what cannot be is refused in words.
func TestImpairEnds(t *testing.T) {
	d := daemontest.Start(t)
	for value, words := range map[string]string{
		"both 1 nobody\nloss 1%":      "no device, port or queue pair nobody",
		"both 1 vrnic0/99\nloss 1%":   "no queue pair 99",
		"both 1 vrnic0/x\nloss 1%":    "DEVICE/QPN",
		"both 1 vrnic0\nloss":         "how much",
		"up 1 vrnic0\nloss 1%":        "direction",
		"both -1 vrnic0\nloss 1%":     "parsing",
		"both":                        "no impairment",
		"both 1 vrnic0\nat 5s jitter": "line 1",
	} {
		wantRefused(t, change(t, d, shm.Set, "impair", value), syscall.EINVAL, words)
	}
	wantRefused(t, change(t, d, shm.Del, "impair", "vrnic0"), syscall.EINVAL, "nothing is done")
	wantRefused(t, change(t, d, shm.Add, "impair", "vrnic0"), syscall.EINVAL, "verb")
	c := d.Dial()
	a := daemontest.NewEnd(t, daemontest.Open(t, c, "vrnic0"), 1<<12)
	wantRefused(t, change(t, d, shm.Set, "impair", fmt.Sprintf("both 1 vrnic0/%d\nloss 1%%",
		a.QP.Num())), syscall.EINVAL, "not connected")
	mustChange(t, d, shm.Add, "device", third)
	mustChange(t, d, shm.Set, "impair", "both 1 vrnic2\ndelay 10s")
	mustChange(t, d, shm.Set, "impair", "both 1 vrnic1\ndelay 10s\nat 60m loss 5%")
	if all := impairments(t, d); len(all) != 4 || !strings.Contains(all["vrnic1 in"].Words,
		"; at 60m") {
		t.Errorf("%+v", all)
	}
	mustChange(t, d, shm.Del, "device", "vrnic2")
	if all := impairments(t, d); len(all) != 2 {
		t.Errorf("behind the device: %+v", all)
	}
	for i := range 64 {
		err := change(t, d, shm.Set, "impair", fmt.Sprintf("both 1 vrnic0\nlimit %d loss 1%%", i+1))
		if err != nil {
			t.Fatal(err)
		}
	}
}

// What is done to a queue pair's packets ends with the queue pair, though nobody asks for a list:
// connections within the device that are made behind it are copied again.
func TestImpairmentEndsWithQP(t *testing.T) {
	d := daemontest.Start(t, devices(t, "vrnic0,addr=10.77.0.2/24"))
	c := d.Dial()
	copied := func() bool {
		a := daemontest.NewEnd(t, daemontest.Open(t, c, "vrnic0"), 1<<12)
		b := daemontest.NewEnd(t, daemontest.Open(t, c, "vrnic0"), 1<<12)
		daemontest.Connect(t, a, b, daemontest.Addr(t, b.Dev, false, 0))
		rows, err := c.List("qp")
		if err != nil {
			t.Fatal(err)
		}
		var is bool
		for _, raw := range rows {
			var row struct {
				QPN       uint32 `json:"qpn"`
				Transport string `json:"transport"`
			}
			if err := json.Unmarshal(raw, &row); err != nil {
				t.Fatal(err)
			}
			is = is || row.QPN == a.QP.Num() && row.Transport == "loop"
		}
		if err := errors.Join(a.Dev.Close(), b.Dev.Close()); err != nil {
			t.Fatal(err)
		}
		return is
	}
	if !copied() {
		t.Fatal("messages within a device are not copied to begin with")
	}
	a, _ := near(t, d, "vrnic0", "vrnic0", false)
	mustChange(t, d, shm.Set, "impair", fmt.Sprintf("both 7 vrnic0/%d\nloss 1%%", a.QP.Num()))
	if copied() {
		t.Error("what is impaired is not watched")
	}
	if err := a.QP.Close(); err != nil {
		t.Fatal(err)
	}
	if !needtest.Becomes(copied) {
		t.Error("behind the queue pair messages within its device are still not copied")
	}
}
