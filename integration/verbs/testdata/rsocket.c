/*
 * Sockets over RDMA as a program calls them, both ends in this process; and a peer that is none of
 * them and says what it likes.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <endian.h>
#include <netinet/tcp.h>
#include <pthread.h>
#include <sys/mman.h>

#include "rsocket_pair.h"

static void calls(void)
{
	struct timeval none = { 0 };
	char buf[16];
	fd_set r, w;
	int s[2];

	joined(s);
	CHECK_ERRNO(rrecv(s[1], buf, sizeof(buf), 0), EAGAIN);
	CHECK_EQ(rsend(s[0], "abcdef", 6, 0), 6);
	wait_for(s[1], POLLIN);
	CHECK_EQ(rrecv(s[1], buf, sizeof(buf), MSG_PEEK), 6);
	CHECK_EQ(rrecv(s[1], buf, 2, 0), 2);
	CHECK(!memcmp(buf, "ab", 2));
	FD_ZERO(&r);
	FD_ZERO(&w);
	FD_SET(s[1], &r);
	FD_SET(s[1], &w);
	CHECK_EQ(rselect(s[1] + 1, &r, &w, NULL, &none), 2);
	CHECK_EQ(rrecv(s[1], buf, sizeof(buf), 0), 4);
	CHECK(!memcmp(buf, "cdef", 4));
	CHECK_EQ(rselect(s[1] + 1, &r, NULL, NULL, &none), 0);
	/* one way ends, the other goes on */
	CHECK_EQ(rshutdown(s[0], SHUT_WR), 0);
	CHECK_ERRNO(rsend(s[0], "x", 1, 0), EPIPE);
	wait_for(s[1], POLLIN);
	CHECK_EQ(rrecv(s[1], buf, sizeof(buf), 0), 0);
	CHECK_EQ(rsend(s[1], "back", 4, 0), 4);
	CHECK_EQ(rclose(s[1]), 0);
	wait_for(s[0], POLLIN);
	CHECK_EQ(rfcntl(s[0], F_SETFL, 0), 0);
	CHECK_EQ(rrecv(s[0], buf, sizeof(buf), MSG_WAITALL), 4);
	CHECK_EQ(rrecv(s[0], buf, sizeof(buf), 0), 0);
	CHECK_EQ(rclose(s[0]), 0);
	CHECK_ERRNO(rclose(s[0]), EBADF);
	CHECK_ERRNO(rsend(s[0], "x", 1, 0), EBADF);
}

/* As much as goes, in pieces of all sizes, while nobody reads; then all of it. */
static void full(void)
{
	static char out[3000], in[3000];
	uint32_t sent = 0, got = 0, i;
	ssize_t n;
	int s[2], err;

	joined(s);
	for (;;) {
		for (i = 0; i < sizeof(out); i++)
			out[i] = (sent + i) * 7 % 251;
		n = rsend(s[0], out, 1 + sent % sizeof(out), 0);
		err = errno;
		if (n < 0)
			break;
		sent += n;
	}
	CHECK_EQ(err, EAGAIN);
	CHECK(sent > 0);
	while (got < sent) {
		wait_for(s[1], POLLIN);
		n = rrecv(s[1], in, 1 + got % sizeof(in), 0);
		CHECK(n > 0);
		for (i = 0; i < n; i++)
			CHECK_EQ(in[i], (char)((got + i) * 7 % 251));
		got += n;
	}
	wait_for(s[0], POLLOUT);
	CHECK_EQ(rclose(s[0]), 0);
	CHECK_EQ(rclose(s[1]), 0);
}

/* Nothing is sent only where something could be. */
static void nothing(void)
{
	int s[2];

	s[0] = rsocket(AF_INET, SOCK_STREAM, 0);
	CHECK_ERRNO(rsend(s[0], "", 0, 0), ENOTCONN);
	CHECK_EQ(rclose(s[0]), 0);
	joined(s);
	CHECK_EQ(rsend(s[0], "", 0, 0), 0);
	CHECK_EQ(rsend(s[0], "x", 1, 0), 1);
	wait_for(s[1], POLLRDNORM);
	CHECK_EQ(rshutdown(s[0], SHUT_WR), 0);
	CHECK_ERRNO(rsend(s[0], "", 0, 0), EPIPE);
	CHECK_EQ(rclose(s[0]), 0);
	CHECK_EQ(rclose(s[1]), 0);
}

