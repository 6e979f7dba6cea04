/* How threads sleep, and are woken by those that have made progress on what they sleep on. */
#include <fcntl.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "socket.h"

/* A descriptor for each thread that sleeps, and for as many as have done so at the same time. */
struct rs_sleeper {
	struct rs_sleeper *next;
	int fd;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct rs_sleeper *asleep, *idle;

/*
 * A fork finds the lists whole. One in a handler of a signal must not come amid a call of rsockets,
 * but while that sleeps.
 */
static void before_fork(void) { pthread_mutex_lock(&lock); }
static void after_fork(void) { pthread_mutex_unlock(&lock); }

/*
 * Their descriptors are the parent's no less: a wake-up that is taken from one would be missed by
 * the other side. They stay open: the program may have closed all that it does not know, and have
 * its own under these numbers.
 */
static void in_child(void)
{
	struct rs_sleeper *w;

	while ((w = idle)) {
		idle = w->next;
		free(w);
	}
	asleep = NULL;
	after_fork();
}

__attribute__((constructor)) static void watch_forks(void)
{
	pthread_atfork(before_fork, after_fork, in_child);
}

struct rs_sleeper *rs_sleeper_get(void)
{
	struct rs_sleeper *w;

	pthread_mutex_lock(&lock);
	w = idle;
	if (w) {
		idle = w->next;
	} else if ((w = malloc(sizeof(*w)))) {
		w->fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
		if (w->fd < 0) {
			free(w);
			w = NULL;
		}
	}
	if (w) {
		w->next = asleep;
		asleep = w;
	}
	pthread_mutex_unlock(&lock);
	return w;
}

int rs_sleeper_fd(const struct rs_sleeper *w) { return w->fd; }

void rs_sleeper_put(struct rs_sleeper *w)
{
	struct rs_sleeper **p;
	eventfd_t n;

	pthread_mutex_lock(&lock);
	for (p = &asleep; *p && *p != w;)
		p = &(*p)->next;
	if (*p) { /* or a handler of a signal has forked, and this is the child */
		*p = w->next;
		(void)eventfd_read(w->fd, &n); /* it need not have been woken */
		w->next = idle;
		idle = w;
	}
	pthread_mutex_unlock(&lock);
}

/* Who sleeps on another socket wakes for nothing: a list for each would cost all others more. */
void rs_wake(struct rs *s)
{
	struct rs_sleeper *w;

	if (!s->sleepers)
		return;
	pthread_mutex_lock(&lock);
	for (w = asleep; w; w = w->next)
		(void)eventfd_write(w->fd, 1); /* EAGAIN: it has been woken very often */
	pthread_mutex_unlock(&lock);
}

int rs_sleep(struct rs *s, int ms)
{
	struct pollfd p[RS_WAIT_FDS + 1];
	struct rs_sleeper *w;
	int n, r, err;

	if (s->ops->arm(s))
		return 0;
	w = rs_sleeper_get();
	if (!w)
		return -errno;
	n = s->ops->fds(s, p);
	p[n] = (struct pollfd){ .fd = rs_sleeper_fd(w), .events = POLLIN };
	s->sleepers++;
	pthread_mutex_unlock(&s->lock);
	r = poll(p, n + 1, ms);
	err = errno;
	rs_sleeper_put(w);
	pthread_mutex_lock(&s->lock);
	s->sleepers--;
	if (r < 0)
		return -err;
	return r ? 0 : -ETIMEDOUT;
}

int rs_wait(struct rs *s, int err, int flags)
{
	if (err != -EAGAIN || s->nonblock || flags & MSG_DONTWAIT)
		return err;
	err = rs_sleep(s, -1);
	return s->closed ? -EBADF : err;
}
