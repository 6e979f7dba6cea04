package port

import (
	"bytes"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"unsafe"

	"github.com/songgao/water"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/vrnic/vrnic/netstack/ethswitch"
	"github.com/vrnic/vrnic/netstack/frame"
	"github.com/vrnic/vrnic/netstack/internal/doze"
)

// TAPConfig describes a TAP. The device is created if there is none of that name, and then goes
// away again on Close; one that is there is attached to and left as it was.
type TAPConfig struct {
	Name  string         // of the device, and of the port on the switch
	NetNS string         // path of the network namespace the device is in; empty: the caller's
	Addrs []netip.Prefix // for the kernel's side
	MTU   int            // for the kernel's side; 0: as it is
	MAC   frame.MAC      // for the kernel's side; zero: as it is
	Plain bool           // do not try offloads
	// Beside, if not "", is the port of the switch, a stack's, with which the kernel's side is one
	// station: it has that one's MAC and Addrs, and KeepPort keeps ports from its programs.
	Beside string
	// OnLink, if not nil, is called when the link goes down, with why, and when it is up again: one
	// call after the other, on a goroutine of the port, which Close waits for.
	OnLink func(up bool, why error)
}

// A TAP is a port whose other end is a network device of the kernel. If that is removed, the port
// waits for the next one of that name, and makes it if OpenTAP had made the first.
type TAP struct {
	cfg TAPConfig
	// fd is the same as long as the port is there, also when the device is another one.
	fd       int
	offloads bool
	udp      bool // super-frames of UDP, too
	made     bool // by OpenTAP
	lent     bool // it is of LendTAP
	found    bool // the device that takeUp took up last was there; takeUp's
	at       *ethswitch.Attachment
	k        *kernelIf
	keeper   *portKeeper    // nil: the kernel's side is a station of its own, or was lent
	undo     []func() error // what Close does about the device, last first

	doze *doze.Epoll // what the reader waits on; the reader's

	closing sync.Once
	err     error         // of Close
	stop    chan struct{} // closed by Close
	wg      sync.WaitGroup

	lost  atomic.Bool      // the device is gone, and the reader waits on dozes
	news  chan struct{}    // one slot: something has become of the device
	dozes chan *doze.Epoll // one slot: what to wait on from now on

	mu sync.Mutex
	// waits is where the reader waits for frames of fd; down is why the link is down, or "".
	waits *doze.Epoll // +checklocks:mu
	down  string      // +checklocks:mu
}

// OpenTAP creates or attaches to the TAP c describes, sets it up, and makes it a port of sw. If it
// fails nothing of it is left. Where the kernel allows it the port takes and gives super-frames and
// partial checksums (IFF_VNET_HDR, TUNSETOFFLOAD); else plain frames.
func OpenTAP(sw *ethswitch.Switch, c TAPConfig) (*TAP, error) {
	c.Addrs = slices.Clone(c.Addrs)
	t := &TAP{cfg: c, fd: -1, stop: make(chan struct{}), news: make(chan struct{}, 1),
		dozes: make(chan *doze.Epoll, 1)}
	var events *nl.NetlinkSocket
	err := checkIfName(c.Name)
	if err == nil {
		err = inNetNS(c.NetNS, func() (err error) {
			if err = t.setUp(); err == nil {
				events, err = nl.Subscribe(unix.NETLINK_ROUTE, unix.RTNLGRP_LINK,
					unix.RTNLGRP_IPV4_IFADDR, unix.RTNLGRP_IPV6_IFADDR)
			}
			return err
		})
	}
	if err == nil {
		err = t.openDoze()
	}
	if err == nil && c.Beside != "" {
		t.keeper, err = newPortKeeper(c.Name, c.NetNS)
	}
	if err == nil {
		t.at, err = sw.Attach(ethswitch.PortOptions{Name: c.Name, Kind: "tap", Beside: c.Beside}, t)
	}
	if err != nil {
		if events != nil {
			events.Close()
		}
		if errors.Is(err, os.ErrPermission) {
			err = t.notAllowed(err)
		}
		return nil, errors.Join(fmt.Errorf("netstack: tap %s: %w", c.Name, err), t.release())
	}
	t.begin(func() { t.watch(events) })
	return t, nil
}

// begin has the device, which is attached, read and watched.
func (t *TAP) begin(watch func()) {
	t.mu.Lock()
	t.doze = t.waits
	t.mu.Unlock()
	t.wg.Add(2)
	go t.read()
	go watch()
}

