package roce

import (
	"fmt"
	"net/netip"

	"github.com/vrnic/vrnic/lab/rawroce"
)

// Host makes an Opener of links over the host's UDP, from an address of the host: from, or, if that
// is none, the one from which the endpoint is reached.
func Host(from netip.Addr) Opener {
	return func(remote netip.Addr) (rawroce.Link, netip.Addr, error) {
		own, err := from, error(nil)
		if !own.IsValid() {
			own, err = rawroce.Own(remote)
		}
		if err != nil {
			return nil, own, err
		}
		if own.Is4() != remote.Is4() {
			return nil, own, fmt.Errorf("from %v there is no way to %v, of another family", own, remote)
		}
		l, err := rawroce.NewSocket(own, remote)
		if err != nil {
			return nil, own, err
		}
		return l, own, nil
	}
}
