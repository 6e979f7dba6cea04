/*
 * What librdmacm.so.1 must export and does not have: sockets over RDMA, which are not written yet,
 * and what only InfiniBand has. Programs are bound to all their symbols when they start.
 */
#include <errno.h>

#include "core/core.h"
#include "rdmacm.h"

static int fails(int err)
{
	errno = err;
	return -1;
}

/* ---- of InfiniBand ---- */

int rdma_set_local_ece(struct rdma_cm_id *id, struct ibv_ece *ece)
{
	(void)id, (void)ece;
	return fails(EOPNOTSUPP);
}

int rdma_get_remote_ece(struct rdma_cm_id *id, struct ibv_ece *ece)
{
	(void)id, (void)ece;
	return fails(EOPNOTSUPP);
}

/* ---- sockets ---- */

/* Parameters are for the reader. */
#pragma GCC diagnostic ignored "-Wunused-parameter"

/* Without this one a program has no socket to call the others with. */
int rsocket(int domain, int type, int protocol)
{
	vrnic_complain(VRNIC_CAUSE_RSOCKETS,
		       "sockets over RDMA (rsocket(7)) are not there yet: the program has to use verbs or "
		       "rdma_cm");
	return fails(ENOSYS);
}

#define STUB(ret, name, params) \
	ret name params { return (ret)fails(ENOSYS); }

STUB(int, rbind, (int socket, const struct sockaddr *addr, socklen_t len))
STUB(int, rlisten, (int socket, int backlog))
STUB(int, raccept, (int socket, struct sockaddr *addr, socklen_t *len))
STUB(int, rconnect, (int socket, const struct sockaddr *addr, socklen_t len))
STUB(int, rshutdown, (int socket, int how))
STUB(int, rclose, (int socket))
STUB(ssize_t, rrecv, (int socket, void *buf, size_t len, int flags))
STUB(ssize_t, rrecvfrom,
     (int socket, void *buf, size_t len, int flags, struct sockaddr *addr, socklen_t *alen))
STUB(ssize_t, rrecvmsg, (int socket, struct msghdr *msg, int flags))
STUB(ssize_t, rsend, (int socket, const void *buf, size_t len, int flags))
STUB(ssize_t, rsendto,
     (int socket, const void *buf, size_t len, int flags, const struct sockaddr *addr,
      socklen_t alen))
STUB(ssize_t, rsendmsg, (int socket, const struct msghdr *msg, int flags))
STUB(ssize_t, rread, (int socket, void *buf, size_t count))
STUB(ssize_t, rreadv, (int socket, const struct iovec *iov, int n))
STUB(ssize_t, rwrite, (int socket, const void *buf, size_t count))
STUB(ssize_t, rwritev, (int socket, const struct iovec *iov, int n))
STUB(int, rpoll, (struct pollfd *fds, nfds_t n, int timeout))
STUB(int, rselect, (int n, fd_set *r, fd_set *w, fd_set *e, struct timeval *timeout))
STUB(int, rgetpeername, (int socket, struct sockaddr *addr, socklen_t *len))
STUB(int, rgetsockname, (int socket, struct sockaddr *addr, socklen_t *len))
STUB(int, rsetsockopt, (int socket, int level, int name, const void *val, socklen_t len))
STUB(int, rgetsockopt, (int socket, int level, int name, void *val, socklen_t *len))
STUB(int, rfcntl, (int socket, int cmd, ...))
STUB(off_t, riomap, (int socket, void *buf, size_t len, int prot, int flags, off_t offset))
STUB(int, riounmap, (int socket, void *buf, size_t len))
STUB(size_t, riowrite, (int socket, const void *buf, size_t count, off_t offset, int flags))
