// Package cdi gives a daemon's devices to containers by the Container Device Interface: a
// specification, which runtimes read, and the files that it has them mount. With these a verbs
// program of an image that knows nothing of vrnic finds the devices, whoever starts it in the
// container.
//
// Files makes what a container sees below Home as a tree; NewSpec is the specification for devices
// whose files have been written; Write puts it where runtimes look.
package cdi
