/* Questions, and who may ask. */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#include "rsocketd.h"

enum {
	ASKERS = 32,  /* who have a connection, and whose question may still come */
	BOUND = 4096, /* sockets that are looked at */
	IDLE_MS = 1000,
	ASK_MS = 5000, /* who does not ask in this time will not */
};

static int64_t now_ms(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * INT64_C(1000) + t.tv_nsec / 1000000;
}

static struct socket *new_socket(const struct rs_ask *q, int *fd)
{
	struct socket *s = calloc(1, sizeof(*s));

	if (!s)
		return NULL;
	*s = (struct socket){ .family = q->family, .rs = -1, .kernel = *fd, .end = -1,
			      .local = q->local, .remote = q->remote };
	*fd = -1;
	return s;
}

/* It has a thread from now on, and is added if it is new: the program's end, or -errno. */
static int run(struct socket *s, bool new, enum rs_kind kind, int type, void *(*thread)(void *))
{
	int end = socket_pair(s, kind, type), err;

	if (end < 0)
		return end;
	if (kind == RS_KIND_CONNECTS) {
		static const char nothing[32768];
		ssize_t n;

		/* nobody can write, or is told that he could, until there is a connection */
		while ((n = send(end, nothing, sizeof(nothing), MSG_DONTWAIT)) > 0)
			s->filled += n;
	}
	err = thread_start(thread, s); /* which waits for the lock before it goes */
	if (err) {
		close(end); /* and so one that was bound is the next to go */
		return err;
	}
	s->bound = false;
	if (new)
		socket_add(s);
	return end;
}

static int op_bind(const struct rs_ask *q, int *fd)
{
	struct socket *s = *fd < 0 ? NULL : new_socket(q, fd);
	int err;

	if (!s)
		return -EINVAL;
	err = make_bound(s);
	if (!err)
		err = socket_pair(s, RS_KIND_BOUND, SOCK_STREAM);
	if (err < 0) {
		socket_free(s);
		return err == -EADDRINUSE && sockets_leaving(q->local.port) ? -EBUSY : err;
	}
	s->bound = true;
	socket_add(s);
	return err;
}

/* The socket that is asked for: one that is bound, or a new one of a descriptor. */
static int take_socket(const struct rs_ask *q, int *fd, struct socket **s)
{
	*s = socket_find(q->id);
	if (*s)
		return (*s)->bound ? 0 : -EINVAL;
	if (*fd < 0 || q->id)
		return -EINVAL;
	*s = new_socket(q, fd);
	return *s ? 0 : -ENOMEM;
}

static int op_listen(const struct rs_ask *q, int *fd)
{
	struct socket *s;
	int err = take_socket(q, fd, &s);
	bool new;

	if (err)
		return err;
	new = !s->bound;
	if (new) {
		s->beside = true;
		err = fcntl(s->kernel, F_SETFL, fcntl(s->kernel, F_GETFL) | O_NONBLOCK) ?
			      -errno : make_bound(s);
	}
	s->backlog = q->backlog;
	if (!err)
		err = make_listening(s);
	if (!err)
		err = run(s, new, RS_KIND_LISTENS, SOCK_SEQPACKET, listen_run);
	if (err < 0 && new)
		socket_free(s);
	return err;
}

static int op_connect(const struct rs_ask *q, int *fd)
{
	struct socket *s;
	int err = take_socket(q, fd, &s);
	bool new;

	if (err)
		return err;
	new = !s->bound;
	if (new)
		err = make_bound(s);
	s->remote = q->remote;
	if (!err)
		err = make_connecting(s);
	if (!err)
		err = run(s, new, RS_KIND_CONNECTS, SOCK_STREAM, stream_run);
	if (err < 0 && new)
		socket_free(s);
	return err;
}

static int op_option(const struct rs_ask *q, struct rs_answer *a)
{
	struct socket *s = socket_find(q->id);

	if (!s)
		return -ENOENT;
	if (q->len > RS_VALUE)
		return -EINVAL;
	return q->op == RS_OP_SET ? option_set(s, q) : option_get(s, q, a);
}

static void answer(int to, const struct rs_ask *q, int fd)
{
	struct rs_answer a = { 0 };
	int r;

	sockets_lock();
	switch (q->op) {
	case RS_OP_BIND:
		r = op_bind(q, &fd);
		break;
	case RS_OP_LISTEN:
		r = op_listen(q, &fd);
		break;
	case RS_OP_CONNECT:
		r = op_connect(q, &fd);
		break;
	case RS_OP_SET:
	case RS_OP_GET:
		r = op_option(q, &a);
		break;
	default:
		r = -EOPNOTSUPP;
	}
	sockets_unlock();
	if (fd >= 0)
		close(fd);
	a.err = r < 0 ? -r : 0;
	fd = r > 0 ? r : -1;
	(void)pass_fd(to, &a, sizeof(a), fd); /* who has gone meanwhile has closed it, too */
	if (fd >= 0)
		close(fd);
}

