/*
 * What rdma-core has given librdmacm behind release 44: events that a program makes itself, for
 * which a kernel of 6.16 is asked, and epoll(7) for sockets over RDMA. Neither is there; programs
 * are bound to the names when they start.
 */
#include <sys/epoll.h>

#include "cm.h"

/* Parameters are for the reader. */
#pragma GCC diagnostic ignored "-Wunused-parameter"
#pragma GCC visibility push(default)

/* Of rdma_write_cm_event: what a program may write. */
#define RDMA_CM_EVENT_USER 18

int rdma_write_cm_event(struct rdma_cm_id *id, enum rdma_cm_event_type event, int status,
			uint64_t arg)
{
	return cm_return((unsigned int)event == RDMA_CM_EVENT_USER ? EOPNOTSUPP : EINVAL);
}

/* What it resolves is told by such an event. */
int rdma_resolve_addrinfo(struct rdma_cm_id *id, const char *node, const char *service,
			  const struct rdma_addrinfo *hints)
{
	return cm_return(id ? EOPNOTSUPP : EINVAL);
}

int rdma_query_addrinfo(struct rdma_cm_id *id, struct rdma_addrinfo **info)
{
	return cm_return(id && info ? ENOENT : EINVAL); /* nothing has been resolved */
}

int repoll_create(int flags) { return cm_return(ENOSYS); }

int repoll_ctl(int epfd, int op, int fd, struct epoll_event *event) { return cm_return(ENOSYS); }

int repoll_wait(int epfd, struct epoll_event *events, int maxevents, int timeout)
{
	return cm_return(ENOSYS);
}

#pragma GCC visibility pop
