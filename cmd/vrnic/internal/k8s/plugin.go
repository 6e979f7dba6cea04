package k8s

import (
	"context"
	"encoding/json"
	"log/slog"
	"time"

	"github.com/vrnic/vrnic/cmd/vrnic/internal/cdi"
	"github.com/vrnic/vrnic/cmd/vrnic/internal/guest"
)

// Resources that pods ask for.
const (
	RNIC = cdi.Vendor + "/rnic" // a device of the daemon
	Net  = cdi.Vendor + "/net"  // the device of the pod's own network
)

// A Config says what is offered, and to whom.
type Config struct {
	Socket string // of the daemon
	Dir    string // the kubelet's, for plugins
	Share  int    // how many containers may have a device at once
	Pods   int    // how many may have that of their network; 0: there is no such resource
	Mounts bool   // give mounts and environment, to runtimes without the Container Device Interface

	Node string // Driver's: the name of the node
	API  *API   // Driver's: the API server

	Generator *cdi.Generator
	Tick      <-chan time.Time // when to look
	Log       *slog.Logger
}

// A Plugin is a device plugin for a daemon.
type Plugin struct {
	Config
	endpoints []*endpoint
	obstacle
}

// New makes one, which is nobody's yet.
func New(c Config) *Plugin {
	p := &Plugin{Config: c}
	p.add(RNIC)
	if c.Pods > 0 {
		p.add(Net)
	}
	return p
}

func (p *Plugin) add(name string) {
	p.endpoints = append(p.endpoints, &endpoint{resource: newResource(name, p.Mounts), dir: p.Dir})
}

// Run serves the kubelet until ctx ends: whichever comes and goes, kubelet or daemon.
func (p *Plugin) Run(ctx context.Context) error {
	defer func() {
		for _, e := range p.endpoints {
			e.end()
		}
	}()
	for {
		err := p.look()
		for _, e := range p.endpoints {
			if berr := p.keep(ctx, e); berr != nil && ctx.Err() == nil {
				err = berr
			}
		}
		p.say(p.Log, err)
		select {
		case <-p.Tick:
		case <-ctx.Done():
			return p.Generator.Close()
		}
	}
}

// keep has the kubelet know a resource.
func (p *Plugin) keep(ctx context.Context, e *endpoint) error {
	if e.current() {
		return nil
	}
	e.end()
	if err := e.begin(ctx); err != nil {
		return err
	}
	p.Log.Info("the kubelet knows a resource", "resource", e.name)
	return nil
}

// look has the resources know what devices there are, and how they are.
func (p *Plugin) look() error {
	of, err := p.offered()
	if of == nil {
		return err
	}
	for _, e := range p.endpoints {
		e.set(of[e.name])
	}
	return err
}

// offered are the devices of each resource. Without a daemon they are those that there were, and no
// pod gets one; nil: there was none yet.
func (c *Config) offered() (of map[string][]device, err error) {
	client, err := c.Generator.Follow(c.Socket)
	active := make(map[string]bool)
	kinds := make(map[string]string)
	if err == nil {
		active[guest.Net] = true
		rows, lerr := client.List("dev")
		err = lerr
		for _, row := range rows {
			var d struct{ Dev, State, Transport string }
			if jerr := json.Unmarshal(row, &d); jerr != nil {
				return nil, jerr
			}
			active[d.Dev] = d.State == "ACTIVE"
			kinds[d.Dev] = d.Transport
		}
	}
	spec := c.Generator.Spec()
	if spec == nil {
		return nil, err
	}
	of = make(map[string][]device)
	for _, s := range spec.Devices {
		d := device{name: s.Name, edits: s.ContainerEdits, healthy: err == nil && active[s.Name],
			transport: kinds[s.Name]}
		switch s.Name {
		case guest.All: // it has the devices of other pods' networks
		case guest.Net:
			d.shares = c.Pods
			of[Net] = append(of[Net], d)
		default:
			d.shares = c.Share
			of[RNIC] = append(of[RNIC], d)
		}
	}
	return of, err
}

// An obstacle is what is in the way.
type obstacle struct {
	said string // at last; "": nothing
}

// say logs it, once.
func (o *obstacle) say(log *slog.Logger, err error) {
	now := ""
	if err != nil {
		now = err.Error()
	}
	if now != o.said && err != nil {
		log.Warn("waiting", "err", err)
	}
	o.said = now
}
