package port

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/vrnic/vrnic/netstack/frame"
)

// TUNConfig describes a TUN device, which must not be there yet.
type TUNConfig struct {
	Name  string
	Addrs []netip.Prefix // for the kernel's side
	MTU   int
}

// A TUN is a network device of the kernel whose other end takes and gives IP packets. It is no port
// of a switch: packets have no frames.
type TUN struct {
	name   string
	file   *os.File
	k      *kernelIf
	reader *tunReader // nil: each packet is read as it is
}

// OpenTUN makes the TUN that c describes, and sets it up. It goes when it is closed, or when the
// process ends.
func OpenTUN(c TUNConfig) (*TUN, error) {
	err := checkIfName(c.Name)
	var t *TUN
	if err == nil {
		t, err = openTUN(c)
	}
	if err != nil {
		return nil, fmt.Errorf("netstack: tun %s: %w", c.Name, err)
	}
	return t, nil
}

func openTUN(c TUNConfig) (*TUN, error) {
	k, err := newKernelIf(c.Name)
	if err != nil {
		return nil, err
	}
	t := &TUN{name: c.Name, k: k}
	if _, err = k.link(); err == nil {
		err = fmt.Errorf("there is such an interface: choose another name")
	} else if errors.Is(err, unix.ENODEV) {
		err = t.setUp(c)
	}
	if err != nil {
		return nil, errors.Join(err, t.Close())
	}
	return t, nil
}

func (t *TUN) setUp(c TUNConfig) error {
	// Only where several packets fit into 64 KiB there is something to be cut.
	offloads := c.MTU <= 1<<15
	flags := uint16(unix.IFF_TUN | unix.IFF_NO_PI)
	if offloads {
		flags |= unix.IFF_VNET_HDR
	}
	fd, err := openTun(c.Name, flags)
	if err != nil {
		return err
	}
	t.file = os.NewFile(uintptr(fd), "/dev/net/tun")
	if err := t.file.SetReadDeadline(time.Time{}); err != nil {
		return fmt.Errorf("cannot wait for packets: %w", err)
	}
	if offloads {
		err := unix.IoctlSetPointerInt(fd, unix.TUNSETVNETHDRSZ, frame.VirtioHeaderLen)
		if err == nil {
			err = unix.IoctlSetInt(fd, unix.TUNSETOFFLOAD, tunOffloads)
		}
		if err == nil {
			t.reader, err = newTUNReader(t.file)
		}
		if err != nil {
			return fmt.Errorf("offloads: %w", err)
		}
	}
	if err := t.k.setMTU(c.MTU); err != nil {
		return err
	}
	// Its link-local address is one of Addrs: the kernel would make up another one, which nobody on
	// the link would answer for.
	mode := "/proc/sys/net/ipv6/conf/" + c.Name + "/addr_gen_mode"
	if err := os.WriteFile(mode, []byte("1"), 0); err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("no automatic address: %w", err)
	}
	if err := t.k.setUp(true); err != nil {
		return err
	}
	for _, p := range slices.Clone(c.Addrs) {
		if _, err := t.k.addAddr(p); err != nil {
			return err
		}
	}
	return nil
}

// Name is the name of the device.
func (t *TUN) Name() string { return t.name }

// Read waits for the next packet of the kernel's, and reads it into b.
func (t *TUN) Read(b []byte) (int, error) {
	if t.reader != nil {
		return t.reader.next(b)
	}
	return t.file.Read(b)
}

// More reports whether Read will find a packet at once, of those that have come together.
func (t *TUN) More() bool { return t.reader != nil && t.reader.segment.more() }

// Write gives the kernel a packet. What it does not take is lost.
func (t *TUN) Write(p []byte) (int, error) {
	if t.reader == nil {
		return t.file.Write(p)
	}
	if err := writeTUN(t.reader.raw, p); err != nil {
		return 0, err
	}
	return len(p), nil
}

// Close removes the device. A Read that waits ends.
func (t *TUN) Close() error {
	var err error
	if t.file != nil {
		err = t.file.Close()
	}
	t.k.close()
	return err
}
