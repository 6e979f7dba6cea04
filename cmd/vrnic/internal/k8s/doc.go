// Package k8s offers a daemon's devices to Kubernetes, as a device plugin of the kubelet's
// (v1beta1): a pod asks for one as it asks for memory, and its containers get what a specification
// of the Container Device Interface says, by name or as mounts.
//
// DRA is the other way, Dynamic Resource Allocation: a driver that publishes devices at the API
// server, and tells the kubelet what those of a claim are. It asks the API server for each claim
// by an API of its own that knows five calls; what Kubernetes' client would bring along is modules
// by the dozen.
//
// A resource answers the kubelet about devices of one kind; Plugin looks after them: it registers
// them, and again when the kubelet has started anew, and tells them how the daemon is.
package k8s
