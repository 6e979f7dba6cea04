package docker

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"net/netip"
	"regexp"
	"slices"
	"sync"
	"syscall"
	"time"

	"github.com/vrnic/vrnic/cmd/vrnic/internal/daemon"
	"github.com/vrnic/vrnic/netstack/port"
	"github.com/vrnic/vrnic/shm"
)

// A Config says what endpoints are made of.
type Config struct {
	Socket string // of the daemon
	// Device are the options of devices, in the words of daemon.ParseDevice; "": none.
	Device string
	Log    *slog.Logger
}

// A Driver makes what endpoints have. Its methods may be called from several goroutines at once.
type Driver struct {
	cfg Config
	log *slog.Logger

	mu    sync.Mutex
	plugs map[string]*plug // by endpoint: those that the daemon does not have yet; +checklocks:mu
}

// New makes a driver. It fails if there can be no such device.
func New(c Config) (*Driver, error) {
	d := &Driver{cfg: c, log: c.Log, plugs: make(map[string]*plug)}
	_, err := d.device(endpoint{device: "rdma"}, &face{Address: "10.0.0.1/24"})
	return d, err
}

// changeTime bounds a change of the daemon.
const changeTime = time.Minute

// endpointID is what Docker calls endpoints, of which the names here have the first octets.
var endpointID = regexp.MustCompile(`^[0-9a-f]{16,128}$`)

// An endpoint is what a container has in a network, by its names.
type endpoint struct{ device, tap string }

func named(id string) (e endpoint, err error) {
	if !endpointID.MatchString(id) {
		return e, fmt.Errorf("%.20q is no endpoint of Docker's", id)
	}
	return endpoint{device: "rdma" + id[:8], tap: "vtap" + id[:8]}, nil
}

// createNetwork has nothing to make: the network is the daemon's switch.
func (d *Driver) createNetwork(_ context.Context, req networkRequest) (any, error) {
	options, _ := req.Options[genericOptions].(map[string]any)
	for name := range options {
		return nil, fmt.Errorf("a network of vrnic's has no option %s: what devices are like is told to "+
			"vrnic docker", name)
	}
	client, err := shm.Dial(d.cfg.Socket)
	if err != nil {
		return nil, err
	}
	return emptyReply{}, client.Close()
}

// createEndpoint makes the device, which has the address at once.
func (d *Driver) createEndpoint(ctx context.Context, req endpointRequest) (any, error) {
	e, err := named(req.EndpointID)
	if err != nil {
		return nil, err
	}
	spec, err := d.device(e, req.Interface)
	if err != nil {
		return nil, err
	}
	if err := d.change(ctx, shm.Change{Verb: shm.Add, Key: "device",
		Value: spec.String()}); err != nil {
		return nil, err
	}
	var reply endpointReply
	if req.Interface.MacAddress == "" {
		reply.Interface.MacAddress = net.HardwareAddr(spec.MAC[:]).String()
	}
	return reply, nil
}

// device is that of an endpoint. Its MAC is said, since the kernel's side has it, too.
func (d *Driver) device(e endpoint, f *face) (spec daemon.DeviceSpec, err error) {
	if f == nil || f.Address == "" && f.AddressIPv6 == "" {
		return spec, errors.New("a device needs an address, and the network gives none: leave " +
			"--ipam-driver null out")
	}
	s := e.device + ",container"
	for _, a := range []string{f.Address, f.AddressIPv6} {
		if a == "" {
			continue
		}
		p, err := netip.ParsePrefix(a) // Docker's, which may have words for it that are not ours
		if err != nil {
			return spec, fmt.Errorf("address %.50q: %w", a, err)
		}
		s += ",addr=" + p.String()
	}
	if d.cfg.Device != "" {
		s += "," + d.cfg.Device
	}
	if f.MacAddress != "" {
		mac, err := net.ParseMAC(f.MacAddress)
		if err != nil {
			return spec, fmt.Errorf("MAC %.50q: %w", f.MacAddress, err)
		}
		s += ",mac=" + mac.String()
	}
	spec, err = daemon.ParseDevice(s)
	spec.MAC = spec.HardwareAddr()
	return spec, err
}

// join makes the TAP, which Docker moves from here.
func (d *Driver) join(_ context.Context, req endpointRequest) (any, error) {
	e, err := named(req.EndpointID)
	if err != nil {
		return nil, err
	}
	spec, err := d.existing(e)
	if err != nil {
		return nil, err
	}
	p, err := newPlug(e, spec)
	if err != nil {
		return nil, err
	}
	d.mu.Lock()
	_, twice := d.plugs[req.EndpointID]
	if !twice {
		d.plugs[req.EndpointID] = p
	}
	d.mu.Unlock()
	if twice { // nobody but another caller: the TAP would be in the way
		return nil, errors.Join(fmt.Errorf("%s has been joined already", e.device), p.end(true))
	}
	go d.deliver(req.EndpointID, p)
	var reply joinReply
	reply.InterfaceName.SrcName, reply.InterfaceName.DstPrefix = e.tap, "eth"
	reply.DisableGatewayService = true
	return reply, nil
}

