package k8s

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
	specs "tags.cncf.io/container-device-interface/specs-go"

	"github.com/vrnic/vrnic/cmd/vrnic/internal/cdi"
)

// A device is one of the specification.
type device struct {
	name    string
	edits   specs.ContainerEdits
	healthy bool
	shares  int // how many containers may have it at once

	transport string // iwarp or roce; "": nobody knows now
}

// cdiName is what a runtime that reads the specification knows it by.
func (d *device) cdiName() string { return cdi.Vendor + "/" + cdi.Class + "=" + d.name }

// shareMark is between a device's name and the number of a share, in the IDs that the kubelet
// counts. No device has it in its name.
const shareMark = "::"

func (d *device) ids() (all []string) {
	for i := range d.shares {
		all = append(all, fmt.Sprintf("%s%s%d", d.name, shareMark, i))
	}
	return all
}

// deviceOf is the name of the device that an ID is a share of.
func deviceOf(id string) string {
	name, _, _ := strings.Cut(id, shareMark)
	return name
}

// A resource is what pods ask for under one name. It answers the kubelet on several goroutines.
type resource struct {
	v1beta1.UnimplementedDevicePluginServer
	name   string
	mounts bool // answer with mounts and environment, not by names of the specification

	mu      sync.Mutex
	devices []device      // guarded by mu
	changed chan struct{} // guarded by mu; closed when devices are others
}

func newResource(name string, mounts bool) *resource {
	return &resource{name: name, mounts: mounts, changed: make(chan struct{})}
}

// set says what there is now.
func (r *resource) set(devices []device) {
	r.mu.Lock()
	defer r.mu.Unlock()
	same := slices.EqualFunc(r.devices, devices, func(a, b device) bool {
		return a.name == b.name && a.healthy == b.healthy && a.shares == b.shares
	})
	r.devices = devices
	if !same {
		close(r.changed)
		r.changed = make(chan struct{})
	}
}

// list is what the kubelet is told, and what says that there is something else to tell.
func (r *resource) list() (*v1beta1.ListAndWatchResponse, <-chan struct{}) {
	r.mu.Lock()
	defer r.mu.Unlock()
	reply := &v1beta1.ListAndWatchResponse{}
	for i := range r.devices {
		health := v1beta1.Unhealthy
		if r.devices[i].healthy {
			health = v1beta1.Healthy
		}
		for _, id := range r.devices[i].ids() {
			reply.Devices = append(reply.Devices, &v1beta1.Device{ID: id, Health: health})
		}
	}
	return reply, r.changed
}

func options() *v1beta1.DevicePluginOptions {
	return &v1beta1.DevicePluginOptions{GetPreferredAllocationAvailable: true}
}

// GetDevicePluginOptions says which calls are worth making.
func (r *resource) GetDevicePluginOptions(context.Context, *v1beta1.Empty) (
	*v1beta1.DevicePluginOptions, error) {
	return options(), nil
}

// ListAndWatch tells the kubelet what there is, and again when that changes.
func (r *resource) ListAndWatch(_ *v1beta1.Empty,
	to grpc.ServerStreamingServer[v1beta1.ListAndWatchResponse]) error {
	for {
		now, changed := r.list()
		if err := to.Send(now); err != nil {
			return err
		}
		select {
		case <-changed:
		case <-to.Context().Done():
			return nil
		}
	}
}

// GetPreferredAllocation chooses shares of one device: that of the ones that have to be among them,
// else the one of which most are free.
func (r *resource) GetPreferredAllocation(_ context.Context,
	req *v1beta1.PreferredAllocationRequest) (*v1beta1.PreferredAllocationResponse, error) {
	reply := &v1beta1.PreferredAllocationResponse{}
	for _, c := range req.ContainerRequests {
		reply.ContainerResponses = append(reply.ContainerResponses,
			&v1beta1.ContainerPreferredAllocationResponse{DeviceIDs: preferred(c.AvailableDeviceIDs,
				c.MustIncludeDeviceIDs, int(c.AllocationSize))})
	}
	return reply, nil
}

func preferred(available, must []string, size int) []string {
	free, first := make(map[string]int), ""
	for _, id := range available {
		free[deviceOf(id)]++
	}
	if len(must) > 0 {
		first = deviceOf(must[0])
	}
	rest := slices.Clone(available)
	slices.SortStableFunc(rest, func(a, b string) int {
		x, y := deviceOf(a), deviceOf(b)
		if (x == first) != (y == first) {
			return map[bool]int{true: -1, false: 1}[x == first]
		}
		return cmp.Or(cmp.Compare(free[y], free[x]), cmp.Compare(x, y))
	})
	chosen := slices.Clone(must)
	for _, id := range rest {
		if len(chosen) < size && !slices.Contains(chosen, id) {
			chosen = append(chosen, id)
		}
	}
	return chosen
}

// Allocate says what containers get.
func (r *resource) Allocate(_ context.Context, req *v1beta1.AllocateRequest) (
	*v1beta1.AllocateResponse, error) {
	reply := &v1beta1.AllocateResponse{}
	for _, c := range req.ContainerRequests {
		d, err := r.find(c.DevicesIds)
		if err != nil {
			return nil, err
		}
		reply.ContainerResponses = append(reply.ContainerResponses, r.answer(&d))
	}
	return reply, nil
}

// find is the device that all of ids are shares of.
func (r *resource) find(ids []string) (device, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	var names []string
	for _, id := range ids {
		i := slices.IndexFunc(r.devices, func(d device) bool { return slices.Contains(d.ids(), id) })
		if i < 0 {
			return device{}, status.Errorf(codes.NotFound, "vrnic has no device %.60q any more", id)
		}
		if name := r.devices[i].name; !slices.Contains(names, name) {
			names = append(names, name)
		}
	}
	if len(names) != 1 {
		return device{}, status.Errorf(codes.InvalidArgument,
			"a container has one device of vrnic's, not %d (%s): ask for 1 %s", len(names),
			strings.Join(names, ", "), r.name)
	}
	i := slices.IndexFunc(r.devices, func(d device) bool { return d.name == names[0] })
	return r.devices[i], nil
}

func (r *resource) answer(d *device) *v1beta1.ContainerAllocateResponse {
	if !r.mounts {
		return &v1beta1.ContainerAllocateResponse{CdiDevices: []*v1beta1.CDIDevice{
			{Name: d.cdiName()}}}
	}
	reply := &v1beta1.ContainerAllocateResponse{Envs: make(map[string]string)}
	for _, e := range d.edits.Env {
		name, value, _ := strings.Cut(e, "=")
		reply.Envs[name] = value
	}
	for _, m := range d.edits.Mounts {
		reply.Mounts = append(reply.Mounts, &v1beta1.Mount{ContainerPath: m.ContainerPath,
			HostPath: m.HostPath, ReadOnly: true})
	}
	return reply
}
