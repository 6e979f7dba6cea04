/* Sockets over RDMA, both ends in this process. */
#ifndef RSOCKET_PAIR_H
#define RSOCKET_PAIR_H

#include <arpa/inet.h>
#include <fcntl.h>
#include <rdma/rsocket.h>

#include "vt.h"

static inline struct sockaddr_in server_addr(void)
{
	struct sockaddr_in a = { .sin_family = AF_INET };

	CHECK_EQ(inet_pton(AF_INET, getenv("VT_SERVER"), &a.sin_addr), 1);
	return a;
}

static inline void wait_for(int s, short events)
{
	struct pollfd p = { .fd = s, .events = events };

	CHECK_EQ(rpoll(&p, 1, VT_PATIENCE), 1);
}

/* A listener that does not wait, at a port of its own. */
static inline int listener(struct sockaddr_in *at)
{
	socklen_t len = sizeof(*at);
	int l = rsocket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);

	*at = server_addr();
	CHECK(l >= 0);
	CHECK_EQ(rbind(l, (struct sockaddr *)at, sizeof(*at)), 0);
	CHECK_EQ(rlisten(l, 5), 0);
	CHECK_EQ(rgetsockname(l, (struct sockaddr *)at, &len), 0);
	CHECK(at->sin_port != 0);
	CHECK_ERRNO(raccept(l, NULL, NULL), EAGAIN);
	return l;
}

static inline void joined(int s[2])
{
	struct sockaddr_in at, peer;
	socklen_t len = sizeof(peer);
	int l = listener(&at), err = -1, iomaps = 8;
	socklen_t elen = sizeof(err);

	s[0] = rsocket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
	CHECK(s[0] >= 0);
	CHECK_EQ(rsetsockopt(s[0], SOL_RDMA, RDMA_IOMAPSIZE, &iomaps, sizeof(iomaps)), 0);
	CHECK_ERRNO(rconnect(s[0], (struct sockaddr *)&at, sizeof(at)), EINPROGRESS);
	/* both make progress only when they are looked at */
	for (s[1] = -1; s[1] < 0;) {
		struct pollfd p[2] = { { .fd = l, .events = POLLIN },
				       { .fd = s[0], .events = POLLOUT } };

		CHECK(rpoll(p, 2, VT_PATIENCE) > 0);
		s[1] = raccept(l, (struct sockaddr *)&peer, &len);
	}
	wait_for(s[1], POLLOUT);
	wait_for(s[0], POLLOUT);
	CHECK_EQ(rgetsockopt(s[0], SOL_SOCKET, SO_ERROR, &err, &elen), 0);
	CHECK_EQ(err, 0);
	CHECK_EQ(len, sizeof(peer));
	CHECK_EQ(rfcntl(s[1], F_SETFL, O_NONBLOCK), 0);
	CHECK_EQ(rclose(l), 0);
}

#endif