// deliver hands the TAP over when it is in the container.
func (d *Driver) deliver(id string, p *plug) {
	defer close(p.done)
	err := p.moved()
	if err == nil {
		err = d.connect(p)
	}
	d.mu.Lock()
	if d.plugs[id] == p {
		delete(d.plugs, id)
	}
	d.mu.Unlock()
	if errors.Is(err, context.Canceled) {
		err = nil // it is left, or the driver ends
	} else if err != nil {
		d.log.Error("a container has no network: disconnect it, and connect it again", "device",
			p.device, "err", err)
	} else {
		d.log.Info("a container has its network", "device", p.device, "port", p.tap)
	}
	if err := p.end(err != nil); err != nil {
		d.log.Warn("a TAP did not end well", "port", p.tap, "err", err)
	}
}

// connect makes the TAP a port of the daemon's, whose kernel side is the device's, too.
func (d *Driver) connect(p *plug) error {
	cookie, err := port.TAPCookie(p.fd)
	if err != nil {
		return err
	}
	// Who takes it away meanwhile waits for it: half of it cannot be.
	return d.change(context.WithoutCancel(p.ctx), shm.Change{Verb: shm.Add, Key: "port", TAP: p.fd,
		Offloads: p.kind.Offloads, UDP: p.kind.UDP,
		Value: fmt.Sprintf("tap:%s,share=%s,container,netns-cookie=%d", p.tap, p.device, cookie)})
}

// info is what docker network inspect has of an endpoint.
func (d *Driver) info(_ context.Context, req endpointRequest) (any, error) {
	e, err := named(req.EndpointID)
	return infoReply{Value: map[string]string{"vrnic.device": e.device, "vrnic.port": e.tap}}, err
}

// leave takes the TAP away, wherever it is. What is not there is gone.
func (d *Driver) leave(ctx context.Context, req endpointRequest) (any, error) {
	e, err := named(req.EndpointID)
	if err != nil {
		return nil, err
	}
	d.mu.Lock()
	p := d.plugs[req.EndpointID]
	d.mu.Unlock()
	if p != nil {
		p.cancel()
		<-p.done
	}
	return emptyReply{}, d.remove(ctx, "port", e.tap)
}

// deleteEndpoint takes away all that the endpoint may have: perhaps it was not left.
func (d *Driver) deleteEndpoint(ctx context.Context, req endpointRequest) (any, error) {
	if _, err := d.leave(ctx, req); err != nil {
		return nil, err
	}
	e, err := named(req.EndpointID)
	if err != nil {
		return nil, err
	}
	return emptyReply{}, d.remove(ctx, "device", e.device)
}

// forget has who waits for Docker give up.
func (d *Driver) forget() {
	d.mu.Lock()
	var all []*plug
	for _, p := range d.plugs {
		all = append(all, p)
	}
	d.mu.Unlock()
	for _, p := range all {
		p.cancel()
		<-p.done
	}
}

// change has the daemon changed.
func (d *Driver) change(ctx context.Context, ch shm.Change) error {
	client, err := shm.Dial(d.cfg.Socket)
	if err != nil {
		return err
	}
	defer client.Close()
	ctx, cancel := context.WithTimeout(ctx, changeTime)
	defer cancel()
	err = client.Change(ctx, ch)
	if refused := (*shm.CallError)(nil); errors.As(err, &refused) && refused.Why != "" {
		return errors.New(refused.Why)
	}
	return err
}

// remove takes a device or port of the daemon away, if there is one, and a daemon.
func (d *Driver) remove(ctx context.Context, kind, name string) error {
	rows, err := d.rows(kind)
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ECONNREFUSED) {
		return nil
	}
	if err != nil || !slices.ContainsFunc(rows, func(r row) bool { return r.name() == name }) {
		return err
	}
	return d.change(ctx, shm.Change{Verb: shm.Del, Key: kind, Value: name, Force: true})
}

// A row is one of the daemon's lists of devices and ports.
type row struct {
	Dev, Port string
	MAC       string
	MTU       int
}

func (r row) name() string { return cmp.Or(r.Dev, r.Port) }

// rows are those of a kind.
func (d *Driver) rows(kind string) (rows []row, err error) {
	client, err := shm.Dial(d.cfg.Socket)
	if err != nil {
		return nil, err
	}
	defer client.Close()
	raw, err := client.List(map[string]string{"device": "dev", "port": "port"}[kind])
	for _, text := range raw {
		var r row
		if err := json.Unmarshal(text, &r); err != nil {
			return nil, err
		}
		rows = append(rows, r)
	}
	return rows, err
}

// existing is the device of an endpoint, as far as its TAP has to be like it.
func (d *Driver) existing(e endpoint) (row, error) {
	rows, err := d.rows("device")
	if err != nil {
		return row{}, err
	}
	i := slices.IndexFunc(rows, func(r row) bool { return r.Dev == e.device })
	if i < 0 {
		return row{}, fmt.Errorf("the daemon has no device %s any more: it has started anew; docker "+
			"network disconnect, and connect again", e.device)
	}
	return rows[i], nil
}
