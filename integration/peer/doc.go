// Package peer runs an RDMA peer that shares no code with vrnic: Linux's software iWARP driver,
// siw, in a small QEMU guest with Debian's kernel and rdma-core's programs.
//
// Build makes what the guest needs, once, in a cache: it fetches the kernel image and source
// packages, builds siw as it stands in the source and once more with its constants made module
// parameters, and packs an initrd whose only process is the agent (integration/peer/agent). It
// needs no root; the packages it wants installed are listed by Missing.
//
// With Config.RoCE the RDMA device is of rxe instead, the kernel's own software RoCEv2.
//
// Start boots a guest. Its one NIC is a Unix stream socket, frames behind a 4-octet length, as
// `vrnic up --port unix-listen:PATH` offers. The guest is emulated, so no hardware support is
// needed; a boot takes about four seconds.
//
//	img, err := peer.Build(ctx, "", os.Stderr)
//	g, err := peer.Start(ctx, img, peer.Config{Link: path, Addrs: addrs})
//	defer g.Stop()
//	out, err := g.Run(ctx, "rping", "-c", "-a", "10.77.0.2", "-C", "3", "-v")
//
// LoadSiw changes siw's parameters, Netem impairs the guest's NIC, and a Probe is a verbs program
// in the guest that posts and polls as it is told.
//
// A guest lives no longer than the process that started it: when the control socket closes, its
// agent turns the machine off.
//
// Linux on amd64 only.
package peer
