// Package mem is the memory of an RNIC: what users have registered, under which keys peers and
// work requests reach it, with which rights, and the copies.
//
//	Keys     the STags of a device, and the MR that each of them gives
//	Space    the memory of one user, with its limits
//	PD       a protection domain of a Space, in which regions are registered
//	MR       memory under one key: a region, or one binding of an MW or a FastMR
//	Stream   what the peer of one connection may touch, and what it and its QP do to keys
//	SGL      the pieces of memory that a work request names
//	Hold     the regions that a QP is copying from or to
//
// Memory is either mapped, which a copy reads and writes, or it is reached by calls that can block:
// a program's own address space (Memory). A Space has none of the latter before AllowBlocking.
// Who must not be blocked asks first (MR.Blocking, SGL.Blocking), and gets ErrBlocking if it does
// not.
//
// What ends a key ends it for copies that begin later. Those under way end when they are done:
// MR.Await tells when, and nobody waits but for Close.
//
// Nothing here knows queue pairs. Locks, outermost first: Space.mu; PD.keyMu; MR.mu, and those of
// Keys. The functions of a Config are called with some of them held, those given to MR.Await too.
//
// The checks are those of RFC 5040, 5041, 5042 and 7306 (atomics).
package mem