/* Both names of what can be read, where a connection waits, too. */
static void normal(void)
{
	struct sockaddr_in at;
	int l = listener(&at), s = rsocket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0), got;
	struct pollfd p = { .fd = l, .events = POLLRDNORM };

	CHECK_EQ(rpoll(&p, 1, 0), 0);
	CHECK_ERRNO(rconnect(s, (struct sockaddr *)&at, sizeof(at)), EINPROGRESS);
	do {
		struct pollfd both[2] = { p, { .fd = s, .events = POLLWRNORM } };

		CHECK(rpoll(both, 2, VT_PATIENCE) > 0);
		p.revents = both[0].revents;
	} while (!p.revents);
	CHECK_EQ(p.revents, POLLRDNORM);
	got = raccept(l, NULL, NULL);
	CHECK(got >= 0);
	wait_for(s, POLLWRNORM);
	CHECK_EQ(rclose(got), 0);
	CHECK_EQ(rclose(s), 0);
	CHECK_EQ(rclose(l), 0);
}

/* What rclose does with what was sent, and what the peer hears of it. */
static void lingers(void)
{
	struct linger l = { 1, 0 }, got = { 0 };
	static char out[100000], in[sizeof(out)];
	socklen_t len = sizeof(got);
	int s[2], err;
	size_t sent;
	ssize_t n;

	joined(s);
	CHECK_EQ(rsetsockopt(s[0], SOL_SOCKET, SO_LINGER, &l, sizeof(l)), 0);
	CHECK_EQ(rgetsockopt(s[0], SOL_SOCKET, SO_LINGER, &got, &len), 0);
	CHECK_EQ(got.l_onoff, 1);
	CHECK_EQ(got.l_linger, 0);
	CHECK_EQ(rsend(s[0], "x", 1, 0), 1);
	CHECK_EQ(rclose(s[0]), 0);
	CHECK_EQ(rfcntl(s[1], F_SETFL, 0), 0);
	while ((n = rrecv(s[1], in, sizeof(in), 0)) > 0)
		;
	err = errno;
	CHECK_EQ(n, -1);
	CHECK_EQ(err, ECONNRESET);
	CHECK_EQ(rclose(s[1]), 0);

	joined(s);
	l.l_linger = 30;
	CHECK_EQ(rsetsockopt(s[0], SOL_SOCKET, SO_LINGER, &l, sizeof(l)), 0);
	/* half of the peer's buffer is told of behind the connection, and may come later */
	for (sent = 0; sent < sizeof(out); sent += n) {
		wait_for(s[0], POLLOUT);
		n = rsend(s[0], out + sent, sizeof(out) - sent, 0);
		CHECK(n > 0);
	}
	CHECK_EQ(rclose(s[0]), 0);
	CHECK_EQ(rfcntl(s[1], F_SETFL, 0), 0);
	CHECK_EQ(rrecv(s[1], in, sizeof(in), MSG_WAITALL), (ssize_t)sizeof(in));
	CHECK_EQ(rrecv(s[1], in, 1, 0), 0);
	CHECK_EQ(rclose(s[1]), 0);
}

static volatile bool no_memory;

void *realloc(void *p, size_t size)
{
	static void *(*next)(void *p, size_t size);

	if (no_memory) {
		errno = ENOMEM;
		return NULL;
	}
	if (!next) /* the C library's, or a sanitizer's */
		next = (void *(*)(void *, size_t))dlsym(RTLD_NEXT, "realloc");
	return next(p, size);
}

