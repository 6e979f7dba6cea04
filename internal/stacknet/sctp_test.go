package stacknet_test

import (
	"bytes"
	"context"
	"errors"
	"net/netip"
	"syscall"
	"testing"

	"github.com/vrnic/vrnic/internal/sctpnet"
	"github.com/vrnic/vrnic/internal/stacknet"
	"github.com/vrnic/vrnic/netstack/ethswitch"
	"github.com/vrnic/vrnic/netstack/netstacktest"
	"github.com/vrnic/vrnic/netstack/port/porttest"
	"github.com/vrnic/vrnic/netstack/sctp"
	"github.com/vrnic/vrnic/sctpddp"
	"github.com/vrnic/vrnic/vnic"
)

// A handler passes on the end of an association, and waits until it is let go.
type handler struct {
	down chan error
	goOn chan struct{}
	over <-chan struct{} // closed when the test is
}

func (h *handler) Message(sctpddp.Message, any) {}
func (h *handler) Notify()                      {}
func (h *handler) Down(_ sctpddp.LossKind, err error) {
	h.down <- err
	select {
	case <-h.goOn:
	case <-h.over:
	}
}

func newHandler(t *testing.T) *handler {
	return &handler{make(chan error, 1), make(chan struct{}), t.Context().Done()}
}

// Who sends while an association ends does not learn of it by an error of that: Down says why it
// has ended.
func TestSendAtEnd(t *testing.T) {
	sw := []*ethswitch.Switch{ethswitch.New(ethswitch.Config{}), ethswitch.New(ethswitch.Config{})}
	porttest.Wire(t, sw[0], sw[1], false, nil)
	var nets []*stacknet.Network
	var addrs []netip.Addr
	for i := range 2 {
		st := netstacktest.NewStack(t, sw[i], i+1, 1500)
		n := stacknet.New(st)
		t.Cleanup(func() { n.Close() })
		nets, addrs = append(nets, n), append(addrs, st.Addrs()[0].Addr())
	}
	to := netip.AddrPortFrom(addrs[1], 7)
	theirs, ours := newHandler(t), newHandler(t)
	accepted := make(chan vnic.Association, 1)
	l, err := nets[1].ListenSCTP(to,
		func(a vnic.Association) vnic.AssociationHandler { accepted <- a; return theirs })
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	a, err := nets[0].DialSCTP(context.Background(), netip.Addr{}, to, vnic.SCTPForDDP, ours)
	if err != nil {
		t.Fatal(err)
	}
	send := func() (uint64, error) {
		return a.Send(0, uint32(sctpddp.PPIDSegment), bytes.NewReader(make([]byte, 8)))
	}
	if id, err := send(); id != 1 || err != nil {
		t.Fatalf("before the end: %d, %v", id, err)
	}
	close(theirs.goOn)
	peer, aborted := <-accepted, make(chan struct{})
	go func() { // which may carry the news to our handler
		defer close(aborted)
		peer.Abort("no more")
	}()
	var abort *sctp.PeerAbort
	if err := <-ours.down; !errors.As(err, &abort) {
		t.Errorf("it ended for %v", err)
	}
	if id, err := send(); id != 0 || err != nil {
		t.Errorf("at the end: %d, %v", id, err)
	}
	close(ours.goOn)
	<-aborted
}

// A listener at any address of IPv4 leaves IPv6 to another one, as RCM-060 has it of ids; one at
// any address of IPv6 is for both.
func TestListenFamilies(t *testing.T) {
	st := netstacktest.NewStack(t, ethswitch.New(ethswitch.Config{}), 1, 1500)
	n := stacknet.New(st)
	t.Cleanup(func() { n.Close() })
	listen := func(at netip.Addr, port uint16) error {
		l, err := n.ListenSCTP(netip.AddrPortFrom(at, port),
			func(vnic.Association) vnic.AssociationHandler { return nil })
		if err == nil {
			t.Cleanup(func() { l.Close() })
		}
		return err
	}
	four, six := st.Addrs()[0].Addr(), st.Addrs()[1].Addr()
	if err := errors.Join(listen(netip.IPv4Unspecified(), 7), listen(six, 7)); err != nil {
		t.Errorf("a listener of each family: %v", err)
	}
	if err := listen(four, 7); !errors.Is(err, syscall.EADDRINUSE) {
		t.Errorf("an address of IPv4 beside any of IPv4: %v", err)
	}
	if err := listen(netip.IPv6Unspecified(), 8); err != nil {
		t.Fatal(err)
	}
	for _, a := range []netip.Addr{four, six} {
		if err := listen(a, 8); !errors.Is(err, syscall.EADDRINUSE) {
			t.Errorf("%v beside any of both families: %v", a, err)
		}
	}
}

// A listener at any address of IPv4 leaves IPv6 to another one where there is no IPv4, too.
// RCM-060.
func TestListenWithoutIPv4(t *testing.T) {
	st := netstacktest.NewStack(t, ethswitch.New(ethswitch.Config{}), 1, 1500)
	t.Cleanup(func() { st.SCTP().Close() })
	six := st.Addrs()[1].Addr()
	n := sctpnet.New(st.SCTP(), []netip.Addr{six})
	for _, at := range []netip.Addr{netip.IPv4Unspecified(), netip.IPv6Unspecified()} {
		l, err := n.ListenSCTP(netip.AddrPortFrom(at, 7),
			func(vnic.Association) vnic.AssociationHandler { return nil })
		if err != nil {
			t.Errorf("%v: %v", at, err)
			continue
		}
		defer l.Close()
	}
}
