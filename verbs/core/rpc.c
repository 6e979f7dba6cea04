/* Requests to the daemon over the control socket, and the session's death. */
#include <errno.h>
#include <poll.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "core.h"

static bool debugging(void)
{
	const char *v = secure_getenv("VRNIC_DEBUG");

	return v && strstr(v, "shm");
}

static void vsay(const char *what, va_list ap)
{
	char line[1024];
	int old, err = errno;

	vsnprintf(line, sizeof(line), what, ap);
	pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &old);
	fprintf(stderr, "vrnic: %s\n", line);
	pthread_setcancelstate(old, NULL);
	errno = err;
}

void vrnic_debug(const char *what, ...)
{
	va_list ap;

	if (!debugging())
		return;
	va_start(ap, what);
	vsay(what, ap);
	va_end(ap);
}

static void say(const char *what, ...) __attribute__((format(printf, 1, 2)));

static void say(const char *what, ...)
{
	va_list ap;

	va_start(ap, what);
	vsay(what, ap);
	va_end(ap);
}

void vrnic_close(int fd)
{
	int err = errno;

/* it follows descriptors, and must see that the number is free for another */
#ifdef __SANITIZE_THREAD__
	int old;

	pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &old);
	if (fd >= 0)
		close(fd);
	pthread_setcancelstate(old, NULL);
#else
	if (fd >= 0)
		syscall(SYS_close, fd);
#endif
	errno = err;
}

/*
 * Death.
 */

void vrnic_die(struct vrnic_session *s, const char *why, ...)
{
	va_list ap;
	int err = errno;

	if (atomic_exchange(&s->dead, true))
		return;
	if (debugging()) {
		va_start(ap, why);
		vsay(why, ap);
		va_end(ap);
	}
	/*
	 * It ends an rpc that waits, and shows the daemon the end of the session also where it was this
	 * side that gave up: it closes the event pipes then, which wakes those who wait for events. The
	 * descriptor stays open, since other threads may be about to use it.
	 */
	if (vrnic_sock_there(s))
		shutdown(s->sock, SHUT_RDWR);
	errno = err;
}

bool vrnic_sock_there(struct vrnic_session *s)
{
	struct stat st;

	return !fstat(s->sock, &st) && st.st_dev == s->sock_dev && st.st_ino == s->sock_ino;
}

/*
 * True if the other end of the socket has been closed, whatever is unread. Not a cancellation
 * point.
 */
static bool hung_up(int sock)
{
	struct pollfd p = { .fd = sock, .events = POLLRDHUP };
	struct timespec now = { 0 };
	long n;

	do {
		n = syscall(SYS_ppoll, &p, 1, &now, NULL, 0);
	} while (n < 0 && errno == EINTR);
	return n != 0;
}

bool vrnic_peer_gone(struct vrnic_session *s)
{
	int err = errno;

	if (!vrnic_dead(s) && (!vrnic_sock_there(s) || hung_up(s->sock)))
		vrnic_die(s, "the daemon has gone");
	errno = err;
	return vrnic_dead(s);
}

void vrnic_corrupt(struct vrnic_session *s, const char *what)
{
	if (!vrnic_peer_gone(s))
		vrnic_die(s, "the daemon wrote nonsense: %s", what);
}

/*
 * Requests.
 */

#define MAX_FDS 2 /* of a reply */

/* Room for more than any reply may bring, so that what is too much is seen and closed. */
union control {
	struct cmsghdr align;
	char buf[CMSG_SPACE(2 * MAX_FDS * sizeof(int))];
};

struct reply {
	struct vrnic_header h;
	unsigned char body[VRNIC_MAX_MESSAGE - VRNIC_HEADER_LEN];
};

static int send_request(struct vrnic_session *s, uint16_t op, const void *req, size_t len, int fd)
{
	struct vrnic_header h = { .op = op, .seq = ++s->seq, .len = len };
	struct iovec iov[2] = { { &h, sizeof(h) }, { (void *)req, len } };
	union control c = { 0 };
	struct msghdr m = { .msg_iov = iov, .msg_iovlen = len ? 2 : 1 };
	ssize_t n;

	if (!vrnic_sock_there(s)) {
		vrnic_die(s, "the program has closed the daemon's socket");
		return EIO;
	}
	if (fd >= 0) {
		struct cmsghdr *cm = &c.align;

		m.msg_control = &c;
		m.msg_controllen = CMSG_LEN(sizeof(int));
		cm->cmsg_level = SOL_SOCKET;
		cm->cmsg_type = SCM_RIGHTS;
		cm->cmsg_len = CMSG_LEN(sizeof(int));
		memcpy(CMSG_DATA(cm), &fd, sizeof(fd));
	}
	do {
		n = sendmsg(s->sock, &m, MSG_NOSIGNAL);
	} while (n < 0 && errno == EINTR);
	if (n == (ssize_t)(sizeof(h) + len))
		return 0;
	if (n < 0 && (errno == ENOMEM || errno == ENOBUFS || errno == ETOOMANYREFS))
		return errno; /* nothing was sent: the session goes on */
	vrnic_die(s, "the daemon has gone (send: %s)", n < 0 ? strerror(errno) : "short");
	return EIO;
}

