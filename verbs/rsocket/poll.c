/* poll(2) and select(2) of sockets over RDMA and other descriptors. */
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "socket.h"

/* What rpoll sleeps on. */
struct sleep {
	struct pollfd *fds;
	nfds_t n;
	struct rs **sockets; /* of the program's descriptors, NULL for others */
};

static int64_t now_ms(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * INT64_C(1000) + t.tv_nsec / 1000000;
}

/* The sockets among fds; false: no memory. */
static bool find(struct sleep *sl, const struct pollfd *fds, nfds_t n)
{
	nfds_t i;

	sl->sockets = calloc(n + 1, sizeof(*sl->sockets));
	sl->fds = calloc(n * RS_WAIT_FDS + 1, sizeof(*sl->fds));
	if (!sl->sockets || !sl->fds)
		return false;
	for (i = 0; i < n; i++)
		sl->sockets[i] = rs_get(fds[i].fd);
	return true;
}

static void forget(struct sleep *sl, nfds_t n)
{
	nfds_t i;

	for (i = 0; sl->sockets && i < n; i++)
		if (sl->sockets[i])
			rs_put(sl->sockets[i]);
	free(sl->sockets);
	free(sl->fds);
}

/* What there is now: how many descriptors, or -errno. */
static int look(struct sleep *sl, struct pollfd *fds, nfds_t n)
{
	struct pollfd *others = sl->fds;
	nfds_t i, k = 0;
	int found = 0;

	for (i = 0; i < n; i++) {
		struct rs *s = sl->sockets[i];

		if (!s) {
			others[k++] = fds[i];
			continue;
		}
		pthread_mutex_lock(&s->lock);
		fds[i].revents = s->closed ? POLLNVAL : s->ops->ready(s, fds[i].events);
		pthread_mutex_unlock(&s->lock);
		found += fds[i].revents != 0;
	}
	if (k) {
		int r = poll(others, k, 0);

		if (r < 0)
			return -errno;
		found += r;
	}
	for (i = k = 0; i < n; i++)
		if (!sl->sockets[i])
			fds[i].revents = others[k++].revents;
	return found;
}

/* Has all sockets tell of what comes next; true: something has come. */
static bool arm(struct sleep *sl, const struct pollfd *fds, nfds_t n)
{
	bool any = false;
	nfds_t i;

	sl->n = 0;
	for (i = 0; i < n; i++) {
		struct rs *s = sl->sockets[i];

		if (!s) {
			sl->fds[sl->n++] = fds[i];
			continue;
		}
		pthread_mutex_lock(&s->lock);
		s->sleepers++;
		if (s->closed || s->ops->arm(s))
			any = true;
		else
			sl->n += s->ops->fds(s, sl->fds + sl->n);
		pthread_mutex_unlock(&s->lock);
	}
	return any;
}

static void disarm(struct sleep *sl, nfds_t n)
{
	nfds_t i;

	for (i = 0; i < n; i++) {
		struct rs *s = sl->sockets[i];

		if (!s)
			continue;
		pthread_mutex_lock(&s->lock);
		s->sleepers--;
		pthread_mutex_unlock(&s->lock);
	}
}

static int nap(struct sleep *sl, const struct pollfd *fds, nfds_t n, int ms)
{
	struct rs_sleeper *w = rs_sleeper_get();
	int r = 0;

	if (!w)
		return -errno;
	if (!arm(sl, fds, n)) {
		sl->fds[sl->n++] = (struct pollfd){ .fd = rs_sleeper_fd(w), .events = POLLIN };
		r = poll(sl->fds, sl->n, ms) < 0 ? -errno : 0;
	}
	disarm(sl, n);
	rs_sleeper_put(w);
	return r;
}

int rpoll(struct pollfd *fds, nfds_t nfds, int timeout)
{
	int64_t end = timeout > 0 ? now_ms() + timeout : 0, left = timeout;
	struct sleep sl = { 0 };
	int r;

	if (!find(&sl, fds, nfds)) {
		forget(&sl, 0);
		return rs_return(-ENOMEM);
	}
	for (;;) {
		r = look(&sl, fds, nfds);
		if (r || !left)
			break;
		r = nap(&sl, fds, nfds, left < 0 ? -1 : (int)left);
		if (r < 0)
			break;
		if (timeout > 0) {
			left = end - now_ms();
			if (left < 0)
				left = 0;
		}
	}
	forget(&sl, nfds);
	return rs_return(r);
}

enum {
	READS = POLLIN | POLLHUP | POLLERR,
	WRITES = POLLOUT | POLLERR,
	EXCEPTS = POLLPRI,
};

static bool has(const fd_set *set, int fd) { return set && FD_ISSET(fd, set); }

static int keep(fd_set *set, int fd, bool ready)
{
	if (!has(set, fd))
		return 0;
	if (!ready)
		FD_CLR(fd, set);
	return ready;
}

int rselect(int nfds, fd_set *readfds, fd_set *writefds, fd_set *exceptfds,
	    struct timeval *timeout)
{
	struct pollfd *p;
	int fd, n = 0, i, r, found = 0, ms = -1;

	if (nfds < 0 || nfds > FD_SETSIZE)
		return rs_return(-EINVAL);
	if (timeout) {
		int64_t t = timeout->tv_sec * INT64_C(1000) + (timeout->tv_usec + 999) / 1000;

		ms = t > INT32_MAX ? INT32_MAX : (int)t;
	}
	p = calloc(nfds + 1, sizeof(*p));
	if (!p)
		return rs_return(-ENOMEM);
	for (fd = 0; fd < nfds; fd++) {
		short events = (has(readfds, fd) ? POLLIN : 0) | (has(writefds, fd) ? POLLOUT : 0) |
			       (has(exceptfds, fd) ? POLLPRI : 0);

		if (events)
			p[n++] = (struct pollfd){ .fd = fd, .events = events };
	}
	r = rpoll(p, n, ms);
	for (i = 0; r >= 0 && i < n; i++) {
		if (p[i].revents & POLLNVAL) {
			free(p);
			return rs_return(-EBADF);
		}
		found += keep(readfds, p[i].fd, p[i].revents & READS);
		found += keep(writefds, p[i].fd, p[i].revents & WRITES);
		found += keep(exceptfds, p[i].fd, p[i].revents & EXCEPTS);
	}
	free(p);
	return r < 0 ? r : found;
}
