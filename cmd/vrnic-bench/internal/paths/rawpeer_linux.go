package paths

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/netip"
	"runtime"

	"github.com/vrnic/vrnic/cmd/vrnic-bench/internal/rawtcp"
	"github.com/vrnic/vrnic/netstack"
)

// A RawPeer is one end of the netstack TCP baseline, a process of its own: a stack on a TAP.
type RawPeer struct {
	NetNS, Tap string
	Addr       netip.Prefix
	Peer       netip.AddrPort // of the client: the server; else the peer is the server
}

// Run runs r until the end of in: a server serves, a client answers each Request line of in with
// an Answer line on out.
func (r RawPeer) Run(in io.Reader, out io.Writer) error {
	// As the daemon has it: a read of a TAP keeps a P for a while.
	runtime.GOMAXPROCS(max(runtime.GOMAXPROCS(0), 4*runtime.NumCPU()))
	sw := netstack.NewSwitch(netstack.SwitchConfig{})
	defer sw.Close()
	st, err := netstack.NewStack(sw, netstack.Config{Name: "raw", Addrs: []netip.Prefix{r.Addr}})
	if err != nil {
		return err
	}
	defer st.Close()
	tap, err := netstack.OpenTAP(sw, netstack.TAPConfig{Name: r.Tap, NetNS: r.NetNS})
	if err != nil {
		return err
	}
	defer tap.Close()
	if !r.Peer.IsValid() {
		l, err := st.ListenNet(netip.AddrPortFrom(r.Addr.Addr(), basePort))
		if err != nil {
			return err
		}
		defer l.Close()
		go rawtcp.Serve(l)
	}
	fmt.Fprintln(out, "ready")
	lines := bufio.NewScanner(in)
	for lines.Scan() {
		var a Answer
		if a.Result, err = r.answer(st, lines.Bytes()); err != nil {
			a.Error = err.Error()
		}
		if err := json.NewEncoder(out).Encode(a); err != nil {
			return err
		}
	}
	return lines.Err()
}

func (r RawPeer) answer(st *netstack.Stack, line []byte) (res rawtcp.Result, err error) {
	var req Request
	if err := json.Unmarshal(line, &req); err != nil {
		return res, err
	}
	ctx, cancel := context.WithTimeout(context.Background(), dialTimeout)
	defer cancel()
	var c net.Conn
	if c, err = st.DialNet(ctx, r.Peer); err != nil {
		return res, err
	}
	return Measure(c, req)
}
