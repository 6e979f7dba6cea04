package k8s

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"sync"

	"k8s.io/kubelet/pkg/apis/dra/v1"
)

// A resourceClaim is what pods ask devices by, with what the scheduler has found for it.
type resourceClaim struct {
	Metadata struct{ UID string }
	Status   struct {
		Allocation *struct {
			Devices struct{ Results []allocated }
		}
	}
}

// allocated is a device of some driver for a request of a claim.
type allocated struct {
	Request, Driver, Pool, Device string
}

// A prepared device is one that the kubelet has been told of.
type prepared struct {
	Request string `json:"request"`
	Pool    string `json:"pool"`
	Device  string `json:"device"`
	CDI     string `json:"cdi"`
}

// claims are those that are prepared, by UID, and in a file: a plugin that starts anew has the same
// answers, whatever has become of devices and of the API server.
type claims struct {
	file string

	mu sync.Mutex
	// +checklocks:mu
	all map[string][]prepared
}

func readClaims(file string) (*claims, error) {
	all := make(map[string][]prepared)
	text, err := os.ReadFile(file)
	if err == nil {
		err = json.Unmarshal(text, &all)
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("claims that are prepared: %s: %w", file, err)
	}
	return &claims{file: file, all: all}, nil
}

func (c *claims) get(uid string) ([]prepared, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	p, ok := c.all[uid]
	return p, ok
}

// change is done when the file has it.
func (c *claims) change(how func(map[string][]prepared)) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	next := make(map[string][]prepared)
	maps.Copy(next, c.all)
	how(next)
	text, err := json.Marshal(next)
	if err != nil {
		return err
	}
	f, err := os.CreateTemp(filepath.Dir(c.file), ".claims-")
	if err != nil {
		return err
	}
	_, err = f.Write(text)
	err = errors.Join(err, f.Sync(), f.Close())
	if err == nil {
		err = os.Rename(f.Name(), c.file)
	}
	if err != nil {
		return errors.Join(err, os.Remove(f.Name()))
	}
	c.all = next
	return nil
}

// NodePrepareResources says what containers of the claims' pods get.
func (d *DRA) NodePrepareResources(ctx context.Context, req *v1.NodePrepareResourcesRequest) (
	*v1.NodePrepareResourcesResponse, error) {
	reply := &v1.NodePrepareResourcesResponse{Claims: make(map[string]*v1.NodePrepareResourceResponse)}
	for _, c := range req.Claims {
		one := &v1.NodePrepareResourceResponse{}
		got, err := d.prepare(ctx, c)
		if err != nil {
			one.Error = err.Error()
		}
		for _, p := range got {
			one.Devices = append(one.Devices, &v1.Device{RequestNames: []string{p.Request},
				PoolName: p.Pool, DeviceName: p.Device, CdiDeviceIds: []string{p.CDI}})
		}
		reply.Claims[c.Uid] = one
	}
	return reply, nil
}

func (d *DRA) prepare(ctx context.Context, c *v1.Claim) ([]prepared, error) {
	if got, ok := d.claims.get(c.Uid); ok {
		return got, nil
	}
	var claim resourceClaim
	if err := d.API.get(ctx, apiPath("apis", resourceGroup, resourceVersion, "namespaces", c.Namespace,
		"resourceclaims", c.Name), &claim); err != nil {
		return nil, err
	}
	if claim.Metadata.UID != c.Uid {
		return nil, fmt.Errorf("the claim %s/%s is another one by now", c.Namespace, c.Name)
	}
	if claim.Status.Allocation == nil {
		return nil, fmt.Errorf("the claim %s/%s has no devices yet", c.Namespace, c.Name)
	}
	var got []prepared
	seen := make(map[string]bool)
	for _, a := range claim.Status.Allocation.Devices.Results {
		if a.Driver != Driver {
			continue
		}
		name, ok := d.cdiName(a.Device)
		if !ok || a.Pool != d.Node {
			return nil, fmt.Errorf("vrnic has no device %.60q of the pool %.60q on this node", a.Device,
				a.Pool)
		}
		request, _, _ := strings.Cut(a.Request, "/") // of which this is an alternative
		if seen[request] {
			return nil, fmt.Errorf("the request %s has several devices, a container can have one of "+
				"vrnic's: ask for 1", request)
		}
		seen[request] = true
		got = append(got, prepared{request, a.Pool, a.Device, name})
	}
	return got, d.claims.change(func(all map[string][]prepared) { all[c.Uid] = got })
}

// NodeUnprepareResources forgets claims: nothing of them is held here.
func (d *DRA) NodeUnprepareResources(_ context.Context, req *v1.NodeUnprepareResourcesRequest) (
	*v1.NodeUnprepareResourcesResponse, error) {
	reply := &v1.NodeUnprepareResourcesResponse{
		Claims: make(map[string]*v1.NodeUnprepareResourceResponse)}
	for _, c := range req.Claims {
		one := &v1.NodeUnprepareResourceResponse{}
		if _, ok := d.claims.get(c.Uid); ok {
			if err := d.claims.change(func(all map[string][]prepared) { delete(all, c.Uid) }); err != nil {
				one.Error = err.Error()
			}
		}
		reply.Claims[c.Uid] = one
	}
	return reply, nil
}
