// Package record keeps what goes into a device's protocol engines, those of connections, of what
// sets them up and of datagrams, and what came out of them, and repeats it: `vrnic record` and
// `vrnic replay`.
//
// An engine, such as an iwarp.Endpoint or a roce.Engine, has no clock, goroutine or socket: what it
// does follows from the calls of its owner, the time among their arguments, and from what its Host
// answers. So a recording has, of each call, the arguments, what the Host was asked and has
// answered meanwhile, and the results. To play it is to make the same calls of a new engine, whose
// Host gives the recorded answers, to record that, too, and to compare the two:
// docs/decisions.md#B2.
//
// Beside these a recording has things that are only looked at: what becomes of requests, and calls
// of programs.
//
// # Files
//
// A file is a line that says what it is, and records. Each has its length, as a uvarint, its
// content, and a CRC32c of that. The content begins with a kind:
//
//	begin    the first one: a Meta in JSON
//	open     a Subject in JSON: something that others are about; they have its number
//	steps    number, nanoseconds since the beginning, and Steps: a call and all that came of it
//	lost     number: there was no room for what comes behind it
//	end      the last one: why, in words
//
// A Step is its Op, as many uvarints as that has arguments, and, if it has, octets and a text, each
// behind its length. Octets are pieces, as what is placed came in the same call, and what is sent
// was read: a uvarint with the length of the piece in all but the last bit, and the octets, or, if
// that bit is set, another uvarint, from where on they stand among all octets of the record so far.
package record
