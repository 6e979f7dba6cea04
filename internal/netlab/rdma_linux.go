package netlab

import (
	"fmt"

	"golang.org/x/sys/unix"
)

// From rdma/rdma_netlink.h: RDMA_NL_GET_TYPE(RDMA_NL_NLDEV, RDMA_NLDEV_CMD_NEWLINK) and the
// attributes that the command takes.
const (
	nldevNewLink      = 5<<10 + 3
	nldevAttrDevName  = 2
	nldevAttrNdevName = 51
	nldevAttrLinkType = 65
)

// AddRDMALink makes a software RDMA device of the kernel, such as one of type "siw", on a
// network interface, as `rdma link add` does. The driver's module must be loaded.
func AddRDMALink(name, kind, netdev string) error {
	nl, err := dialNetlink(unix.NETLINK_RDMA)
	if err != nil {
		return fmt.Errorf("netlab: %w", err)
	}
	defer func() { _ = nl.close() }()
	b := attrString(nil, nldevAttrDevName, name)
	b = attrString(b, nldevAttrLinkType, kind)
	b = attrString(b, nldevAttrNdevName, netdev)
	if err := nl.do(nldevNewLink, 0, b); err != nil {
		return fmt.Errorf("netlab: add RDMA link %s on %s: %w", name, netdev, err)
	}
	return nil
}
