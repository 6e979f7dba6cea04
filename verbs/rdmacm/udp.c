/* librdmacm: the UDP ports of ids of datagrams, which the daemon has. */
#include <string.h>
#include <unistd.h>

#include "cm.h"

enum { MOST = 4 }; /* pieces of a datagram */

int cm_udp_open(struct rdma_cm_id *id, int *fd)
{
	struct vrnic_handle_request req = { .handle = to_cm_id(id)->handle };

	if (!req.handle)
		return ENODEV;
	return vrnic_rpc(to_cm_id(id)->s, VRNIC_OP_CM_OPEN_UDP, &req, sizeof(req), NULL, 0, -1, fd, 1);
}

void cm_udp_send(int fd, const struct sockaddr_storage *to, const struct iovec *iov, int n)
{
	struct vrnic_sock_addr a;
	struct iovec v[1 + MOST] = { { &a, sizeof(a) } };
	struct msghdr m = { .msg_iov = v, .msg_iovlen = 1 + n };

	if (n > MOST || !cm_to_ring((const struct sockaddr *)to, &a))
		return;
	memcpy(v + 1, iov, n * sizeof(*iov));
	(void)sendmsg(fd, &m, MSG_DONTWAIT | MSG_NOSIGNAL);
}

ssize_t cm_udp_recv(int fd, struct sockaddr_storage *from, void *buf, size_t len)
{
	struct vrnic_sock_addr a;
	struct iovec v[2] = { { &a, sizeof(a) }, { buf, len } };
	struct msghdr m = { .msg_iov = v, .msg_iovlen = 2 };
	ssize_t n;

	do
		n = recvmsg(fd, &m, MSG_DONTWAIT);
	while (n < 0 && errno == EINTR);
	if (n < 0)
		return -errno;
	if (n < (ssize_t)sizeof(a))
		return -ENETDOWN; /* nothing at all: the end */
	cm_from_ring(&a, from);
	return n - sizeof(a);
}
