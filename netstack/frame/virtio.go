package frame

import "encoding/binary"

// VirtioHeaderLen is the length of struct virtio_net_hdr without num_buffers (VIRTIO 1.2, section
// 5.1.6), which a TAP puts before each frame when it was opened with IFF_VNET_HDR. Its fields are
// in the order of the host: flags(1) gso_type(1) hdr_len(2) gso_size(2) csum_start(2)
// csum_offset(2).
const VirtioHeaderLen = 10

const (
	virtioNeedsCsum = 1 // flags
	virtioDataValid = 2

	virtioGSONone  = 0 // gso_type
	virtioGSOTCPv4 = 1
	virtioGSOTCPv6 = 4
	virtioGSOUDP   = 5 // VIRTIO_NET_HDR_GSO_UDP_L4 of Linux 6.2, and of VIRTIO 1.3
)

// ParseVirtio reads the header before a frame. What it says of the frame is checked when the frame
// comes into the Switch.
func ParseVirtio(b []byte) (Offload, error) {
	if len(b) < VirtioHeaderLen {
		return Offload{}, errShort
	}
	var o Offload
	switch b[1] {
	case virtioGSONone: // gso_size says nothing then
	case virtioGSOTCPv4:
		o.GSO = GSOTCPv4
	case virtioGSOTCPv6:
		o.GSO = GSOTCPv6
	case virtioGSOUDP:
		o.GSO = GSOUDP
	default:
		return Offload{}, errBadOffload // nothing else was offered
	}
	if o.GSO != GSONone {
		o.HdrLen = binary.NativeEndian.Uint16(b[2:])
		o.GSOSize = binary.NativeEndian.Uint16(b[4:])
	}
	switch {
	case b[0]&virtioNeedsCsum != 0:
		o.Csum = CsumPartial
		o.CsumStart = binary.NativeEndian.Uint16(b[6:])
		o.CsumOffset = binary.NativeEndian.Uint16(b[8:])
	case b[0]&virtioDataValid != 0:
		o.Csum = CsumValid
	}
	return o, nil
}

// PutVirtio writes o as the header before a frame.
func PutVirtio(b *[VirtioHeaderLen]byte, o Offload) {
	*b = [VirtioHeaderLen]byte{}
	switch o.Csum {
	case CsumPartial:
		b[0] = virtioNeedsCsum
		binary.NativeEndian.PutUint16(b[6:], o.CsumStart)
		binary.NativeEndian.PutUint16(b[8:], o.CsumOffset)
	case CsumValid:
		b[0] = virtioDataValid
	case CsumUnverified: // nothing said
	}
	switch o.GSO {
	case GSOTCPv4:
		b[1] = virtioGSOTCPv4
	case GSOTCPv6:
		b[1] = virtioGSOTCPv6
	case GSOUDP:
		b[1] = virtioGSOUDP
	}
	if o.GSO != GSONone {
		binary.NativeEndian.PutUint16(b[2:], o.HdrLen)
		binary.NativeEndian.PutUint16(b[4:], o.GSOSize)
	}
}