static bool same(const char *a, const char *b)
{
	unsigned int d = 0, i;

	for (i = 0; i < RS_SECRET; i++)
		d |= (unsigned char)(a[i] ^ b[i]);
	return !d;
}

/* Reads a question, and answers it if it is one of who may ask. */
static void hear(int from, const char *secret)
{
	union {
		struct cmsghdr h;
		char room[CMSG_SPACE(sizeof(int))];
	} c;
	struct rs_ask q;
	struct iovec v = { &q, sizeof(q) };
	/* room for one, and not, as in all of c, for two: anybody can send some */
	struct msghdr m = { .msg_iov = &v, .msg_iovlen = 1, .msg_control = &c,
			    .msg_controllen = CMSG_LEN(sizeof(int)) };
	struct rs_answer none = { .err = EMFILE }; /* for the descriptor that came along */
	ssize_t n = recvmsg(from, &m, MSG_CMSG_CLOEXEC | MSG_DONTWAIT);
	int fd = -1;

	if (n < 0)
		return;
	if (m.msg_controllen >= CMSG_LEN(sizeof(int)) && c.h.cmsg_level == SOL_SOCKET &&
	    c.h.cmsg_type == SCM_RIGHTS)
		memcpy(&fd, CMSG_DATA(&c.h), sizeof(fd));
	if (n != (ssize_t)sizeof(q) || !same(q.secret, secret)) {
		if (fd >= 0)
			close(fd);
	} else if (fd < 0 && m.msg_flags & MSG_CTRUNC) {
		(void)pass_fd(from, &none, sizeof(none), -1);
	} else {
		answer(from, &q, fd);
	}
}

struct asker {
	int fd;
	int64_t since;
};

/* Those of bound sockets that the program has closed go. */
static void sweep(struct socket **bound, const struct pollfd *p, int n)
{
	int i;

	for (i = 0; i < n; i++) {
		sockets_lock();
		if (!bound[i]->bound || bound[i]->end != p[i].fd || !p[i].revents)
			bound[i] = NULL;
		sockets_unlock();
		if (bound[i]) {
			socket_remove(bound[i]);
			socket_free(bound[i]);
		}
	}
}

/*
 * Who asks while there are no descriptors is told so: one is kept for that. Without it the listener
 * would stay readable, and nobody be answered.
 */
static int accept_asker(int listener, int *spare)
{
	int fd = accept4(listener, NULL, NULL, SOCK_CLOEXEC);

	if (fd >= 0 || (errno != EMFILE && errno != ENFILE))
		return fd;
	close(*spare);
	*spare = -1;
	return accept4(listener, NULL, NULL, SOCK_CLOEXEC);
}

void ask_serve(int listener, const char *secret)
{
	static struct socket *bound[BOUND];
	static struct pollfd p[1 + ASKERS + BOUND];
	struct asker askers[ASKERS];
	int64_t busy = now_ms();
	int n = 0, nbound, i, k, fd, spare = -1;

	for (;;) {
		if (spare < 0)
			spare = open("/dev/null", O_RDONLY | O_CLOEXEC);
		p[0] = (struct pollfd){ .fd = spare < 0 ? -1 : listener, .events = POLLIN };
		for (i = 0; i < n; i++)
			p[1 + i] = (struct pollfd){ .fd = askers[i].fd, .events = POLLIN };
		sockets_lock();
		nbound = sockets_bound(bound, BOUND);
		for (i = 0; i < nbound; i++)
			p[1 + n + i] = (struct pollfd){ .fd = bound[i]->end };
		sockets_unlock();
		if (poll(p, 1 + n + nbound, IDLE_MS) < 0)
			return;
		sweep(bound, p + 1 + n, nbound);
		if (sockets_any())
			busy = now_ms();
		else if (!p[0].revents && now_ms() - busy >= IDLE_MS)
			return;
		for (i = k = 0; i < n; i++) {
			if (p[1 + i].revents)
				hear(askers[i].fd, secret);
			if (p[1 + i].revents || now_ms() - askers[i].since > ASK_MS)
				close(askers[i].fd);
			else
				askers[k++] = askers[i];
		}
		n = k;
		if (p[0].revents && (fd = accept_asker(listener, &spare)) >= 0) {
			/* who has a question asks it at once: any user could keep all places */
			if (n == ASKERS) {
				close(askers[0].fd);
				memmove(askers, askers + 1, --n * sizeof(*askers));
			}
			askers[n++] = (struct asker){ fd, now_ms() };
		}
	}
}
