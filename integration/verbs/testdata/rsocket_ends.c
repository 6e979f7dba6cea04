/* How connections of sockets over RDMA begin and end, as both sides see it; and forks. */
#define _GNU_SOURCE
#include <pthread.h>

#include "rsocket_pair.h"

/* A client that waits, and what its peer does as soon as it is there. */
static void *dials(void *at)
{
	int s = rsocket(AF_INET, SOCK_STREAM, 0);
	char c;

	CHECK(s >= 0);
	CHECK_EQ(rconnect(s, at, sizeof(struct sockaddr_in)), 0);
	CHECK_EQ(rrecv(s, &c, 1, 0), 0);
	return (void *)(intptr_t)s;
}

static int taken(int l, struct sockaddr_in *at, pthread_t *client)
{
	int a;

	CHECK_EQ(pthread_create(client, NULL, dials, at), 0);
	CHECK((a = raccept(l, NULL, NULL)) >= 0);
	return a;
}

static int left(pthread_t client)
{
	void *s;

	CHECK_EQ(pthread_join(client, &s), 0);
	return (intptr_t)s;
}

/* What has been accepted is a connection, to whoever has heard of it or is about to. */
static void accepted(void)
{
	struct sockaddr_in at, seen, peer;
	socklen_t len = sizeof(seen);
	int l = listener(&at), s, a, i;
	pthread_t client;
	char c;

	/* the names, before either side has looked again */
	s = rsocket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
	CHECK_ERRNO(rconnect(s, (struct sockaddr *)&at, sizeof(at)), EINPROGRESS);
	CHECK_ERRNO(rgetpeername(s, (struct sockaddr *)&peer, &len), ENOTCONN);
	do {
		struct pollfd p[2] = { { .fd = l, .events = POLLIN }, { .fd = s, .events = POLLOUT } };

		CHECK(rpoll(p, 2, VT_PATIENCE) > 0);
		a = raccept(l, (struct sockaddr *)&seen, &len);
	} while (a < 0);
	memset(&peer, 0, sizeof(peer));
	CHECK_EQ(rgetpeername(a, (struct sockaddr *)&peer, &len), 0);
	CHECK_EQ(len, sizeof(peer));
	CHECK_EQ(peer.sin_family, AF_INET);
	CHECK_EQ(peer.sin_port, seen.sin_port);
	CHECK_EQ(peer.sin_addr.s_addr, seen.sin_addr.s_addr);
	CHECK_EQ(rclose(a), 0);
	CHECK_EQ(rclose(s), 0);

	/* closed at once, by one that waits and one that does not */
	CHECK_EQ(rfcntl(l, F_SETFL, 0), 0);
	for (i = 0; i < 2; i++) {
		a = taken(l, &at, &client);
		CHECK_EQ(rfcntl(a, F_SETFL, i ? O_NONBLOCK : 0), 0);
		CHECK_EQ(rclose(a), 0);
		CHECK_EQ(rclose(left(client)), 0);
	}
	/* one way of it */
	a = taken(l, &at, &client);
	CHECK_EQ(rshutdown(a, SHUT_WR), 0);
	s = left(client);
	CHECK_EQ(rsend(s, "x", 1, 0), 1);
	CHECK_EQ(rrecv(a, &c, 1, 0), 1);
	CHECK_EQ(rclose(a), 0);
	CHECK_EQ(rclose(s), 0);
	CHECK_EQ(rclose(l), 0);
}

static void reset(int s)
{
	struct linger now = { 1, 0 };

	CHECK_EQ(rsetsockopt(s, SOL_SOCKET, SO_LINGER, &now, sizeof(now)), 0);
	CHECK_EQ(rclose(s), 0);
}

static char plenty[1 << 20];

static void *sends(void *s) { return (void *)rsend(*(int *)s, plenty, sizeof(plenty), 0); }

/* Of a call that a reset cuts short the next one says so, once. */
static void cut(void)
{
	char in[8];
	pthread_t t;
	void *sent;
	int s[2];

	joined(s);
	CHECK_EQ(rsend(s[1], "abcd", 4, 0), 4);
	wait_for(s[0], POLLIN);
	CHECK_EQ(rfcntl(s[0], F_SETFL, 0), 0);
	reset(s[1]);
	CHECK_EQ(rrecv(s[0], in, sizeof(in), MSG_WAITALL), 4);
	CHECK_ERRNO(rrecv(s[0], in, sizeof(in), 0), ECONNRESET);
	CHECK_EQ(rrecv(s[0], in, sizeof(in), 0), 0);
	CHECK_EQ(rclose(s[0]), 0);

	joined(s);
	CHECK_EQ(rfcntl(s[0], F_SETFL, 0), 0);
	CHECK_EQ(pthread_create(&t, NULL, sends, &s[0]), 0);
	wait_for(s[1], POLLIN); /* and not all of it, which nobody reads */
	reset(s[1]);
	CHECK_EQ(pthread_join(t, &sent), 0);
	CHECK((intptr_t)sent > 0 && (intptr_t)sent < (intptr_t)sizeof(plenty));
	CHECK_ERRNO(rsend(s[0], "x", 1, 0), ECONNRESET);
	CHECK_ERRNO(rsend(s[0], "x", 1, 0), EPIPE);
	CHECK_EQ(rrecv(s[0], in, sizeof(in), 0), 0);
	CHECK_EQ(rclose(s[0]), 0);
}

int main(int argc, char **argv)
{
	static const struct vt_case cases[] = { { "accepted", accepted }, { "cut", cut },
						{ NULL, NULL } };

	return vt_main(argc, argv, cases);
}