/* A connection for which there is no memory is refused, and its peer hears of it; the next is not. */
static void full_memory(void)
{
	struct sockaddr_in at;
	int l = listener(&at), s = rsocket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0), fds[700], n = 0, fd;
	char name[200] = "", c;

	CHECK_ERRNO(rconnect(s, (struct sockaddr *)&at, sizeof(at)), EINPROGRESS);
	/* a mapping below all others, whose line in /proc/self/maps takes memory to be read as one */
	memset(name, 'x', sizeof(name) - 1);
	fd = memfd_create(name, MFD_CLOEXEC);
	CHECK(fd >= 0 && !ftruncate(fd, 4096));
	CHECK(mmap((void *)0x10000000, 4096, PROT_READ, MAP_SHARED | MAP_FIXED_NOREPLACE, fd, 0) !=
	      MAP_FAILED);
	CHECK_EQ(close(fd), 0);
	/* a number for which the table of sockets is too small */
	while (n < 700 && (n == 0 || fds[n - 1] < 600)) {
		fds[n] = dup(0);
		CHECK(fds[n] >= 0);
		n++;
	}
	for (;;) {
		struct pollfd p[2] = { { .fd = l, .events = POLLIN }, { .fd = s, .events = POLLOUT } };

		CHECK(rpoll(p, 2, VT_PATIENCE) > 0);
		if (p[0].revents)
			break;
	}
	no_memory = true;
	CHECK_ERRNO(raccept(l, NULL, NULL), ENOMEM);
	no_memory = false;
	while (n)
		CHECK_EQ(close(fds[--n]), 0);
	CHECK_EQ(rfcntl(s, F_SETFL, 0), 0);
	CHECK(rrecv(s, &c, 1, 0) <= 0);
	CHECK_EQ(rclose(s), 0);
	CHECK_EQ(rclose(l), 0);
}

static void refused(void)
{
	struct sockaddr_in at;
	int l = listener(&at), s = rsocket(AF_INET, SOCK_STREAM, 0), nodelay = 1, got = 0;
	socklen_t len = sizeof(got);

	CHECK_EQ(rsetsockopt(s, IPPROTO_TCP, TCP_NODELAY, &nodelay, sizeof(nodelay)), 0);
	CHECK_EQ(rgetsockopt(s, IPPROTO_TCP, TCP_NODELAY, &got, &len), 0);
	CHECK_EQ(got, 1);
	CHECK_ERRNO(rgetsockopt(s, SOL_SOCKET, 9999, &got, &len), ENOPROTOOPT);
	CHECK_ERRNO(rrecv(s, &got, sizeof(got), 0), ENOTCONN);
	CHECK_EQ(rclose(l), 0);
	CHECK_ERRNO(rconnect(s, (struct sockaddr *)&at, sizeof(at)), ECONNREFUSED);
	CHECK_EQ(rclose(s), 0);
}

static char mapped[64];

static void *maps(void *s)
{
	return (void *)(intptr_t)(riomap(*(int *)s, mapped, sizeof(mapped), PROT_WRITE, 0, 0) ? errno
											    : 0);
}

/* Calls that wait, or are made again and again, hear of it when a socket goes. */
static void ends(void)
{
	struct sockaddr_in at;
	int l, s[2], again = 0;
	pthread_t t;
	void *err;

	/* memory that the peer could not be told of before it went */
	joined(s);
	CHECK_EQ(riomap(s[1], mapped, sizeof(mapped), PROT_WRITE, 0, 0), 0);
	CHECK_EQ(rclose(s[0]), 0);
	wait_for(s[1], POLLIN);
	CHECK_ERRNO(rsend(s[1], "x", 1, 0), EPIPE);
	CHECK_ERRNO((ssize_t)riowrite(s[1], "x", 1, 0, 0), ECONNRESET);
	CHECK_EQ(rclose(s[1]), 0);

	/* a connection that is asked for until it is there */
	l = listener(&at);
	s[0] = rsocket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
	CHECK_ERRNO(rconnect(s[0], (struct sockaddr *)&at, sizeof(at)), EINPROGRESS);
	for (s[1] = -1; again != EISCONN;) {
		if (s[1] < 0)
			s[1] = raccept(l, NULL, NULL);
		usleep(1000);
		again = rconnect(s[0], (struct sockaddr *)&at, sizeof(at)) ? errno : 0;
		CHECK(again == EALREADY || again == EISCONN);
	}
	CHECK_EQ(rclose(s[0]), 0);
	CHECK_EQ(rclose(s[1]), 0);

	/* one that nobody answers is closed under a thread that waits for it */
	s[0] = rsocket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
	CHECK_ERRNO(rconnect(s[0], (struct sockaddr *)&at, sizeof(at)), EINPROGRESS);
	CHECK_EQ(rfcntl(s[0], F_SETFL, 0), 0);
	CHECK_EQ(pthread_create(&t, NULL, maps, &s[0]), 0);
	usleep(50000); /* it waits by then, or finds none */
	CHECK_EQ(rclose(s[0]), 0);
	CHECK_EQ(pthread_join(t, &err), 0);
	CHECK_EQ((intptr_t)err, EBADF);
	CHECK_EQ(rclose(l), 0);
}

