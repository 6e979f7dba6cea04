// Package netlab makes small networks out of Linux network namespaces, for tests and
// benchmarks: namespaces, bridges, veth pairs, addresses. It asks the kernel itself
// (rtnetlink(7), namespaces(7)) and calls no external program.
//
//	lab, err := netlab.NewLab()          // two namespaces with a bridge each, joined
//	defer lab.Close()
//	// a daemon makes TAP vtap0 in lab.A.Path()
//	err = lab.Plug(lab.A, "vtap0")
//
// A namespace is held by a file descriptor and has no name in the file system, so nothing is
// left behind even if the process that made it is killed. It needs CAP_SYS_ADMIN and
// CAP_NET_ADMIN; without them NewNS returns an error that wraps os.ErrPermission.
//
// Linux only. On other systems the package is empty.
package netlab
