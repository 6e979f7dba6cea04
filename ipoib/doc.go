// Package ipoib is IP over InfiniBand: datagrams (RFC 4391) and connected mode (RFC 4755), on the
// architecture of RFC 4392.
//
// An Interface is one IP interface of a link. It takes the IP packets of its host and what comes by
// its UD queue pair and its connections, what connection management tells, and the time; it says
// how each packet goes, and gives packets, IP packets for the host, groups to join, connections to
// make, to accept and to end, and the next deadline. It does no I/O, has no clock and no goroutine.
//
//	host ── Send ──▶ neighbour? ─ not known ─▶ ARP, ND in datagrams; the packet waits
//	                     │ known
//	                     ├─ connection, and it fits ──▶ Way.Conn
//	                     └─ else ─────────────────────▶ Way.To, by the UD queue pair
//	ReceiveDatagram, ReceiveConnected ──▶ the host; ARP and ND stay here
//
// What resolution and the connections want done comes from Outputs, in order.
package ipoib
