// Package udp has the IP and UDP headers of RoCEv2's packets (InfiniBand Architecture Specification
// volume 1, annex A17; RFC 791, RFC 8200, RFC 768): what is in front of the octets that roce/packet
// takes apart.
//
//	t := udp.NewTemplate(flow)                  // once for a queue pair or an address handle
//	b := t.Append(buf[:0])                      // room for the headers
//	b = header.Append(b) ...                    // BTH, extension headers, payload, padding
//	b = t.Finish(b)                             // lengths, identification, checksum; and the ICRC
//
//	p, err := udp.Parse(ip)                     // a packet that has come
//	if err != nil || !p.Valid() { ... }         // Valid is the ICRC
//	payload, err := header.Parse(p.Datagram)
//
// The package is pure, as roce/packet is, and allocates nothing for a packet.
package udp