/* What a socket says of itself when it connects, in network order. */
struct hello {
	uint8_t version, flags;
	uint16_t credits;
	uint8_t reserved[3], iomaps;
	uint64_t offers;
	uint32_t offers_key, n;
	uint64_t buf;
	uint32_t buf_key, len;
};

/* Where the socket writes its offers. */
static uint8_t offers[64];

/* A peer that is no socket: 0, or what rdma_connect failed with. */
static int stranger(const struct sockaddr_in *at, struct hello *hello, size_t len,
		    struct rdma_cm_id **out)
{
	struct ibv_mr *mr;
	struct ibv_qp_init_attr attr = { .qp_type = IBV_QPT_RC, .sq_sig_all = 1,
					 .cap = { 16, 16, 1, 1, 32 } };
	struct rdma_conn_param p = { .private_data = hello, .private_data_len = len,
				     .initiator_depth = 1, .responder_resources = 1,
				     .retry_count = 7, .rnr_retry_count = 7 };
	struct rdma_cm_id *id;

	CHECK_EQ(rdma_create_id(NULL, &id, NULL, RDMA_PS_TCP), 0);
	CHECK_EQ(rdma_resolve_addr(id, NULL, (struct sockaddr *)at, 4000), 0);
	CHECK_EQ(rdma_resolve_route(id, 4000), 0);
	CHECK_EQ(rdma_create_qp(id, NULL, &attr), 0);
	CHECK((mr = ibv_reg_mr(id->pd, offers, sizeof(offers),
			       IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE)));
	if (hello) {
		hello->offers = htobe64((uintptr_t)offers);
		hello->offers_key = htobe32(mr->rkey);
	}
	*out = id;
	return rdma_connect(id, &p) ? errno : 0;
}

static void *accepts(void *l) { return (void *)(intptr_t)raccept(*(int *)l, NULL, NULL); }

static void say(struct rdma_cm_id *id, uint32_t msg)
{
	struct ibv_sge sge = { .addr = (uintptr_t)&msg, .length = sizeof(msg) };
	struct ibv_send_wr wr = { .opcode = IBV_WR_RDMA_WRITE_WITH_IMM, .imm_data = htobe32(msg) };
	struct ibv_send_wr *bad;

	if (id->verbs->device->transport_type == IBV_TRANSPORT_IWARP)
		wr = (struct ibv_send_wr){ .opcode = IBV_WR_SEND, .send_flags = IBV_SEND_INLINE,
					   .sg_list = &sge, .num_sge = 1 };
	CHECK_EQ(ibv_post_send(id->qp, &wr, &bad), 0);
}

/* What is said by what is taken for a socket, and what a read of its peer then fails with. */
static void says(const struct sockaddr_in *at, int l, uint32_t msg, int want)
{
	struct hello h = { .version = 1, .credits = htobe16(64), .n = htobe32(2) };
	struct rdma_cm_id *id;
	pthread_t t;
	void *s;
	char c;

	CHECK_EQ(pthread_create(&t, NULL, accepts, &l), 0);
	CHECK_EQ(stranger(at, &h, sizeof(h), &id), 0);
	CHECK_EQ(pthread_join(t, &s), 0);
	say(id, msg);
	if (want)
		CHECK_ERRNO(rrecv((intptr_t)s, &c, 1, 0), want);
	else
		CHECK_EQ(rrecv((intptr_t)s, &c, 1, 0), 0);
	CHECK_EQ(rclose((intptr_t)s), 0);
	rdma_destroy_ep(id);
}

