/* Sockets by their numbers, which are descriptors of theirs. */
#include <stdlib.h>
#include <string.h>

#include "socket.h"

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct rs **sockets;
static int size;

/* A fork finds the table whole. */
static void before_fork(void) { pthread_mutex_lock(&lock); }
static void after_fork(void) { pthread_mutex_unlock(&lock); }

__attribute__((constructor)) static void watch_forks(void)
{
	pthread_atfork(before_fork, after_fork, after_fork);
}

void rs_init(struct rs *s, const struct rs_ops *ops, int domain, int type)
{
	s->ops = ops;
	s->domain = domain;
	s->type = type;
	s->fd = -1;
	s->refs = 1;
	pthread_mutex_init(&s->lock, NULL);
	s->opt = (struct rs_options){ .sndbuf = 1 << 17, .rcvbuf = 1 << 17, .sq_size = 384,
				      .rq_size = 384, .inline_size = 64, .keepidle = 7200 };
}

int rs_add(struct rs *s)
{
	int want, err = 0, fd = s->fd;
	struct rs **more;

	pthread_mutex_lock(&lock);
	if (fd >= size) {
		for (want = size ? size : 64; want <= fd;)
			want *= 2;
		more = realloc(sockets, want * sizeof(*more));
		if (more) {
			memset(more + size, 0, (want - size) * sizeof(*more));
			sockets = more;
			size = want;
		} else {
			err = -ENOMEM;
		}
	}
	if (!err)
		sockets[fd] = s;
	pthread_mutex_unlock(&lock);
	return err ? err : fd;
}

struct rs *rs_get(int fd)
{
	struct rs *s = NULL;

	pthread_mutex_lock(&lock);
	if (fd >= 0 && fd < size && sockets[fd]) {
		s = sockets[fd];
		s->refs++;
	}
	pthread_mutex_unlock(&lock);
	return s;
}

void rs_put(struct rs *s)
{
	unsigned int refs;

	pthread_mutex_lock(&lock);
	refs = --s->refs;
	pthread_mutex_unlock(&lock);
	if (refs)
		return;
	s->ops->free(s);
	pthread_mutex_destroy(&s->lock);
	free(s);
}

struct rs *rs_enter(int fd)
{
	struct rs *s = rs_get(fd);

	if (!s) {
		errno = EBADF;
		return NULL;
	}
	pthread_mutex_lock(&s->lock);
	if (!s->closed)
		return s;
	rs_leave(s); /* it was closed meanwhile */
	errno = EBADF;
	return NULL;
}

void rs_leave(struct rs *s)
{
	pthread_mutex_unlock(&s->lock);
	rs_put(s);
}

void rs_remove(struct rs *s)
{
	bool there = false;

	pthread_mutex_lock(&lock);
	if (s->fd >= 0 && s->fd < size && sockets[s->fd] == s) {
		sockets[s->fd] = NULL;
		there = true;
	}
	pthread_mutex_unlock(&lock);
	s->closed = true;
	rs_wake(s);
	if (there)
		rs_put(s); /* the table's; the caller has one of its own */
}