// notAllowed says what lets this user have a TAP.
func (t *TAP) notAllowed(err error) error {
	name, more := t.cfg.Name, ""
	if t.cfg.MAC != (frame.MAC{}) {
		more = fmt.Sprintf(" && ip link set %s address %v", name, t.cfg.MAC)
	}
	for _, p := range t.cfg.Addrs {
		more += fmt.Sprintf(" && ip addr add %v dev %s", p, name)
	}
	return fmt.Errorf("%w: run it as root, or have root make the device for uid %d: "+
		"`ip tuntap add dev %s mode tap user %d%s && ip link set %s up`", err, os.Geteuid(), name,
		os.Geteuid(), more, name)
}

// A tapFile is the descriptor of a TAP, which is open for as long as anybody waits for its frames.
type tapFile int

// Control implements doze.File.
func (fd tapFile) Control(f func(uintptr)) error { f(uintptr(fd)); return nil }

// openDoze gives the reader a place to wait for frames of the device, instead of the one before,
// which it closes. Of a port that is being closed it is one where read does not wait, as endRead
// has left the one before.
func (t *TAP) openDoze() error {
	waits, err := doze.New(tapFile(t.fd))
	if err != nil {
		return fmt.Errorf("cannot wait for frames: %w", err)
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.waits != nil {
		t.waits.Close()
	}
	t.waits = waits
	select {
	case <-t.stop:
		return waits.SetReadDeadline(readOver)
	default:
		return nil
	}
}

// checkIfName refuses names that the kernel does, and those it would take as a pattern.
func checkIfName(name string) error {
	if name == "" || len(name) >= unix.IFNAMSIZ || name == "." || name == ".." ||
		strings.ContainsAny(name, "/:% \t\n\v\f\r\x00") {
		return fmt.Errorf("%q is not a name for an interface", name)
	}
	return nil
}

// setUp makes the device ready; it runs in the device's namespace. What it has done is in t.undo
// also when it fails.
func (t *TAP) setUp() error {
	k, err := newKernelIf(t.cfg.Name)
	if err != nil {
		return err
	}
	t.k = k
	t.undo = append(t.undo, func() error { k.close(); return nil })
	_, err = k.link()
	t.made = errors.Is(err, unix.ENODEV)
	if err != nil && !t.made {
		return fmt.Errorf("look up: %w", err)
	}
	if t.made {
		if err := createTAP(t.cfg.Name); err != nil {
			return fmt.Errorf("create: %w", err)
		}
		t.undo = append(t.undo, k.remove)
	}
	if err := t.attach(); err != nil {
		return err
	}
	if t.made {
		// From here on the device goes when fd is closed, however the process ends.
		if err := unix.IoctlSetInt(t.fd, unix.TUNSETPERSIST, 0); err != nil {
			return fmt.Errorf("clear persistence: %w", err)
		}
	}
	return t.configure(!t.made)
}

// createTAP makes a device that stays when its file is closed, so that it can be attached to again
// with flags that water does not know.
func createTAP(name string) error {
	// water leaves its file open when it fails; so it is tried first whether it would.
	fd, err := openTun(name, unix.IFF_TAP|unix.IFF_NO_PI)
	if err != nil {
		return err
	}
	unix.Close(fd)
	w, err := water.New(water.Config{
		DeviceType:             water.TAP,
		PlatformSpecificParams: water.PlatformSpecificParams{Name: name, Persist: true},
	})
	if err != nil {
		return err
	}
	return w.Close()
}

// openTun opens the device with TUNSETIFF.
func openTun(name string, flags uint16) (fd int, err error) {
	fd, err = unix.Open("/dev/net/tun", unix.O_RDWR|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	if err != nil {
		return -1, fmt.Errorf("/dev/net/tun: %w", err)
	}
	if err = setIff(fd, name, flags); err != nil {
		unix.Close(fd)
		return -1, err
	}
	return fd, nil
}

// setIff makes fd, which has no device, a file of that one.
func setIff(fd int, name string, flags uint16) error {
	r, err := unix.NewIfreq(name)
	if err == nil {
		r.SetUint16(flags)
		err = unix.IoctlIfreq(fd, unix.TUNSETIFF, r)
	}
	switch {
	case err == nil:
		return nil
	case errors.Is(err, unix.EBUSY):
		err = fmt.Errorf("%w (another program has it: choose another name)", err)
	case errors.Is(err, unix.EPERM):
		err = fmt.Errorf("%w (it takes CAP_NET_ADMIN)", err)
	}
	return fmt.Errorf("TUNSETIFF: %w", err)
}

// attach opens the device with offloads, or if it refuses those without.
func (t *TAP) attach() error {
	try := []bool{true, false}
	if t.cfg.Plain {
		try = try[1:]
	}
	var err error
	for _, offloads := range try {
		// A device that somebody made with several queues takes that flag only.
		for _, queues := range []uint16{0, unix.IFF_MULTI_QUEUE} {
			var fd int
			var udp bool
			if fd, udp, err = attachTAP(t.cfg.Name, offloads, queues); err == nil {
				t.fd, t.offloads, t.udp = fd, offloads, udp
				return nil
			}
			if !errors.Is(err, unix.EINVAL) {
				break
			}
		}
		if errors.Is(err, unix.EBUSY) || errors.Is(err, unix.EPERM) {
			break
		}
	}
	return fmt.Errorf("attach: %w", err)
}

func attachTAP(name string, offloads bool, queues uint16) (fd int, udp bool, err error) {
	fd, err = openTun(name, tapFlags(offloads, queues))
	if err != nil {
		return -1, false, err
	}
	if udp, err = setOffloads(fd, offloads); err != nil {
		unix.Close(fd)
		return -1, false, err
	}
	return fd, udp, nil
}

func tapFlags(offloads bool, queues uint16) uint16 {
	flags := unix.IFF_TAP | unix.IFF_NO_PI | queues
	if offloads {
		flags |= unix.IFF_VNET_HDR
	}
	return flags
}

// setOffloads asks for offloads, or for none. udp: UDP's are among them, which Linux has from 6.2
// on.
func setOffloads(fd int, offloads bool) (udp bool, err error) {
	features := 0
	if offloads {
		features = unix.TUN_F_CSUM | unix.TUN_F_TSO4 | unix.TUN_F_TSO6
		err = unix.IoctlSetPointerInt(fd, unix.TUNSETVNETHDRSZ, frame.VirtioHeaderLen)
	}
	if err == nil {
		const uso = unix.TUN_F_USO4 | unix.TUN_F_USO6
		if offloads && unix.IoctlSetInt(fd, unix.TUNSETOFFLOAD, features|uso) == nil {
			return true, nil
		}
		if err = unix.IoctlSetInt(fd, unix.TUNSETOFFLOAD, features); err != nil && !offloads {
			err = nil // there is nothing to switch off
		}
	}
	if err != nil {
		return false, fmt.Errorf("offloads: %w", err)
	}
	return false, nil
}

// configure sets MTU, link state and addresses, and notes how to put back those of a device that
// was there before.
func (t *TAP) configure(existed bool) error {
	k := t.k
	undoing := func(f func() error) {
		if existed {
			t.undo = append(t.undo, f)
		}
	}
	was, err := k.link()
	if err != nil {
		return fmt.Errorf("look up: %w", err)
	}
	if old := was.Attrs().MTU; t.cfg.MTU != 0 && old != t.cfg.MTU {
		if err := k.setMTU(t.cfg.MTU); err != nil {
			return err
		}
		undoing(func() error { return k.setMTU(old) })
	}
	if old := was.Attrs().HardwareAddr; t.cfg.MAC != (frame.MAC{}) &&
		!bytes.Equal(old, t.cfg.MAC[:]) {
		if err := k.setMAC(t.cfg.MAC[:]); err != nil {
			return err
		}
		undoing(func() error { return k.setMAC(old) })
	}
	if was.Attrs().Flags&net.FlagUp == 0 {
		if err := k.setUp(true); err != nil {
			return err
		}
		undoing(func() error { return k.setUp(false) })
	}
	var refused error
	for _, p := range t.cfg.Addrs {
		added, err := k.addAddr(p)
		switch {
		case errors.Is(err, unix.EACCES): // of IPv6, where that is disabled; others are had
			refused = err
		case err != nil:
			return err
		case added:
			undoing(func() error { return k.delAddr(p) })
		}
	}
	return refused
}

// release undoes what was set up and closes every file.
func (t *TAP) release() error {
	var errs []error
	t.mu.Lock()
	if t.waits != nil {
		errs = append(errs, t.waits.Close())
	}
	t.mu.Unlock()
	if t.fd >= 0 {
		errs = append(errs, unix.Close(t.fd)) // this ends a device that we made
	}
	for _, f := range slices.Backward(t.undo) {
		if err := f(); err != nil && !errors.Is(err, unix.ENODEV) {
			errs = append(errs, err)
		}
	}
	t.undo = nil
	t.keeper.close()
	return errors.Join(errs...)
}

// Close takes the port off its switch, ends its goroutines, removes the device if OpenTAP made it
// and else puts back what OpenTAP changed.
func (t *TAP) Close() error {
	t.closing.Do(func() {
		t.at.Detach()
		close(t.stop)
		err := t.endRead()
		t.wg.Wait()
		if err = errors.Join(err, t.release()); err != nil {
			t.err = fmt.Errorf("netstack: tap %s: %w", t.cfg.Name, err)
		}
	})
	return t.err
}

// Name is the name of the device.
func (t *TAP) Name() string { return t.cfg.Name }

// Offloads implements Port: it reports whether super-frames of a kind are in use.
func (t *TAP) Offloads(kind frame.GSO) bool { return t.offloads && (kind != frame.GSOUDP || t.udp) }

// Stats returns the port's counters.
func (t *TAP) Stats() ethswitch.PortStats { return t.at.Stats() }

// String implements Port.
func (t *TAP) String() string {
	s := "device " + t.cfg.Name
	if t.cfg.NetNS != "" {
		s += " netns " + t.cfg.NetNS
	}
	if t.offloads {
		s += " offloads csum,tso4,tso6"
		if t.udp {
			s += ",uso4,uso6"
		}
	} else {
		s += " plain frames"
	}
	if t.cfg.Beside != "" {
		s += " shared with " + t.cfg.Beside
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.down != "" {
		s += " (" + t.down + ")"
	}
	return s
}

// A tapWrite holds what one write needs, so that it does not allocate.
type tapWrite struct {
	hdr  [frame.VirtioHeaderLen]byte
	iov  []unix.Iovec
	flat []byte // a frame of too many pieces, copied together
}

var tapWrites = sync.Pool{New: func() any { return &tapWrite{iov: make([]unix.Iovec, 0, 64)} }}

// maxPieces is how many the kernel takes in one call: UIO_MAXIOV.
const maxPieces = 1024

// add adds a piece.
func (w *tapWrite) add(b []byte) {
	if len(b) == 0 {
		return
	}
	w.iov = append(w.iov, vector(b))
}

// vector is b for a system call.
func vector(b []byte) unix.Iovec {
	v := unix.Iovec{Base: unsafe.SliceData(b)}
	v.SetLen(len(b))
	return v
}

// addFrame adds the pieces of f.
func (w *tapWrite) addFrame(f *frame.Frame) {
	begin := len(w.iov)
	for v := range f.Views() {
		if len(w.iov) == maxPieces {
			w.flat = f.AppendTo(w.flat[:0])
			w.iov = w.iov[:begin]
			w.add(w.flat)
			return
		}
		w.add(v)
	}
}

// Transmit implements Port: it gives a frame to the kernel.
func (t *TAP) Transmit(f *frame.Frame, _ *ethswitch.Delivery) bool {
	w := tapWrites.Get().(*tapWrite)
	if t.offloads {
		frame.PutVirtio(&w.hdr, f.Offload)
		w.add(w.hdr[:])
	}
	w.addFrame(f)
	err := t.write(w.iov, f.Len() <= ethswitch.ShortFrame)
	clear(w.iov)
	w.iov = w.iov[:0]
	tapWrites.Put(w)
	return err == nil
}

// write never waits: a TAP takes a frame or drops it. x/sys's Writev would allocate for more than
// eight pieces. Of a short call Go's scheduler is not told, as of rxBuffers.read.
func (t *TAP) write(iov []unix.Iovec, short bool) error {
	for {
		var err unix.Errno
		if short {
			_, _, err = unix.RawSyscall(unix.SYS_WRITEV, uintptr(t.fd),
				uintptr(unsafe.Pointer(unsafe.SliceData(iov))), uintptr(len(iov)))
		} else {
			_, _, err = unix.Syscall(unix.SYS_WRITEV, uintptr(t.fd),
				uintptr(unsafe.Pointer(unsafe.SliceData(iov))), uintptr(len(iov)))
		}
		switch err {
		case 0:
			return nil
		case unix.EINTR:
		default:
			return err
		}
	}
}
