/* What programs call, but for poll.c, option.c and iomap.c. */
#include <fcntl.h>
#include <stdarg.h>
#include <string.h>

#include "stream.h"

int rsocket(int domain, int type, int protocol)
{
	int kind = type & ~(SOCK_NONBLOCK | SOCK_CLOEXEC), err;
	struct rs *s;

	if ((domain != AF_INET && domain != AF_INET6) ||
	    (kind == SOCK_STREAM && protocol && protocol != IPPROTO_TCP) ||
	    (kind == SOCK_DGRAM && protocol && protocol != IPPROTO_UDP) ||
	    (kind != SOCK_STREAM && kind != SOCK_DGRAM)) {
		errno = EOPNOTSUPP;
		return -1;
	}
	s = kind == SOCK_STREAM ? rs_new_stream(domain) : rs_new_datagram(domain);
	if (!s)
		return -1;
	s->nonblock = type & SOCK_NONBLOCK;
	err = rs_add(s);
	if (err < 0)
		rs_put(s);
	return rs_return(err);
}

int rbind(int socket, const struct sockaddr *addr, socklen_t len)
{
	struct rs *s = rs_enter(socket);
	int err;

	if (!s)
		return -1;
	err = s->ops->bind(s, addr, len);
	rs_leave(s);
	return rs_return(err);
}

int rlisten(int socket, int backlog)
{
	struct rs *s = rs_enter(socket);
	int err;

	if (!s)
		return -1;
	err = s->type == SOCK_STREAM ? rs_stream_listen(s, backlog) : -EOPNOTSUPP;
	rs_leave(s);
	return rs_return(err);
}

int rconnect(int socket, const struct sockaddr *addr, socklen_t len)
{
	struct rs *s = rs_enter(socket);
	int err;

	if (!s)
		return -1;
	err = s->ops->connect(s, addr, len);
	while (err == -EINPROGRESS && !s->nonblock) {
		if (s->ops->ready(s, POLLOUT)) {
			err = -s->err;
			s->err = 0;
		} else {
			int why = rs_wait(s, -EAGAIN, 0);

			err = why ? why : err;
		}
	}
	rs_leave(s);
	return rs_return(err);
}

static void give_name(const struct sockaddr_storage *a, struct sockaddr *addr, socklen_t *len)
{
	socklen_t n = a->ss_family == AF_INET6 ? sizeof(struct sockaddr_in6)
					       : sizeof(struct sockaddr_in);

	if (!addr || !len)
		return;
	memcpy(addr, a, *len < n ? *len : n);
	*len = n;
}

static int get_name(int socket, bool peer, struct sockaddr *addr, socklen_t *len)
{
	struct rs *s = rs_enter(socket);
	struct sockaddr_storage a;
	int err;

	if (!s)
		return -1;
	memset(&a, 0, sizeof(a));
	err = s->ops->name(s, peer, &a);
	rs_leave(s);
	if (!err)
		give_name(&a, addr, len);
	return rs_return(err);
}

int rgetpeername(int socket, struct sockaddr *addr, socklen_t *len)
{
	return get_name(socket, true, addr, len);
}

int rgetsockname(int socket, struct sockaddr *addr, socklen_t *len)
{
	return get_name(socket, false, addr, len);
}

/*
 * A new socket for a request, with a number. The connection is answered, and whole when the peer
 * has heard so: calls of the new socket wait for that. -ECONNABORTED: the next one may be better.
 */
static int answer(struct rs *s, struct sockaddr_storage *peer)
{
	struct rdma_cm_event *ev;
	struct rs *child;
	int err = rs_stream_request(s, &ev);

	if (err)
		return err;
	child = rs_new_stream(0);
	if (!child) {
		err = -errno;
		rs_stream_refuse(ev);
		return err;
	}
	err = rs_stream_answer(to_stream(child), s, ev);
	if (!err) {
		*peer = to_stream(child)->id->route.addr.dst_storage;
		err = rs_add(child);
	}
	if (err >= 0)
		return err;
	rs_put(child);
	return err == -EPROTO || err == -EINVAL ? -ECONNABORTED : err;
}

int raccept(int socket, struct sockaddr *addr, socklen_t *len)
{
	struct rs *s = rs_enter(socket);
	struct sockaddr_storage peer;
	int fd;

	if (!s)
		return -1;
	if (s->type != SOCK_STREAM) {
		rs_leave(s);
		return rs_return(-EOPNOTSUPP);
	}
	for (;;) {
		fd = answer(s, &peer);
		if (fd == -ECONNABORTED)
			continue;
		if (fd != -EAGAIN || (fd = rs_wait(s, fd, 0)))
			break;
	}
	rs_leave(s);
	if (fd >= 0)
		give_name(&peer, addr, len);
	return rs_return(fd);
}

int rshutdown(int socket, int how)
{
	struct rs *s = rs_enter(socket);
	int err;

	if (!s)
		return -1;
	if (how != SHUT_RD && how != SHUT_WR && how != SHUT_RDWR)
		err = -EINVAL;
	else
		err = s->ops->shutdown(s, how);
	rs_leave(s);
	return rs_return(err);
}

int rclose(int socket)
{
	struct rs *s = rs_enter(socket);

	if (!s)
		return -1;
	rs_remove(s);
	s->ops->close(s);
	rs_leave(s);
	return 0;
}

