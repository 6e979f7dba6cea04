/* The sockets that there are, and what they have of the program. */
#include <errno.h>
#include <stdlib.h>
#include <sys/random.h>
#include <unistd.h>

#include "rsocketd.h"

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct socket *sockets;
static int leaving; /* lock */
static uint64_t last_id; /* lock */

void sockets_lock(void) { pthread_mutex_lock(&lock); }
void sockets_unlock(void) { pthread_mutex_unlock(&lock); }

struct socket *socket_find(uint64_t id)
{
	struct socket *s = sockets;

	while (s && s->id != id)
		s = s->next;
	return s;
}

void socket_add(struct socket *s)
{
	s->next = sockets;
	sockets = s;
}

void socket_remove(struct socket *s)
{
	struct socket **p;

	sockets_lock();
	for (p = &sockets; *p && *p != s;)
		p = &(*p)->next;
	if (*p)
		*p = s->next;
	leaving += !s->leaving;
	s->leaving = true;
	sockets_unlock();
}

int sockets_bound(struct socket **list, int most)
{
	struct socket *s;
	int n = 0;

	for (s = sockets; s && n < most; s = s->next)
		if (s->bound)
			list[n++] = s;
	return n;
}

bool sockets_any(void)
{
	bool any;

	sockets_lock();
	any = sockets || leaving;
	sockets_unlock();
	return any;
}

bool sockets_leaving(uint16_t port)
{
	struct socket *s;

	for (s = sockets; s; s = s->next) {
		struct pollfd p = { .fd = s->end };

		if (!s->remote.family && s->local.port == port && poll(&p, 1, 0) > 0)
			return true;
	}
	return false;
}

static bool set_name(int fd, const struct rs_name *n)
{
	struct sockaddr_un a;
	socklen_t len = rs_name_pack(n, &a);

	return !bind(fd, (struct sockaddr *)&a, len);
}

int socket_pair(struct socket *s, enum rs_kind kind, int type)
{
	struct rs_name n = { .kind = kind, .family = s->family, .local = s->local,
			     .remote = s->remote };
	int end[2], err;

	if (socketpair(AF_UNIX, type | SOCK_CLOEXEC, 0, end))
		return -errno;
	/* a name that nobody has taken, or can guess */
	if (!last_id && getrandom(&last_id, sizeof(last_id), 0) != sizeof(last_id))
		last_id = (uint64_t)getpid() << 32;
	n.id = ++last_id;
	if (!set_name(end[0], &n)) {
		err = -errno;
		close(end[0]);
		close(end[1]);
		return err;
	}
	if (s->end >= 0)
		close(s->end);
	s->id = n.id;
	s->end = end[1];
	return end[0];
}

void socket_verdict(const struct socket *s, int err)
{
	struct rs_name n = { .kind = RS_KIND_VERDICT, .id = s->id, .err = err };

	(void)set_name(s->end, &n); /* the first one stays */
}

void socket_cut(const struct socket *s)
{
	struct linger now = { .l_onoff = 1 };

	(void)rsetsockopt(s->rs, SOL_SOCKET, SO_LINGER, &now, sizeof(now)); /* it is over anyway */
}

int pass_fd(int to, const void *data, size_t len, int fd)
{
	union {
		struct cmsghdr h;
		char room[CMSG_SPACE(sizeof(int))];
	} c = { .h = { .cmsg_level = SOL_SOCKET, .cmsg_type = SCM_RIGHTS,
		       .cmsg_len = CMSG_LEN(sizeof(int)) } };
	struct iovec v = { (void *)data, len };
	struct msghdr m = { .msg_iov = &v, .msg_iovlen = 1 };

	if (fd >= 0) {
		memcpy(CMSG_DATA(&c.h), &fd, sizeof(fd));
		m.msg_control = &c;
		m.msg_controllen = sizeof(c);
	}
	return sendmsg(to, &m, MSG_DONTWAIT | MSG_NOSIGNAL) < 0 ? -errno : 0;
}

int thread_start(void *(*run)(void *), void *arg)
{
	enum { STACK = 128 << 10 };
	pthread_attr_t attr;
	pthread_t t;
	int err;

	pthread_attr_init(&attr);
	pthread_attr_setstacksize(&attr, STACK);
	pthread_attr_setdetachstate(&attr, PTHREAD_CREATE_DETACHED);
	err = pthread_create(&t, &attr, run, arg);
	pthread_attr_destroy(&attr);
	return -err;
}

void socket_free(struct socket *s)
{
	if (s->rs >= 0)
		rclose(s->rs);
	if (s->end >= 0)
		close(s->end);
	if (s->kernel >= 0)
		close(s->kernel);
	if (s->leaving) { /* else it never was there, and the lock may be held */
		sockets_lock();
		leaving--;
		sockets_unlock();
	}
	free(s);
}
