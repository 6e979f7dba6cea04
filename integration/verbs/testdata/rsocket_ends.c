/* How connections of sockets over RDMA begin and end, as both sides see it; and forks. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <semaphore.h>
#include <sys/wait.h>

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

/* What a thread does when it is about to sleep without end, once; true: as if a signal had come. */
static __thread bool (*sleeps)(void);

int poll(struct pollfd *p, nfds_t n, int ms)
{
	static int (*next)(struct pollfd *p, nfds_t n, int ms);
	bool (*now)(void) = ms < 0 ? sleeps : NULL;

	if (!next) /* the C library's, or a sanitizer's */
		next = (int (*)(struct pollfd *, nfds_t, int))dlsym(RTLD_NEXT, "poll");
	if (!now)
		return next(p, n, ms);
	sleeps = NULL;
	if (now()) {
		errno = EINTR;
		return -1;
	}
	n = next(p, n, VT_PATIENCE);
	CHECK_EQ(n, 1); /* it is woken */
	return n;
}

int __poll_chk(struct pollfd *p, nfds_t n, int ms, size_t size)
{
	CHECK(n * sizeof(*p) <= size);
	return poll(p, n, ms);
}

static sem_t about_to, may;

static bool stops(void)
{
	CHECK_EQ(sem_post(&about_to), 0);
	CHECK_EQ(sem_wait(&may), 0);
	return false;
}

static void *accepts(void *l)
{
	sleeps = stops;
	CHECK_ERRNO(raccept(*(int *)l, NULL, NULL), EAGAIN);
	return NULL;
}

static void ends_well(pid_t child)
{
	int status;

	CHECK_EQ(waitpid(child, &status, 0), child);
	CHECK_EQ(status, 0);
}

/* Whoever sleeps in the child of a fork takes no wake-up of the parent's. */
static void woken(void)
{
	struct sockaddr_in at;
	int go[2], l;
	pthread_t t;
	pid_t child;
	char c;

	CHECK_EQ(sem_init(&about_to, 0, 0), 0);
	CHECK_EQ(sem_init(&may, 0, 0), 0);
	CHECK_EQ(rpoll(NULL, 0, 1), 0); /* what it sleeps on is there for the next one */
	CHECK_EQ(pipe(go), 0);
	CHECK((child = fork()) >= 0);
	if (!child) {
		CHECK_EQ(read(go[0], &c, 1), 1);
		CHECK_EQ(rpoll(NULL, 0, 1), 0);
		_exit(0);
	}
	l = listener(&at);
	CHECK_EQ(rfcntl(l, F_SETFL, 0), 0);
	CHECK_EQ(pthread_create(&t, NULL, accepts, &l), 0);
	CHECK_EQ(sem_wait(&about_to), 0);
	CHECK_EQ(rfcntl(l, F_SETFL, O_NONBLOCK), 0); /* who waits for it is to look again */
	CHECK_EQ(write(go[1], "", 1), 1);
	ends_well(child);
	CHECK_EQ(sem_post(&may), 0);
	CHECK_EQ(pthread_join(t, NULL), 0);
	CHECK_EQ(rclose(l), 0);
}

static pid_t forked;

static bool forks(void)
{
	CHECK((forked = fork()) >= 0);
	return true;
}

/* A handler of a signal forks while the thread sleeps. */
static void handler(void)
{
	sleeps = forks;
	CHECK_ERRNO(rpoll(NULL, 0, -1), EINTR);
	CHECK_EQ(rpoll(NULL, 0, 1), 0);
	if (!forked)
		_exit(0);
	ends_well(forked);
}

static __thread bool grows;

void *realloc(void *p, size_t size)
{
	static void *(*next)(void *p, size_t size);

	if (grows) { /* the table of sockets, which is locked */
		grows = false;
		sem_post(&about_to);
		usleep(300000); /* a fork that does not wait for it comes by then */
	}
	if (!next)
		next = (void *(*)(void *, size_t))dlsym(RTLD_NEXT, "realloc");
	return next(p, size);
}

static void *opens(void *s)
{
	grows = true;
	CHECK((*(int *)s = rsocket(AF_INET, SOCK_STREAM, 0)) >= 0);
	CHECK(!grows);
	return NULL;
}

/* A child has no lock that one of the parent's threads held. */
static void locked(void)
{
	int s = rsocket(AF_INET, SOCK_STREAM, 0), fds[100], n, new;
	pthread_t t;
	pid_t child;

	CHECK_EQ(sem_init(&about_to, 0, 0), 0);
	for (n = 0; n < 100; n++) /* the table has to grow for the next one */
		CHECK((fds[n] = dup(0)) >= 0);
	CHECK_EQ(pthread_create(&t, NULL, opens, &new), 0);
	CHECK_EQ(sem_wait(&about_to), 0);
	CHECK((child = fork()) >= 0);
	if (!child) {
		alarm(VT_PATIENCE / 1000);
		CHECK_ERRNO(rclose(fds[0]), EBADF);
		_exit(0);
	}
	ends_well(child);
	CHECK_EQ(pthread_join(t, NULL), 0);
	while (n)
		CHECK_EQ(close(fds[--n]), 0);
	CHECK_EQ(rclose(new), 0);
	CHECK_EQ(rclose(s), 0);
}

int main(int argc, char **argv)
{
	static const struct vt_case cases[] = { { "accepted", accepted }, { "cut", cut },
						{ "woken", woken }, { "handler", handler },
						{ "locked", locked }, { NULL, NULL } };

	return vt_main(argc, argv, cases);
}