/*
 * A peer that has been answered, and does not say that it has heard so: of RoCE that is what has a
 * queue pair of its own to do. What it has goes with the process.
 */
static void *asks(void *at)
{
	struct ibv_qp_init_attr attr = { .qp_type = IBV_QPT_RC, .cap = { 1, 1, 1, 1, 0 } };
	struct hello h = { .version = 1, .credits = htobe16(64), .n = htobe32(2) };
	struct rdma_conn_param p = { .private_data = &h, .private_data_len = sizeof(h),
				     .retry_count = 7, .rnr_retry_count = 7 };
	struct rdma_cm_id *id;
	struct ibv_qp *qp;

	CHECK_EQ(rdma_create_id(NULL, &id, NULL, RDMA_PS_TCP), 0);
	CHECK_EQ(rdma_resolve_addr(id, NULL, at, 4000), 0);
	CHECK_EQ(rdma_resolve_route(id, 4000), 0);
	CHECK((attr.send_cq = ibv_create_cq(id->verbs, 2, NULL, NULL, 0)));
	attr.recv_cq = attr.send_cq;
	CHECK((qp = ibv_create_qp(ibv_alloc_pd(id->verbs), &attr)));
	p.qp_num = qp->qp_num;
	CHECK_EQ(rdma_connect(id, &p), 0);
	return id;
}

/* It holds up a program that does not wait for a moment only. */
static void unheard(void)
{
	struct sockaddr_in at;
	int l = listener(&at), a;
	uint64_t before;
	pthread_t t;
	void *id;

	CHECK_EQ(rfcntl(l, F_SETFL, 0), 0);
	CHECK_EQ(pthread_create(&t, NULL, asks, &at), 0);
	CHECK((a = raccept(l, NULL, NULL)) >= 0);
	CHECK_EQ(pthread_join(t, &id), 0);
	CHECK_EQ(rfcntl(a, F_SETFL, O_NONBLOCK), 0);
	before = vt_now_ms();
	CHECK_EQ(rclose(a), 0);
	CHECK(vt_now_ms() - before < 7000); /* who waits does so for 10 s */
	CHECK_EQ(rdma_destroy_id(id), 0);
	CHECK_EQ(rclose(l), 0);
}

static void hostile(void)
{
	struct hello h = { .version = 1, .credits = htobe16(64), .n = htobe32(2) }, bad;
	struct rdma_cm_id *id;
	struct sockaddr_in at;
	int l = listener(&at), i;

	CHECK_EQ(rfcntl(l, F_SETFL, 0), 0);
	says(&at, l, 131072 + 1, EPROTO);			/* more than was offered */
	says(&at, l, (1u << 29) - 1, EPROTO);
	says(&at, l, 1u << 29, EPROTO);			/* reserved */
	says(&at, l, 5u << 29, EPROTO);
	says(&at, l, 7u << 29, 0);			/* that it has gone */
	/* No hello, a short one, one of a later version, one with no room for a second offer. */
	for (i = 0; i < 4; i++) {
		pthread_t t;
		struct rdma_cm_id *good;
		void *s;

		bad = h;
		if (i == 2)
			bad.version = 2;
		if (i == 3)
			bad.n = htobe32(1);
		CHECK_EQ(pthread_create(&t, NULL, accepts, &l), 0);
		CHECK(stranger(&at, i ? &bad : NULL, i > 1 ? sizeof(bad) : 8u * i, &id) != 0);
		rdma_destroy_ep(id);
		CHECK_EQ(stranger(&at, &h, sizeof(h), &good), 0); /* the next one is served */
		CHECK_EQ(pthread_join(t, &s), 0);
		CHECK_EQ(rclose((intptr_t)s), 0);
		rdma_destroy_ep(good);
	}
	CHECK_EQ(rclose(l), 0);
}

/* A socket of datagrams, bound to the server's address, or any, or to nothing. */
enum bound { UNBOUND, SPECIFIC, ANY };

