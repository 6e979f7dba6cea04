package k8s

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"reflect"
	"strings"

	"github.com/vrnic/vrnic/cmd/vrnic/internal/cdi"
)

// What is said of devices to the API server, of its group resource.k8s.io in version v1. JSON has
// the names.
const (
	resourceGroup   = "resource.k8s.io"
	resourceVersion = "v1"
)

// A resourceSlice is a part of the devices of a pool.
type resourceSlice struct {
	APIVersion string `json:"apiVersion"`
	Kind       string `json:"kind"`
	Metadata   struct {
		Name   string      `json:"name"`
		Owners []objectRef `json:"ownerReferences"`
	} `json:"metadata"`
	Spec sliceSpec `json:"spec"`
}

type sliceSpec struct {
	Driver  string        `json:"driver"`
	Node    string        `json:"nodeName"`
	Pool    resourcePool  `json:"pool"`
	Devices []sliceDevice `json:"devices,omitempty"`
}

// An objectRef is the owner of another object, which goes when it does.
type objectRef struct {
	APIVersion string `json:"apiVersion"`
	Kind       string `json:"kind"`
	Name       string `json:"name"`
	UID        string `json:"uid"`
}

type resourcePool struct {
	Name       string `json:"name"`
	Generation int64  `json:"generation"`
	Slices     int    `json:"resourceSliceCount"`
}

type sliceDevice struct {
	Name       string               `json:"name"`
	Attributes map[string]attribute `json:"attributes"`
}

// An attribute is what selectors of a claim see of a device.
type attribute struct {
	String string `json:"string"`
}

// maxSlice is how many devices a slice has at most.
const maxSlice = 128

// poolName is a share of a device in the pool: there names are labels of DNS.
func poolName(device string, share int) string {
	label := strings.IndexFunc(device, func(r rune) bool {
		return (r < 'a' || r > 'z') && (r < '0' || r > '9') && r != '-'
	}) < 0
	if !label || len(device) > 50 {
		device = fmt.Sprintf("rnic-%.12x", sha256.Sum256([]byte(device)))
	}
	return fmt.Sprintf("%s-%d", device, share)
}

// shares are those of devices, as the API server is told: those that may be given to pods now.
func shares(of map[string][]device) (all []sliceDevice) {
	for _, kind := range []string{RNIC, Net} {
		for _, d := range of[kind] {
			for i := range d.shares {
				if !d.healthy {
					continue
				}
				say := map[string]attribute{"kind": {strings.TrimPrefix(kind, cdi.Vendor+"/")},
					"name": {d.name}}
				if d.transport != "" {
					say["transport"] = attribute{d.transport}
				}
				all = append(all, sliceDevice{poolName(d.name, i), say})
			}
		}
	}
	return all
}

// lookAgain is how many times publish takes it that what was told is known, before it asks: others
// remove slices, and tell nobody. A kubelet that starts is one: it removes those of its node, some
// time before or after it finds the driver.
const lookAgain = 10

// A publisher tells the API server of the node's devices.
type publisher struct {
	api  *API
	node string

	owner      objectRef     // the node; without UID: it is not known yet
	generation int64         // of the pool, as last told
	slices     int           // how many there may be
	told       []sliceDevice // what it knows
	well       bool          // it knows all of told
	trusted    int           // how many times it was not asked whether it still does
}

func slicePath(name string) string {
	return apiPath("apis", resourceGroup, resourceVersion, "resourceslices", name)
}

func (p *publisher) name(i int) string { return fmt.Sprintf("%s-%s-%d", p.node, Driver, i) }

// ask asks what is known of the node: what a plugin before this one has told has older generations,
// and counts no more. If it is not what this one has told, to the last slice and with the node that
// there is now, p is not well.
func (p *publisher) ask(ctx context.Context) error {
	var node struct{ Metadata objectRef }
	if err := p.api.get(ctx, apiPath("api", "v1", "nodes", p.node), &node); err != nil {
		return err
	}
	// One of the same name may be another node: the slices go with the one that owns them.
	owner := objectRef{"v1", "Node", p.node, node.Metadata.UID}
	if owner != p.owner {
		p.owner, p.well = objectRef{}, false // until all is known
	}
	for i := range max(1, p.slices) {
		var last resourceSlice
		if err := p.api.get(ctx, slicePath(p.name(i)), &last); err != nil &&
			!errors.Is(err, errNotFound) {
			return err
		}
		pool := last.Spec.Pool
		p.well = p.well && pool.Generation == p.generation
		p.generation, p.slices = max(p.generation, pool.Generation), max(p.slices, pool.Slices)
	}
	p.owner = owner
	return nil
}

// publish has the API server know devices, if it does not yet, or not any more.
func (p *publisher) publish(ctx context.Context, devices []sliceDevice) error {
	known := func() bool { return p.well && reflect.DeepEqual(p.told, devices) }
	look := p.owner.UID == ""
	if known() {
		if p.trusted++; p.trusted < lookAgain {
			return nil
		}
		look = true
	}
	if look {
		if err := p.ask(ctx); err != nil {
			return err
		}
		p.trusted = 0
		if known() {
			return nil
		}
	}
	p.told, p.well = devices, false
	p.generation++
	n := max(1, (len(devices)+maxSlice-1)/maxSlice)
	for i := range n {
		s := resourceSlice{APIVersion: resourceGroup + "/" + resourceVersion, Kind: "ResourceSlice",
			Spec: sliceSpec{Driver: Driver, Node: p.node,
				Pool:    resourcePool{Name: p.node, Generation: p.generation, Slices: n},
				Devices: devices[i*maxSlice : min((i+1)*maxSlice, len(devices))]}}
		s.Metadata.Name, s.Metadata.Owners = p.name(i), []objectRef{p.owner}
		if err := p.api.apply(ctx, slicePath(s.Metadata.Name), s); err != nil {
			return err
		}
	}
	for ; p.slices > n; p.slices-- {
		if err := p.api.remove(ctx, slicePath(p.name(p.slices-1))); err != nil {
			return err
		}
	}
	p.slices, p.well = n, true
	return nil
}
