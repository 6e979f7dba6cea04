/* Sockets that listen. */
#include <errno.h>
#include <stdlib.h>
#include <unistd.h>

#include "rsocketd.h"

/* A moment for what is short of to come back, or for a daemon that has gone. */
enum { AGAIN_MS = 200 };

/* The kernel's connections are handed over as they are. */
static int accept_kernel(struct socket *s)
{
	return accept4(s->kernel, NULL, NULL, SOCK_CLOEXEC);
}

/* A connection with a thread of its own: the program's end of it, or -1 with errno. */
static int accept_rdma(struct socket *s)
{
	struct sockaddr_storage a;
	socklen_t len = sizeof(a);
	struct socket *c = calloc(1, sizeof(*c));
	int end, err;

	if (!c)
		return -1;
	*c = (struct socket){ .family = s->family, .kernel = -1, .end = -1 };
	c->rs = raccept(s->rs, (struct sockaddr *)&a, &len);
	if (c->rs < 0) {
		free(c);
		return -1;
	}
	c->remote = rs_end_of((struct sockaddr *)&a, len);
	len = sizeof(a);
	if (!rgetsockname(c->rs, (struct sockaddr *)&a, &len))
		c->local = rs_end_of((struct sockaddr *)&a, len);
	sockets_lock();
	end = socket_pair(c, RS_KIND_CONNECTS, SOCK_STREAM);
	if (end >= 0)
		socket_add(c);
	sockets_unlock();
	if (end < 0) {
		socket_cut(c); /* what listens does not wait for the peer of one */
		socket_free(c);
		errno = -end;
		return -1;
	}
	err = thread_start(stream_run, c);
	if (err) {
		close(end);
		socket_cut(c);
		socket_remove(c);
		socket_free(c);
		errno = -err;
		return -1;
	}
	return end;
}

static bool short_of(int err)
{
	return err == EMFILE || err == ENFILE || err == ENOMEM || err == ENOBUFS;
}

/*
 * The daemon has gone, and its sockets with it: a new one gets another for the same address. False:
 * the program has closed it meanwhile.
 */
static bool again(struct socket *s)
{
	for (;;) {
		struct pollfd p = { .fd = s->end };

		sockets_lock(); /* of who asks for options */
		rclose(s->rs);
		s->rs = -1;
		if (!make_bound(s) && !make_listening(s)) {
			sockets_unlock();
			return true;
		}
		sockets_unlock();
		if (poll(&p, 1, AGAIN_MS) > 0)
			return false;
	}
}

void *listen_run(void *arg)
{
	struct socket *s = arg;
	int waits = -1, turn; /* waits: a connection that the program has no room for */

	for (;;) {
		struct pollfd p[3] = {
			{ .fd = s->end, .events = waits >= 0 ? POLLOUT : 0 },
			{ .fd = waits >= 0 ? -1 : s->rs, .events = POLLIN },
			{ .fd = waits >= 0 || !s->beside ? -1 : s->kernel, .events = POLLIN },
		};

		if (rpoll(p, 3, -1) < 0 && errno != EINTR)
			break;
		if (p[0].revents & (POLLHUP | POLLERR))
			break; /* the program has closed it */
		for (turn = 1; turn < 3 && waits < 0; turn++) {
			if (!p[turn].revents)
				continue;
			waits = turn == 1 ? accept_rdma(s) : accept_kernel(s);
			if (waits < 0 && short_of(errno))
				poll(NULL, 0, AGAIN_MS);
			else if (waits < 0 && turn == 1 && errno != EAGAIN && errno != EINTR &&
				 !again(s))
				goto out;
		}
		if (waits >= 0 && pass_fd(s->end, "", 1, waits) != -EAGAIN) {
			close(waits);
			waits = -1;
		}
	}
out:
	if (waits >= 0)
		close(waits);
	socket_verdict(s, 0); /* the program may have ended it by shutdown(2), and look */
	sockets_lock();
	rclose(s->rs); /* who is told that the port is free soon is told so until it is */
	s->rs = -1;
	sockets_unlock();
	socket_remove(s);
	socket_free(s);
	return NULL;
}