static int datagram(enum bound bound, struct sockaddr_in *at)
{
	int s = rsocket(AF_INET, SOCK_DGRAM | SOCK_NONBLOCK, 0);
	socklen_t len = sizeof(*at);

	CHECK(s >= 0);
	*at = server_addr();
	if (bound == UNBOUND)
		return s;
	if (bound == ANY)
		at->sin_addr.s_addr = 0;
	CHECK_EQ(rbind(s, (struct sockaddr *)at, sizeof(*at)), 0);
	CHECK_EQ(rgetsockname(s, (struct sockaddr *)at, &len), 0);
	CHECK(at->sin_port != 0);
	CHECK_ERRNO(rbind(s, (struct sockaddr *)at, sizeof(*at)), EINVAL);
	if (bound == ANY)
		at->sin_addr = server_addr().sin_addr;
	return s;
}

static void send_to(int s, const struct sockaddr_in *to, const void *data, size_t len)
{
	CHECK_EQ(rsendto(s, data, len, 0, (const struct sockaddr *)to, to ? sizeof(*to) : 0), len);
}

/* Looks at both: a socket answers who asks for its queue pair when it is looked at. */
static void wait_both(int for_one, int other)
{
	struct pollfd p[2] = { { .fd = for_one, .events = POLLIN }, { .fd = other } };

	CHECK(rpoll(p, 2, VT_PATIENCE) > 0);
	CHECK_EQ(p[0].revents, POLLIN);
	CHECK_EQ(p[1].revents, 0);
}

/* Datagrams of many lengths, there and back: by UDP first, and then by queue pairs. */
static void exchange(int a, const struct sockaddr_in *to, int b)
{
	static const int lengths[] = { 3, 0, 1, 56, 57, 1000, 1016 };
	struct sockaddr_in from;
	char out[1016], in[1100];
	unsigned int i, k;

	for (i = 0; i < 40; i++) {
		int len = lengths[i % (sizeof(lengths) / sizeof(*lengths))];
		socklen_t n = sizeof(from);

		for (k = 0; k < sizeof(out); k++)
			out[k] = i + k;
		send_to(a, to, out, len);
		wait_both(b, a);
		CHECK_EQ(rrecvfrom(b, in, sizeof(in), 0, (struct sockaddr *)&from, &n), len);
		CHECK_EQ(n, sizeof(from));
		CHECK(!memcmp(in, out, len));
		send_to(b, &from, out, len);
		wait_both(a, b);
		n = sizeof(from);
		CHECK_EQ(rrecvfrom(a, in, sizeof(in), 0, (struct sockaddr *)&from, &n), len);
		CHECK_EQ(from.sin_addr.s_addr, to->sin_addr.s_addr);
		CHECK_EQ(from.sin_port, to->sin_port);
		CHECK(!memcmp(in, out, len));
	}
	CHECK_ERRNO(rrecv(a, in, sizeof(in), 0), EAGAIN);
	CHECK_ERRNO(rrecv(b, in, sizeof(in), 0), EAGAIN);
}

