// Package frame has the Ethernet frames that cross a switch, and what is in them.
//
// A Frame is an Ethernet frame, or a super-frame: one TCP segment of up to 64 KiB, or as much of
// datagrams of UDP that have their headers in common, together with the size it is to be cut to.
// Its Offload says so, and what is known of its checksums, in the terms of a virtio-net header
// (VIRTIO 1.2, section 5.1.6). The octets lie in gVisor's buffers and are passed on by reference;
// Frame.Plain makes ordinary frames of a super-frame, for who takes no others.
//
// A Packet says where the IP and transport headers of a Frame lie. Nothing here believes a frame:
// Frame.Check holds the Offload, and Frame.ChecksumsValid the checksums, against the octets.
package frame
