/*
 * What all sockets share, streams (stream.h) and datagrams (datagram.h): a number, a lock, how a
 * thread waits for one, and how one is closed.
 *
 * A socket makes progress only when the program calls: events and completions are looked at then,
 * by whichever thread it is. One that is about to sleep asks for an event of the next completion,
 * and looks once more. If other threads sleep on the same socket, who has made progress wakes them.
 */
#ifndef VRNIC_RSOCKET_SOCKET_H
#define VRNIC_RSOCKET_SOCKET_H

#include <errno.h>
#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "rdmacm/rdmacm.h"
#include "rsocket.h"

/* Where a call is in the memory it was given. */
struct rs_cursor {
	const struct iovec *iov;
	size_t n;	/* entries from iov on */
	size_t skip;	/* octets of the first one that are done */
	size_t left;	/* octets in all */
};

/* The whole of iov; false: there is more than a call can return. */
bool rs_cursor_init(struct rs_cursor *c, const struct iovec *iov, size_t n);
/* Copies from or to where c is, which moves on: len is c->left at most. */
void rs_copy_out(struct rs_cursor *c, void *to, size_t len);
void rs_copy_in(struct rs_cursor *c, const void *from, size_t len);

/* How many descriptors tell that there may be something to do. */
#define RS_WAIT_FDS 3

/* What setsockopt sets before there is a connection. */
struct rs_options {
	uint32_t sndbuf, rcvbuf;
	uint16_t sq_size, rq_size;
	uint16_t inline_size;
	uint16_t iomap_size;
	int tos, keepalive, keepidle, reuseaddr, nodelay, v6only, oobinline;
	struct linger linger; /* not on: what was sent is delivered, but rclose need not wait */
};

struct rs;

/* All are called with the socket's lock held. Those that return int: 0, or -errno. */
struct rs_ops {
	int (*bind)(struct rs *s, const struct sockaddr *addr, socklen_t len);
	int (*connect)(struct rs *s, const struct sockaddr *addr, socklen_t len); /* -EINPROGRESS */
	/* octets, or -errno: -EAGAIN if none can be, with c where it was. err stays. */
	ssize_t (*send)(struct rs *s, struct rs_cursor *c, const struct sockaddr *to,
			socklen_t len);
	ssize_t (*recv)(struct rs *s, struct rs_cursor *c, int flags,
			struct sockaddr_storage *from);
	/* Makes progress, and says which of events, POLLERR and POLLHUP there are. */
	short (*ready)(struct rs *s, short events);
	/* Has the descriptors of fds tell of what comes next; true: it has come, look again */
	bool (*arm)(struct rs *s);
	int (*fds)(struct rs *s, struct pollfd *p); /* how many, RS_WAIT_FDS at most */
	int (*name)(struct rs *s, bool peer, struct sockaddr_storage *a);
	int (*shutdown)(struct rs *s, int how);
	/* Nobody finds the socket any more; others may still wait for the lock. */
	void (*close)(struct rs *s);
	void (*free)(struct rs *s);
};

struct rs {
	const struct rs_ops *ops;
	int domain, type;
	int fd;		  /* its number, a descriptor of its own */
	unsigned int refs; /* of the table and of calls under way; table.c's lock */
	pthread_mutex_t lock;
	/* lock */
	bool nonblock;
	bool closed;
	int err;	       /* SO_ERROR; who tells it takes it away */
	unsigned int sleepers; /* threads that sleep on it */
	struct rs_options opt;
};

/* The way out of a call: r is not negative, or -errno. */
static inline ssize_t rs_return(ssize_t r)
{
	if (r >= 0)
		return r;
	errno = -r;
	return -1;
}

/* table.c */
void rs_init(struct rs *s, const struct rs_ops *ops, int domain, int type);
int rs_add(struct rs *s);	   /* s->fd becomes its number, which is returned; or -errno */
struct rs *rs_enter(int fd);	   /* with its lock held; NULL: there is none, errno is EBADF */
void rs_leave(struct rs *s);
struct rs *rs_get(int fd); /* without its lock; NULL: an ordinary descriptor */
void rs_put(struct rs *s);
void rs_remove(struct rs *s); /* with its lock held: nobody finds it any more */

/* wait.c */
struct rs_sleeper;
struct rs_sleeper *rs_sleeper_get(void); /* NULL: no descriptors */
int rs_sleeper_fd(const struct rs_sleeper *w);
void rs_sleeper_put(struct rs_sleeper *w);
/* With the lock held: progress has been made that others may wait for. */
void rs_wake(struct rs *s);
/* Sleeps, without the lock, until there may be something to do, ms at most (-1: for ever). */
int rs_sleep(struct rs *s, int ms); /* 0, or -errno: -EINTR, -ETIMEDOUT */
/*
 * Waits, if the socket is one that waits, until there may be something to do: 0, or -errno. err is
 * what the call got.
 */
int rs_wait(struct rs *s, int err, int flags);

/* stream_ops.c, datagram_ops.c: sockets that have no number yet, or NULL with errno */
struct rs *rs_new_stream(int domain);
struct rs *rs_new_datagram(int domain);

#endif
