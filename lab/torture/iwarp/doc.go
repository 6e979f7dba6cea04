// Package iwarp has the cases of iWARP over TCP: what peers may do wrong, and right, and what an
// endpoint has to answer. They are the tests' against the daemon, which look at memory and
// completions, too, and `vrnic torture`'s against any endpoint.
//
// Nothing here needs to know a key of the endpoint's memory: a segment without octets is not held
// against any (RFC 5041, section 5.2), and so a Write and a Read of nothing are always allowed.
package iwarp
