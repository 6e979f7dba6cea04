// Package iwarp holds the protocol engines of iWARP: MPA (RFC 5044, RFC 6581), DDP
// (RFC 5041) and RDMAP (RFC 5040, and the extensions of RFC 7306), and the codecs of their headers.
//
// It is pure: octets and calls in, octets and calls out; no I/O, no goroutine, no clock and no
// lock. Whoever runs a connection owns its Initiator or Responder and then its Endpoint, and is
// the only one to call them at a time. Timers are the owner's too; what they should measure is
// said where it matters.
//
// A connection begins with an exchange of start frames:
//
//	in, _ := iwarp.NewInitiator(iwarp.DefaultStartConfig(), []byte("hello"))
//	n, err := stream.WriteFrom(in) // the Request
//	in.Commit(n)
//	...                            // when stream says that something is there:
//	stream.ReadInto(in)            // the Reply, and not one octet behind it
//	if in.Done() { params, err := in.Result() ... }
//
// and goes on with an Endpoint, which is an io.Writer for Stream.ReadInto and a Source for
// Stream.WriteFrom:
//
//	ep := iwarp.NewEndpoint(params, host, iwarp.Config{EMSS: stream.EMSS()})
//	ep.PostSend(token, iwarp.OpSend, 0, payload, 42)
//	n, err := stream.WriteFrom(ep)
//	ep.Commit(n) // always, whatever n is
//	stream.ReadInto(ep)
//	if err := ep.Err(); err != nil { ... }
//
// On an LLP that keeps the bounds of segments, and need not keep their order, an Endpoint takes and
// gives whole segments: see Config.Records, Ahead and Segment.
//
// Not covered: placement ahead of TCP's order.
package iwarp