/*
 * Takes the descriptors out of a message into fds, of 2 * MAX_FDS; what is not a descriptor counts
 * as too many.
 */
static int take_fds(struct msghdr *m, int *fds)
{
	struct cmsghdr *cm;
	int n = 0, odd = 0;

	for (cm = CMSG_FIRSTHDR(m); cm; cm = CMSG_NXTHDR(m, cm)) {
		size_t len = cm->cmsg_len - CMSG_LEN(0);

		if (cm->cmsg_level != SOL_SOCKET || cm->cmsg_type != SCM_RIGHTS) {
			odd = 2 * MAX_FDS;
			continue;
		}
		memcpy(fds + n, CMSG_DATA(cm), len);
		n += len / sizeof(int);
	}
	return n + odd;
}

static void close_fds(int *fds, int n)
{
	while (n-- > 0)
		vrnic_close(fds[n]);
}

/*
 * Receives a message into r: its length, or -1 and then the session is dead. *nfds descriptors are
 * the caller's. *cut: there were more of them than the kernel could give.
 */
static ssize_t receive(struct vrnic_session *s, struct reply *r, int *fds, int *nfds, bool *cut)
{
	union control c;
	struct iovec iov = { r, sizeof(*r) };
	struct msghdr m = { .msg_iov = &iov, .msg_iovlen = 1, .msg_control = &c,
			   .msg_controllen = sizeof(c) };
	ssize_t n;

	do {
		n = recvmsg(s->sock, &m, MSG_CMSG_CLOEXEC);
	} while (n < 0 && errno == EINTR);
	*nfds = n < 0 ? 0 : take_fds(&m, fds);
	*cut = m.msg_flags & MSG_CTRUNC;
	if (n <= 0) {
		vrnic_die(s, "the daemon has gone (receive: %s)", n < 0 ? strerror(errno) : "end");
		n = -1;
	} else if (m.msg_flags & MSG_TRUNC) {
		vrnic_die(s, "a message too long");
		n = -1;
	}
	return n;
}

/* Whether a reply has a vrnic_refusal behind it, or room for one, in place of its own body. */
static bool refuses(const struct vrnic_header *h)
{
	return h->status && !(h->op == VRNIC_OP_HELLO && h->status == -EPROTONOSUPPORT);
}

/*
 * Takes why a request was refused out of r, to be said when the lock is free: an errno does not
 * name the limit that was in the way. Once; a program may try until it is refused.
 */
static void take_reason(struct vrnic_session *s, const struct reply *r, struct vrnic_refusal *why)
{
	char *c;

	if (s->told)
		return;
	memcpy(why, r->body, r->h.len < sizeof(*why) ? r->h.len : sizeof(*why));
	why->why[sizeof(why->why) - 1] = 0;
	s->told = why->why[0];
	for (c = why->why; *c; c++) /* nothing that a terminal would obey */
		if (*c < ' ' || *c > '~')
			*c = '?';
}

/*
 * Whether r, of n octets with nfds descriptors, is a reply to the last request, with a body of at
 * most len octets that are not zero.
 */
static bool valid(struct vrnic_session *s, const struct reply *r, size_t n, uint16_t op,
		  size_t len, int nfds, int want)
{
	const struct vrnic_header *h = &r->h;
	size_t i;

	if (n < sizeof(*h) || h->len != n - sizeof(*h)) {
		vrnic_die(s, "a reply of %zu octets", n);
		return false;
	}
	if (h->op != op || h->seq != s->seq || h->flags || h->status > 0 || h->status < -4095) {
		vrnic_die(s, "a reply to %u (seq %u, status %d) where that to %u (seq %u) was due", h->op,
			  h->seq, h->status,
			  op, s->seq);
		return false;
	}
	if (refuses(h))
		len = sizeof(struct vrnic_refusal);
	for (i = len; i < h->len; i++) {
		if (r->body[i]) {
			vrnic_die(s, "a reply to %u with %u octets where %zu are known", op, h->len, len);
			return false;
		}
	}
	if (nfds != (h->status ? 0 : want)) {
		vrnic_die(s, "a reply to %u with %d descriptors", op, nfds);
		return false;
	}
	return true;
}