static void datagrams(void)
{
	struct sockaddr_in at_a, at_b, at_c, peer, bad;
	socklen_t len = sizeof(peer);
	char in[8], large[2049] = { 0 };
	int a = datagram(SPECIFIC, &at_a), b = datagram(UNBOUND, &at_b), c, one = 1, i;

	CHECK_ERRNO(rsend(b, "x", 1, 0), EDESTADDRREQ);
	CHECK_ERRNO(rgetpeername(b, (struct sockaddr *)&peer, &len), ENOTCONN);
	CHECK_ERRNO(rshutdown(b, SHUT_WR), ENOTCONN);
	CHECK_ERRNO(rlisten(b, 1), EOPNOTSUPP);
	CHECK_ERRNO(raccept(b, NULL, NULL), EOPNOTSUPP);
	CHECK_ERRNO(riomap(b, large, sizeof(large), 0, 0, 0), EOPNOTSUPP);
	exchange(b, &at_a, a);
	/* what is too long is said, not lost */
	CHECK_ERRNO(rsendto(b, large, sizeof(large), 0, (struct sockaddr *)&at_a, sizeof(at_a)),
		    EMSGSIZE);
	bad = at_a;
	bad.sin_family = AF_INET6;
	CHECK_ERRNO(rsendto(b, large, 1, 0, (struct sockaddr *)&bad, sizeof(bad)), EAFNOSUPPORT);
	CHECK_ERRNO(rsendto(b, large, 1, 0, (struct sockaddr *)&at_a, 4), EINVAL);
	bad = at_a;
	bad.sin_port = 0;
	CHECK_ERRNO(rsendto(b, large, 1, 0, (struct sockaddr *)&bad, sizeof(bad)), EINVAL);
	/* a part of one, and one that stays */
	send_to(b, &at_a, "abcdef", 6);
	wait_both(a, b);
	CHECK_EQ(rrecv(a, in, 2, MSG_PEEK | MSG_TRUNC), 6);
	CHECK_EQ(rrecv(a, in, 4, 0), 4);
	CHECK(!memcmp(in, "abcd", 4));
	CHECK_ERRNO(rrecv(a, in, sizeof(in), 0), EAGAIN);
	/* a number is one socket's; and what sizes there are is fixed when it has one */
	c = rsocket(AF_INET, SOCK_DGRAM, 0);
	CHECK_ERRNO(rbind(c, (struct sockaddr *)&at_a, sizeof(at_a)), EADDRINUSE);
	CHECK_EQ(rclose(c), 0);
	CHECK_ERRNO(rsetsockopt(a, SOL_RDMA, RDMA_RQSIZE, &one, sizeof(one)), EINVAL);
	/* of one that is connected the peer alone is heard */
	c = datagram(ANY, &at_c);
	CHECK_EQ(rconnect(b, (struct sockaddr *)&at_a, sizeof(at_a)), 0);
	len = sizeof(peer);
	CHECK_EQ(rgetpeername(b, (struct sockaddr *)&peer, &len), 0);
	CHECK_EQ(peer.sin_port, at_a.sin_port);
	exchange(c, &at_a, a);
	exchange(a, &at_c, c);
	CHECK_EQ(rsend(b, "to a", 4, 0), 4);
	wait_both(a, b);
	CHECK_EQ(rrecvfrom(a, in, sizeof(in), 0, (struct sockaddr *)&at_b, &len), 4);
	for (i = 0; i < 3; i++)
		send_to(c, &at_b, "from c", 6);
	send_to(a, &at_b, "from a", 6);
	wait_both(b, c);
	CHECK_EQ(rrecv(b, in, sizeof(in), 0), 6);
	CHECK(!memcmp(in, "from a", 6));
	CHECK_EQ(rshutdown(b, SHUT_RDWR), 0);
	CHECK_ERRNO(rsend(b, "x", 1, 0), EPIPE);
	CHECK_EQ(rrecv(b, in, sizeof(in), 0), 0);
	CHECK_EQ(rclose(a), 0);
	CHECK_EQ(rclose(b), 0);
	CHECK_EQ(rclose(c), 0);
	CHECK_ERRNO(rsend(a, "x", 1, 0), EBADF);
}

/* An RNIC has no datagrams, and says so. */
static void no_datagrams(void)
{
	CHECK_ERRNO(rsocket(AF_INET, SOCK_DGRAM, 0), EOPNOTSUPP);
	CHECK_ERRNO(rsocket(AF_INET, SOCK_DGRAM, IPPROTO_TCP), EOPNOTSUPP);
}

/* What a stranger says by UDP, at an address of the host. */
struct question {
	uint32_t tag;
	uint8_t version, op, length, reserved;
	uint32_t qpn;
	uint8_t addr[4];
	char data[4];
};

static void say_udp(int u, const struct sockaddr_in *to, struct question q, size_t len)
{
	CHECK_EQ(sendto(u, &q, len, 0, (const struct sockaddr *)to, sizeof(*to)), len);
}

