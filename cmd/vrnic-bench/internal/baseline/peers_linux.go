package baseline

import (
	"context"
	"errors"
	"net/netip"
	"strconv"

	"github.com/vrnic/vrnic/cmd/vrnic-bench/internal/proc"
	"github.com/vrnic/vrnic/cmd/vrnic-bench/internal/rawtcp"
)

// An answer is what a peer says to a Request.
type answer struct {
	Error  string `json:",omitempty"`
	Result rawtcp.Result
}

// A PeerSite is where one of two peers is.
type PeerSite struct {
	NetNS string       // "" for this process's
	Addr  netip.Prefix // on Tap, or in the kernel there
	Tap   string       // of its own stack; "": the kernel's
	MTU   int          // of Tap and its stack; 0: the default
	UDP   bool         // echoes of UDP, not TCP; the kernel's only
	// Plug is called when the process has started, before it is used.
	Plug func() error
}

// Peers is TCP, or UDP, between two processes, each of which runs this program with the arguments
// self before those of a Peer.
type Peers struct {
	name           string
	kernel, udp    bool
	server, client *proc.Process
}

// StartPeers starts the two: what is measured goes from client to server.
func StartPeers(name string, self []string, server, client PeerSite) (p *Peers, err error) {
	p = &Peers{name: name, kernel: server.Tap == "" && client.Tap == "", udp: client.UDP}
	defer func() {
		if err != nil {
			p.Close()
			p = nil
		}
	}()
	start := func(s PeerSite, more ...string) (*proc.Process, error) {
		args := append(self[1:len(self):len(self)], "--addr", s.Addr.String())
		if s.NetNS != "" {
			args = append(args, "--netns", s.NetNS)
		}
		if s.Tap != "" {
			args = append(args, "--tap", s.Tap)
		}
		if s.MTU != 0 {
			args = append(args, "--mtu", strconv.Itoa(s.MTU))
		}
		if s.UDP {
			args = append(args, "--udp")
		}
		pr, err := proc.Start(peerReady, self[0], append(args, more...)...)
		if err == nil && s.Plug != nil {
			err = s.Plug()
		}
		return pr, err
	}
	if p.server, err = start(server); err != nil {
		return p, err
	}
	p.client, err = start(client, "--peer", p.server.Ready())
	return p, err
}

// Close ends both.
func (p *Peers) Close() {
	for _, pr := range []*proc.Process{p.client, p.server} {
		if pr != nil {
			pr.Close()
		}
	}
}

func (p *Peers) Name() string     { return p.name }
func (p *Peers) Does(k Kind) bool { return k == RoundTrip || !p.udp }
func (p *Peers) Traits() Traits   { return Traits{Polls: p.kernel && !p.udp} }

// Measure implements Baseline.
func (p *Peers) Measure(ctx context.Context, req Request) (rawtcp.Result, error) {
	var a answer
	if err := p.client.Ask(ctx, req, &a); err != nil {
		return a.Result, err
	}
	if a.Error != "" {
		return a.Result, errors.New(a.Error)
	}
	return a.Result, nil
}