/* What takes back an op whose reply brings descriptors; 0: the end of the session does it. */
static uint16_t undo_of(uint16_t op)
{
	switch (op) {
	case VRNIC_OP_CTX_OPEN:
		return VRNIC_OP_CTX_CLOSE;
	case VRNIC_OP_CREATE_CHAN:
		return VRNIC_OP_DESTROY_CHAN;
	case VRNIC_OP_CREATE_CQ:
		return VRNIC_OP_DESTROY_CQ;
	case VRNIC_OP_CREATE_QP:
		return VRNIC_OP_DESTROY_QP;
	case VRNIC_OP_CREATE_SRQ:
		return VRNIC_OP_DESTROY_SRQ;
	case VRNIC_OP_CM_CREATE_CHAN:
		return VRNIC_OP_CM_DESTROY_CHAN;
	default:
		return 0;
	}
}

/*
 * vrnic_rpc with rpc_lock held. rep is filled also where the daemon has another version. why is
 * empty, and stays so unless there is a refusal to be said.
 */
static int rpc_locked(struct vrnic_session *s, uint16_t op, const void *req, size_t req_len,
		      void *rep, size_t rep_len,
		      int send_fd, int *fds, int nfds, struct vrnic_refusal *why)
{
	int got[4 * MAX_FDS], ngot, err;
	struct reply r;
	bool cut;
	ssize_t n;

	if (vrnic_dead(s))
		return EIO;
	err = send_request(s, op, req, req_len, send_fd);
	if (err)
		return err;
	n = receive(s, &r, got, &ngot, &cut);
	if (n > 0 && cut && ngot >= nfds) {
		vrnic_die(s, "a message with descriptors too many");
		n = -1;
	}
	/* Fewer than there should be, this process had room for. */
	if (n < 0 || !valid(s, &r, n, op, rep_len, cut ? nfds : ngot, nfds)) {
		close_fds(got, ngot > 2 * MAX_FDS ? ngot - 2 * MAX_FDS : ngot);
		return EIO;
	}
	if (cut) {
		struct vrnic_handle_request undo = { 0 };

		close_fds(got, ngot);
		if (r.h.len >= sizeof(undo.handle)) /* such replies begin with it */
			memcpy(&undo.handle, r.body, sizeof(undo.handle));
		if (undo.handle && undo_of(op))
			rpc_locked(s, undo_of(op), &undo, sizeof(undo), NULL, 0, -1, NULL, 0,
				   why);
		return EMFILE;
	}
	if (refuses(&r.h)) {
		take_reason(s, &r, why);
		return -r.h.status;
	}
	if (rep) {
		size_t len = r.h.len < rep_len ? r.h.len : rep_len;

		memcpy(rep, r.body, len);
		memset((char *)rep + len, 0, rep_len - len);
	}
	if (!r.h.status && nfds)
		memcpy(fds, got, nfds * sizeof(int));
	return -r.h.status;
}

/*
 * How long the daemon is asked again that looks for something on the network: it looks for a peer
 * for 10 s at most, but many that are looked for have to wait for their turn.
 */
#define ASK_FOR_MS 30000

static int64_t now_ms(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (int64_t)t.tv_sec * 1000 + t.tv_nsec / 1000000;
}

/* Others have their turn, unless it is end; false then. *end is 0 at first. */
static bool give_way(int64_t *end)
{
	struct timespec t = { .tv_nsec = 2000000 };
	int64_t now = now_ms();

	if (!*end)
		*end = now + ASK_FOR_MS;
	if (now >= *end)
		return false;
	syscall(SYS_clock_nanosleep, CLOCK_MONOTONIC, 0, &t, NULL); /* no cancellation point */
	return true;
}

int vrnic_rpc(struct vrnic_session *s, uint16_t op, const void *req, size_t req_len, void *rep,
	      size_t rep_len,
	      int send_fd, int *fds, int nfds)
{
	struct vrnic_refusal why;
	int64_t end = 0;
	int old, err;

	if (vrnic_dead(s))
		return EIO;
	why.why[0] = 0;
	/* A thread that is cancelled between request and reply would leave the reply to the next. */
	pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &old);
	for (;;) {
		pthread_mutex_lock(&s->rpc_lock);
		err = rpc_locked(s, op, req, req_len, rep, rep_len, send_fd, fds, nfds, &why);
		pthread_mutex_unlock(&s->rpc_lock);
		if (err != EINPROGRESS)
			break;
		if (!give_way(&end)) {
			err = ETIMEDOUT;
			break;
		}
	}
	if (why.why[0]) /* whoever reads that may take his time */
		say("the daemon refused a request: %s", why.why);
	pthread_setcancelstate(old, NULL);
	return err;
}

int vrnic_rpc_handle(struct vrnic_session *s, uint16_t op, uint32_t handle, void *rep,
		     size_t rep_len)
{
	struct vrnic_handle_request req = { .handle = handle };

	return vrnic_rpc(s, op, &req, sizeof(req), rep, rep_len, -1, NULL, 0);
}
