// Package roi is the RDMA protocol of draft-bailey-roi-rdma-00, an expired Internet-Draft of
// February 2002 that calls itself iWarp, as RDMAP does today: RDMA Write, RDMA Read and Send on
// DDPP, with credits in the protocol. It is experimental, and nobody else speaks it.
//
// What the draft left open is decided in docs/decisions.md#roi, and docs/roi.md tells what it is
// good for. DDPP has been lost; its header here is shaped like DDP's, with version 2.
//
// As package iwarp it is pure: octets and calls in, octets and calls out; no I/O, goroutine, clock
// or lock. An Endpoint is one end of a stream. It takes whole segments, or with Config.CRC or
// without it the FPDUs of MPA:
//
//	own := roi.Setup{Sends: true, SendCredits: 8, Reads: true, ReadCredits: 4}
//	...                                        // the other end's comes in the set-up: ParseSetup
//	ep, err := roi.NewEndpoint(host, roi.Config{Own: own, Peer: peer, Initiator: true})
//	ep.PostSend(token, payload, 42)            // waits for a credit
//	ep.Grant(1)                                // one more receive is there for the peer
//	ep.Fill()
//	n, err := stream.WriteFrom(ep)
//	ep.Commit(n)                               // always, whatever n is
//	stream.ReadInto(ep)
//	if err := ep.Err(); err != nil { ... }
package roi