/*
 * What a call returns, with the lock held: an error is told once, and not by one that has done
 * something before it came.
 */
static ssize_t outcome(struct rs *s, ssize_t done, ssize_t r)
{
	if (done)
		return done;
	if (s->err == -r)
		s->err = 0;
	return r;
}

/* All of it, unless the socket does not wait, or an error comes. */
static ssize_t send_all(int socket, const struct iovec *iov, size_t n, int flags,
			const struct sockaddr *to, socklen_t len)
{
	struct rs *s = rs_enter(socket);
	struct rs_cursor c;
	ssize_t r, sent = 0;

	if (!s)
		return -1;
	if (!rs_cursor_init(&c, iov, n)) {
		rs_leave(s);
		return rs_return(-EINVAL);
	}
	do {
		r = s->ops->send(s, &c, to, len);
		if (r > 0)
			sent += r;
		/* what could not be sent says itself whether there is anything to wait for */
	} while (c.left && (r > 0 || (r == -EAGAIN && !(r = rs_wait(s, r, flags)))));
	r = outcome(s, sent, r);
	rs_leave(s);
	return rs_return(r);
}

static ssize_t receive(int socket, const struct iovec *iov, size_t n, int flags,
		       struct sockaddr_storage *from)
{
	struct rs *s = rs_enter(socket);
	struct rs_cursor c;
	ssize_t r, got = 0;
	bool all;

	if (!s)
		return -1;
	if (!rs_cursor_init(&c, iov, n)) {
		rs_leave(s);
		return rs_return(-EINVAL);
	}
	all = flags & MSG_WAITALL && !(flags & MSG_PEEK) && s->type == SOCK_STREAM;
	do {
		r = s->ops->recv(s, &c, flags, from);
		if (r > 0)
			got += r;
	} while ((r > 0 && all && c.left) || (r == -EAGAIN && !(r = rs_wait(s, r, flags))));
	r = outcome(s, got, r);
	rs_leave(s);
	return rs_return(r);
}

ssize_t rsendto(int socket, const void *buf, size_t len, int flags, const struct sockaddr *addr,
		socklen_t addrlen)
{
	struct iovec v = { (void *)buf, len };

	return send_all(socket, &v, 1, flags, addr, addrlen);
}

ssize_t rsend(int socket, const void *buf, size_t len, int flags)
{
	return rsendto(socket, buf, len, flags, NULL, 0);
}

ssize_t rwrite(int socket, const void *buf, size_t count)
{
	return rsendto(socket, buf, count, 0, NULL, 0);
}

ssize_t rwritev(int socket, const struct iovec *iov, int n)
{
	return n < 0 ? rs_return(-EINVAL) : send_all(socket, iov, n, 0, NULL, 0);
}

ssize_t rsendmsg(int socket, const struct msghdr *msg, int flags)
{
	if (msg->msg_controllen)
		return rs_return(-EOPNOTSUPP);
	return send_all(socket, msg->msg_iov, msg->msg_iovlen, flags, msg->msg_name,
			msg->msg_name ? msg->msg_namelen : 0);
}

ssize_t rrecvfrom(int socket, void *buf, size_t len, int flags, struct sockaddr *addr,
		  socklen_t *addrlen)
{
	struct sockaddr_storage from = { 0 };
	struct iovec v = { buf, len };
	ssize_t r = receive(socket, &v, 1, flags, &from);

	if (r < 0 || !addr || !addrlen)
		return r;
	if (from.ss_family)
		give_name(&from, addr, addrlen);
	else
		*addrlen = 0;
	return r;
}

ssize_t rrecv(int socket, void *buf, size_t len, int flags)
{
	return rrecvfrom(socket, buf, len, flags, NULL, NULL);
}

ssize_t rread(int socket, void *buf, size_t count)
{
	return rrecvfrom(socket, buf, count, 0, NULL, NULL);
}

ssize_t rreadv(int socket, const struct iovec *iov, int n)
{
	struct sockaddr_storage from;

	return n < 0 ? rs_return(-EINVAL) : receive(socket, iov, n, 0, &from);
}

ssize_t rrecvmsg(int socket, struct msghdr *msg, int flags)
{
	struct sockaddr_storage from = { 0 };
	ssize_t r = receive(socket, msg->msg_iov, msg->msg_iovlen, flags, &from);

	if (r < 0)
		return r;
	msg->msg_controllen = 0;
	msg->msg_flags = 0;
	if (from.ss_family)
		give_name(&from, msg->msg_name, &msg->msg_namelen);
	else
		msg->msg_namelen = 0;
	return r;
}

int rfcntl(int socket, int cmd, ...)
{
	struct rs *s = rs_enter(socket);
	va_list ap;
	int arg, r;

	if (!s)
		return -1;
	va_start(ap, cmd);
	arg = va_arg(ap, int);
	va_end(ap);
	switch (cmd) {
	case F_GETFL:
		r = O_RDWR | (s->nonblock ? O_NONBLOCK : 0);
		break;
	case F_SETFL: /* the descriptor never waits itself */
		s->nonblock = arg & O_NONBLOCK;
		rs_wake(s);
		r = 0;
		break;
	case F_GETFD:
	case F_SETFD:
		r = fcntl(s->fd, cmd, arg);
		if (r < 0)
			r = -errno;
		break;
	default:
		r = -EOPNOTSUPP;
	}
	rs_leave(s);
	return rs_return(r);
}
