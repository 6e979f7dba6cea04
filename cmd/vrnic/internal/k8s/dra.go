package k8s

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"

	"google.golang.org/grpc"
	"k8s.io/kubelet/pkg/apis/dra/v1"
	registration "k8s.io/kubelet/pkg/apis/pluginregistration/v1"

	"github.com/vrnic/vrnic/cmd/vrnic/internal/cdi"
	"github.com/vrnic/vrnic/cmd/vrnic/internal/unixsocket"
)

// Driver is the name of the driver for Dynamic Resource Allocation.
const Driver = cdi.Vendor

// DRA is the kubelet's plugin of that driver: it tells the API server of devices, and the kubelet
// what a claim's devices are to a runtime. The kubelet finds it by its socket, and asks it.
type DRA struct {
	v1.UnimplementedDRAPluginServer
	registration.UnimplementedRegistrationServer
	Config
	obstacle
	claims    *claims
	publisher publisher

	server *grpc.Server  // nil: nobody can ask
	served chan struct{} // closed when it is no more
	own    os.FileInfo   // the socket

	mu sync.Mutex
	// names are those of the specification, by those in the pool.
	//
	// +checklocks:mu
	names map[string]string
}

// NewDRA makes one that keeps claims in a directory.
func NewDRA(c Config, dir string) (*DRA, error) {
	kept, err := readClaims(filepath.Join(dir, "claims.json"))
	if err != nil {
		return nil, err
	}
	return &DRA{Config: c, claims: kept, publisher: publisher{api: c.API, node: c.Node}}, nil
}

func (d *DRA) socket() string { return filepath.Join(d.Dir, Driver+".sock") }

// Run serves the kubelet until ctx ends: whichever comes and goes, kubelet, API server or daemon.
func (d *DRA) Run(ctx context.Context) error {
	defer d.end()
	for {
		err := d.look(ctx)
		if d.server == nil || !same(d.socket(), d.own) {
			d.end()
			err = errors.Join(err, d.begin())
		}
		if ctx.Err() == nil {
			d.say(d.Log, err)
		}
		select {
		case <-d.Tick:
		case <-ctx.Done():
			return d.Generator.Close()
		}
	}
}

// look has the API server know what devices there are.
func (d *DRA) look(ctx context.Context) error {
	of, err := d.offered()
	if of == nil {
		return err
	}
	names := make(map[string]string)
	for _, kind := range of {
		for _, dev := range kind {
			for i := range dev.shares {
				names[poolName(dev.name, i)] = dev.cdiName()
			}
		}
	}
	d.mu.Lock()
	d.names = names
	d.mu.Unlock()
	return errors.Join(err, d.publisher.publish(ctx, shares(of)))
}

// cdiName is what a runtime knows a device of the pool by. One that is down has its name, too.
func (d *DRA) cdiName(device string) (string, bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	name, ok := d.names[device]
	return name, ok
}

// begin serves where the kubelet looks for plugins.
func (d *DRA) begin() error {
	l, err := unixsocket.Listen(d.socket())
	if err != nil {
		return fmt.Errorf("%s: %w", d.socket(), err)
	}
	d.server, d.served = grpc.NewServer(), make(chan struct{})
	v1.RegisterDRAPluginServer(d.server, d)
	registration.RegisterRegistrationServer(d.server, d)
	go func(s *grpc.Server, served chan<- struct{}) {
		defer close(served)
		_ = s.Serve(l) // what has failed is begun again: the socket is gone
	}(d.server, d.served)
	if d.own, err = os.Lstat(d.socket()); err != nil {
		d.end()
	}
	return err
}

// end stops serving, and removes the socket.
func (d *DRA) end() {
	if d.server == nil {
		return
	}
	d.server.Stop()
	<-d.served
	d.server = nil
}

// GetInfo says what kind of plugin it is.
func (d *DRA) GetInfo(context.Context, *registration.InfoRequest) (
	*registration.PluginInfo, error) {
	return &registration.PluginInfo{Type: registration.DRAPlugin, Name: Driver, Endpoint: d.socket(),
		SupportedVersions: []string{v1.DRAPluginService}}, nil
}

// NotifyRegistrationStatus is the kubelet's answer.
func (d *DRA) NotifyRegistrationStatus(_ context.Context, s *registration.RegistrationStatus) (
	*registration.RegistrationStatusResponse, error) {
	if s.PluginRegistered {
		d.Log.Info("the kubelet knows the driver", "driver", Driver)
	} else {
		d.Log.Error("the kubelet does not take the driver", "driver", Driver, "err", s.Error)
	}
	return &registration.RegistrationStatusResponse{}, nil
}
