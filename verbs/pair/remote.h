/*
 * What one program does with the memory of another by itself: Writes, Reads and atomic operations
 * of the direct path (docs/direct.md). All of it has one user at a time, that of the pair.
 */
#ifndef VRNIC_REMOTE_H
#define VRNIC_REMOTE_H

#include <sys/uio.h>

#include "keys.h"
#include "pair.h"

struct vrnic_remote;

/* The memory of the peer of the QP with this handle, whose direction is out; NULL: no memory. */
struct vrnic_remote *vrnic_remote_new(struct vrnic_session *s, uint32_t qp,
				      struct vrnic_pair_out *out);
void vrnic_remote_free(struct vrnic_remote *r); /* NULL is none */

/* Whether what w wants seems to be there. It is mapped now at the latest: a call to the daemon. */
bool vrnic_remote_is_there(struct vrnic_remote *r, const struct vrnic_want *w);

/*
 * Moves what w wants to or from iov, of as many octets: false leaves the request to the daemon, all
 * of it. An atomic operation leaves what was there in iov, which has 8 octets.
 */
bool vrnic_remote_write(struct vrnic_remote *r, const struct vrnic_want *w,
			const struct iovec *iov);
/*
 * The same for a Write of which a message tells, as vrnic_pair_begin has it: if it is true, the
 * message has its place, and vrnic_pair_end is to follow.
 */
bool vrnic_remote_write_told(struct vrnic_remote *r, const struct vrnic_want *w,
			     const struct iovec *iov, const struct vrnic_pair_head *told);
bool vrnic_remote_read(struct vrnic_remote *r, const struct vrnic_want *w,
		       const struct iovec *iov);
bool vrnic_remote_fetch_add(struct vrnic_remote *r, const struct vrnic_want *w,
			    const struct iovec *iov, uint64_t add);
bool vrnic_remote_compare_swap(struct vrnic_remote *r, const struct vrnic_want *w,
			       const struct iovec *iov, uint64_t compare, uint64_t swap);

#endif