static void strangers(void)
{
	struct question good = { .tag = htobe32(0x55555555), .version = 4, .length = 16,
				 .qpn = htobe32(1), .data = "good" }, q, heard;
	struct sockaddr_in at, own = server_addr(), from;
	int s = datagram(SPECIFIC, &at), u = socket(AF_INET, SOCK_DGRAM, 0);
	struct pollfd p = { .fd = u, .events = POLLIN };
	socklen_t len = sizeof(own);
	char in[16];
	size_t n;

	CHECK_EQ(bind(u, (struct sockaddr *)&own, sizeof(own)), 0);
	CHECK_EQ(getsockname(u, (struct sockaddr *)&own, &len), 0);
	/* none of these is a question: no answer, and nothing to be read */
	for (n = 0; n < 16; n++)
		say_udp(u, &at, good, n);
	q = good;
	q.tag = htobe32(0x55555556);
	say_udp(u, &at, q, sizeof(q));
	q = good;
	q.version = 6;
	say_udp(u, &at, q, sizeof(q));
	q = good;
	q.length = 28;
	say_udp(u, &at, q, sizeof(q));
	q = good;
	q.op = 3; /* it says who it is, and asks nothing */
	say_udp(u, &at, q, sizeof(q));
	say_udp(u, &at, good, sizeof(good));
	wait_for(s, POLLIN);
	len = sizeof(from);
	CHECK_EQ(rrecvfrom(s, in, sizeof(in), 0, (struct sockaddr *)&from, &len), 4);
	CHECK(!memcmp(in, "good", 4));
	CHECK_EQ(from.sin_port, own.sin_port);
	CHECK_ERRNO(rrecv(s, in, sizeof(in), 0), EAGAIN);
	CHECK_EQ(poll(&p, 1, VT_PATIENCE), 1);
	CHECK_EQ(recv(u, &heard, sizeof(heard), 0), 16);
	CHECK_EQ(heard.tag, htobe32(0x55555555));
	CHECK_EQ(heard.version, 4);
	CHECK_EQ(heard.op, 7);
	CHECK_EQ(heard.length, 16);
	CHECK(be32toh(heard.qpn) > 1 && be32toh(heard.qpn) < 1 << 24);
	CHECK(!memcmp(heard.addr, &at.sin_addr, 4));
	CHECK_EQ(poll(&p, 1, 0), 0);
	/* a queue pair that is nobody's: what is sent to it is lost */
	send_to(s, &own, "lost", 4);
	CHECK_EQ(rclose(s), 0);
	close(u);
}

/* What is remembered of others is bounded: whom something is being sent to may be forgotten. */
static void crowd(void)
{
	struct question q = { .tag = htobe32(0x55555555), .version = 4, .length = 16,
			      .qpn = htobe32(1) };
	struct sockaddr_in at, own = server_addr(), other, none = { .sin_family = AF_UNSPEC };
	int s = datagram(SPECIFIC, &at), u = socket(AF_INET, SOCK_DGRAM, 0), i;
	struct pollfd p = { .fd = u, .events = POLLIN };
	socklen_t len = sizeof(own);
	char in[64];

	CHECK_EQ(bind(u, (struct sockaddr *)&own, sizeof(own)), 0);
	CHECK_EQ(getsockname(u, (struct sockaddr *)&own, &len), 0);
	other = own;
	/* all but one; then somebody is sent to while u, which is one too many, asks */
	for (i = 1; i < 4096; i++) {
		other.sin_port = htons(i);
		CHECK_EQ(rconnect(s, (struct sockaddr *)&other, sizeof(other)), 0);
		CHECK_EQ(rconnect(s, (struct sockaddr *)&none, sizeof(none)), 0);
	}
	other.sin_port = htons(6000);
	say_udp(u, &at, q, sizeof(q));
	CHECK_EQ(rsendto(s, "to none", 7, 0, (struct sockaddr *)&other, sizeof(other)), 7);
	wait_for(s, POLLIN); /* the question may come after that */
	CHECK_EQ(poll(&p, 1, VT_PATIENCE), 1);
	CHECK_EQ(recv(u, in, sizeof(in), 0), 16);
	CHECK_EQ(rclose(s), 0);
	close(u);
}

int main(int argc, char **argv)
{
	static const struct vt_case cases[] = { { "calls", calls }, { "full", full },
						{ "refused", refused }, { "ends", ends },
						{ "nothing", nothing }, { "normal", normal },
						{ "lingers", lingers },
						{ "full_memory", full_memory },
						{ "hostile", hostile }, { "unheard", unheard },
						{ "datagrams", datagrams },
						{ "no_datagrams", no_datagrams },
						{ "strangers", strangers }, { "crowd", crowd },
						{ NULL, NULL } };

	return vt_main(argc, argv, cases);
}
