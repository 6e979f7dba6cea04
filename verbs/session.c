/*
 * The session with the daemon: finding and judging it, requests over the control socket, memory that it sends, the
 * session's death, and forks.
 */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/auxv.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#include "vrnic.h"

/* Far above the largest ring, and far below what would exhaust the address space. */
#define MAX_DAEMON_MEM (1 << 30)

#define MAX_DEVICES 1024 /* of a daemon that are looked at */

static pthread_mutex_t open_lock = PTHREAD_MUTEX_INITIALIZER;
static _Atomic(struct vrnic_session *) current;
static _Atomic(struct vrnic_session *) sessions; /* all, also one that is being opened; changed with open_lock held */
static atomic_uint forks;			 /* between the first process of this program and this one */

/* Causes of having no session: each is told once. */
enum cause {
	CAUSE_PRIVILEGE = 1,
	CAUSE_PATH = 2,
	CAUSE_SOCKET = 4,
	CAUSE_TRUST = 8,
	CAUSE_HELLO = 16,
	CAUSE_MEM = 32,
};

static void complain(enum cause cause, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

static void complain(enum cause cause, const char *fmt, ...)
{
	static atomic_uint told;
	char line[512];
	va_list ap;
	int old, err = errno;

	if (atomic_fetch_or(&told, cause) & cause)
		return;
	va_start(ap, fmt);
	vsnprintf(line, sizeof(line), fmt, ap);
	va_end(ap);
	pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &old);
	fprintf(stderr, "vrnic: %s\n", line);
	pthread_setcancelstate(old, NULL);
	errno = err;
}

static void vdebug(const char *what, va_list ap)
{
	const char *v = secure_getenv("VRNIC_DEBUG");
	char line[512];
	int old, err = errno;

	if (!v || !strstr(v, "shm"))
		return;
	vsnprintf(line, sizeof(line), what, ap);
	pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &old);
	fprintf(stderr, "vrnic: %s\n", line);
	pthread_setcancelstate(old, NULL);
	errno = err;
}

void vrnic_debug(const char *what, ...)
{
	va_list ap;

	va_start(ap, what);
	vdebug(what, ap);
	va_end(ap);
}

void vrnic_close(int fd)
{
	int err = errno;

	if (fd >= 0)
		syscall(SYS_close, fd);
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
	va_start(ap, why);
	vdebug(why, ap);
	va_end(ap);
	/*
	 * It ends an rpc that waits, and shows the daemon the end of the session also where it was this side that
	 * gave up: it closes the event pipes then, which wakes those who wait for events. The descriptor stays open,
	 * since other threads may be about to use it.
	 */
	shutdown(s->sock, SHUT_RDWR);
	errno = err;
}

/* True if the other end of the socket has been closed, whatever is unread. Not a cancellation point. */
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

	if (!vrnic_dead(s) && hung_up(s->sock))
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

/* Takes the descriptors out of a message into fds, of 2 * MAX_FDS; what is not a descriptor counts as too many. */
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

/* Receives a message into r: its length, or -1 and then the session is dead. *nfds descriptors are the caller's. */
static ssize_t receive(struct vrnic_session *s, struct reply *r, int *fds, int *nfds)
{
	union control c;
	struct iovec iov = { r, sizeof(*r) };
	struct msghdr m = { .msg_iov = &iov, .msg_iovlen = 1, .msg_control = &c, .msg_controllen = sizeof(c) };
	ssize_t n;

	do {
		n = recvmsg(s->sock, &m, MSG_CMSG_CLOEXEC);
	} while (n < 0 && errno == EINTR);
	*nfds = n < 0 ? 0 : take_fds(&m, fds);
	if (n <= 0) {
		vrnic_die(s, "the daemon has gone (receive: %s)", n < 0 ? strerror(errno) : "end");
		n = -1;
	} else if (m.msg_flags & (MSG_TRUNC | MSG_CTRUNC)) {
		vrnic_die(s, "a message too long, or with descriptors too many");
		n = -1;
	}
	return n;
}

/*
 * Whether r, of n octets with nfds descriptors, is a reply to the last request, with a body of at most len octets that are
 * not zero.
 */
static bool valid(struct vrnic_session *s, const struct reply *r, size_t n, uint16_t op, size_t len, int nfds, int want)
{
	const struct vrnic_header *h = &r->h;
	size_t i;

	if (n < sizeof(*h) || h->len != n - sizeof(*h)) {
		vrnic_die(s, "a reply of %zu octets", n);
		return false;
	}
	if (h->op != op || h->seq != s->seq || h->flags || h->status > 0 || h->status < -4095) {
		vrnic_die(s, "a reply to %u (seq %u, status %d) where that to %u (seq %u) was due", h->op, h->seq, h->status,
			  op, s->seq);
		return false;
	}
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

/* vrnic_rpc with rpc_lock held. rep is filled also where a refusal has a body. */
static int rpc_locked(struct vrnic_session *s, uint16_t op, const void *req, size_t req_len, void *rep, size_t rep_len,
		      int send_fd, int *fds, int nfds)
{
	int got[4 * MAX_FDS], ngot, i, probe, err;
	struct reply r;
	ssize_t n;

	if (vrnic_dead(s))
		return EIO;
	if (nfds) {
		/* Without a free descriptor the kernel drops the daemon's, which looks like a reply that makes no sense. */
		probe = fcntl(s->sock, F_DUPFD_CLOEXEC, 0);
		if (probe < 0)
			return errno;
		for (i = 1; i < nfds && probe >= 0; i++) {
			int next = fcntl(s->sock, F_DUPFD_CLOEXEC, 0);

			vrnic_close(probe);
			if (next < 0)
				return errno;
			probe = next;
		}
		vrnic_close(probe);
	}
	err = send_request(s, op, req, req_len, send_fd);
	if (err)
		return err;
	n = receive(s, &r, got, &ngot);
	if (n < 0 || !valid(s, &r, n, op, rep_len, ngot, nfds)) {
		close_fds(got, ngot > 2 * MAX_FDS ? ngot - 2 * MAX_FDS : ngot);
		return EIO;
	}
	if (rep && (!r.h.status || r.h.len)) {
		size_t len = r.h.len < rep_len ? r.h.len : rep_len;

		memcpy(rep, r.body, len);
		memset((char *)rep + len, 0, rep_len - len);
	}
	if (!r.h.status && nfds)
		memcpy(fds, got, nfds * sizeof(int));
	return -r.h.status;
}

int vrnic_rpc(struct vrnic_session *s, uint16_t op, const void *req, size_t req_len, void *rep, size_t rep_len,
	      int send_fd, int *fds, int nfds)
{
	int old, err;

	if (vrnic_dead(s))
		return EIO;
	/* A thread that is cancelled between request and reply would leave the reply to the next. */
	pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &old);
	pthread_mutex_lock(&s->rpc_lock);
	err = rpc_locked(s, op, req, req_len, rep, rep_len, send_fd, fds, nfds);
	pthread_mutex_unlock(&s->rpc_lock);
	pthread_setcancelstate(old, NULL);
	return err;
}

int vrnic_rpc_handle(struct vrnic_session *s, uint16_t op, uint32_t handle, void *rep, size_t rep_len)
{
	struct vrnic_handle_request req = { .handle = handle };

	return vrnic_rpc(s, op, &req, sizeof(req), rep, rep_len, -1, NULL, 0);
}

static int lend_locked(struct vrnic_session *s)
{
	struct vrnic_set_mem_request req = { .nonce_addr = (uintptr_t)s->page.mem + VRNIC_SESS_NONCE };
	int fd, err;

	if (s->mem_lent)
		return 0;
	/* Not /proc/self: after the end of the main thread that has no memory. */
	fd = open("/proc/thread-self/mem", O_RDWR | O_CLOEXEC);
	if (fd < 0) {
		err = errno;
		complain(CAUSE_MEM, "this process cannot lend its memory to the daemon: open of /proc/thread-self/mem: %s "
			 "(is it not dumpable, or /proc not mounted?)", strerror(err));
		return err;
	}
	err = rpc_locked(s, VRNIC_OP_SET_MEM, &req, sizeof(req), NULL, 0, fd, NULL, 0);
	/* What could write to any page of this process should not be found by a program that closes or lists its files. */
	vrnic_close(fd);
	if (err && !vrnic_dead(s))
		complain(CAUSE_MEM, "the daemon refused this process's memory: %s", strerror(err));
	s->mem_lent = !err;
	return err;
}

int vrnic_lend_mem(struct vrnic_session *s)
{
	int old, err;

	if (vrnic_dead(s))
		return EIO;
	pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &old);
	pthread_mutex_lock(&s->rpc_lock);
	err = lend_locked(s);
	pthread_mutex_unlock(&s->rpc_lock);
	pthread_setcancelstate(old, NULL);
	return err;
}

/*
 * Memory from the daemon.
 */

static int map_fd(int fd, size_t min, struct vrnic_map *m)
{
	struct stat st;
	int seals;

	if (fstat(fd, &st))
		return errno;
	seals = fcntl(fd, F_GET_SEALS);
	/* What cannot shrink cannot raise SIGBUS. */
	if (!S_ISREG(st.st_mode) || seals < 0 || !(seals & F_SEAL_SHRINK))
		return EPROTO;
	if (st.st_size <= 0 || (size_t)st.st_size < min || st.st_size > MAX_DAEMON_MEM)
		return EPROTO;
	m->len = st.st_size;
	m->mem = mmap(NULL, m->len, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	if (m->mem == MAP_FAILED) {
		m->mem = NULL;
		return errno;
	}
	/* A child must not ring, poll and post in its parent's name. */
	if (madvise(m->mem, m->len, MADV_DONTFORK)) {
		int err = errno;

		munmap(m->mem, m->len);
		m->mem = NULL;
		return err;
	}
	m->forks = atomic_load(&forks);
	return 0;
}

int vrnic_map_fd(struct vrnic_session *s, int fd, size_t min, struct vrnic_map *m)
{
	int err = map_fd(fd, min, m);

	vrnic_close(fd);
	if (err)
		vrnic_die(s, "memory from the daemon: %s", strerror(err));
	return err;
}

bool vrnic_mapped(const struct vrnic_map *m)
{
	return m->mem && m->forks == atomic_load_explicit(&forks, memory_order_relaxed);
}

void vrnic_unmap(struct vrnic_map *m)
{
	/* In the child of a fork something else may be there. */
	if (vrnic_mapped(m))
		munmap(m->mem, m->len);
	m->mem = NULL;
}

/*
 * Event pipes: an octet in them stands for an event that is queued elsewhere.
 */

bool vrnic_check_pipe(struct vrnic_session *s, int fd)
{
	struct stat st;

	if (!fstat(fd, &st) && S_ISFIFO(st.st_mode))
		return true;
	vrnic_die(s, "the daemon sent something else than a pipe for events");
	return false;
}

/*
 * The pipe fd has come to its end. The daemon closes its side of it when the session ends, or when the channel is
 * destroyed, before which our side is closed.
 */
static void pipe_ended(struct vrnic_session *s, int fd)
{
	struct pollfd p = { .fd = s->sock, .events = POLLRDHUP };
	struct stat st;

	while (fstat(fd, &st) || !S_ISFIFO(st.st_mode))
		pause();
	/* The end of a process closes pipes and socket in no known order. */
	while (!vrnic_peer_gone(s))
		poll(&p, 1, -1);
}

int vrnic_wait_token(struct vrnic_session *s, int fd)
{
	ssize_t n;
	char c;

	if (vrnic_dead(s))
		return 1;
	n = read(fd, &c, 1);
	if (n == 1)
		return 0;
	if (n < 0)
		return vrnic_dead(s) ? 1 : -1;
	pipe_ended(s, fd);
	return 1;
}

void vrnic_take_tokens(int fd, uint32_t n)
{
	char path[40], buf[256];
	long got;
	int f, err = errno;

	if (!n || fd < 0)
		return;
	/* A description of its own: O_NONBLOCK on the program's is the program's. */
	snprintf(path, sizeof(path), "/proc/thread-self/fd/%d", fd);
	f = syscall(SYS_openat, AT_FDCWD, path, O_RDONLY | O_NONBLOCK | O_CLOEXEC);
	while (f >= 0 && n) {
		got = syscall(SYS_read, f, buf, n < sizeof(buf) ? n : sizeof(buf));
		if (got < 0 && errno == EINTR)
			continue;
		if (got <= 0)
			break; /* another thread has read it, and will find no event */
		n -= got;
	}
	vrnic_close(f);
	errno = err;
}

void vrnic_ring_doorbell(struct vrnic_session *s);

void vrnic_ring_doorbell(struct vrnic_session *s)
{
	uint64_t one = 1;
	int err = errno;

	/* The counter is far from full, so it does not block. It must not be a cancellation point: locks are held. */
	syscall(SYS_write, s->doorbell, &one, sizeof(one));
	errno = err;
}

/*
 * Opening.
 */

/* The daemon's socket: 0, or an errno. */
static int socket_path(struct sockaddr_un *sa)
{
	const char *p = secure_getenv("VRNIC_SOCKET"), *dir = secure_getenv("XDG_RUNTIME_DIR");
	int n;

	if (p && *p)
		n = snprintf(sa->sun_path, sizeof(sa->sun_path), "%s", p);
	else if (dir && *dir)
		n = snprintf(sa->sun_path, sizeof(sa->sun_path), "%s/vrnic.sock", dir);
	else
		n = snprintf(sa->sun_path, sizeof(sa->sun_path), "/run/vrnic.sock");
	if (n < (int)sizeof(sa->sun_path))
		return 0;
	complain(CAUSE_PATH, "the path of the daemon's socket is too long: %s", p && *p ? p : dir);
	return ENAMETOOLONG;
}

static int dial(struct vrnic_session *s, struct sockaddr_un *sa)
{
	int err;

	s->sock = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
	if (s->sock < 0) {
		err = errno;
		complain(CAUSE_SOCKET, "socket: %s", strerror(err));
		return err;
	}
	do {
		err = connect(s->sock, (struct sockaddr *)sa, sizeof(*sa)) ? errno : 0;
	} while (err == EINTR);
	switch (err) {
	case 0:
		break;
	case ENOENT:
	case ECONNREFUSED:
		complain(CAUSE_SOCKET, "no daemon at %s: start one with \"vrnic up\"", sa->sun_path);
		break;
	case EACCES:
	case EPERM:
		complain(CAUSE_SOCKET, "not allowed to use the daemon at %s: its socket's mode says who may "
			 "(vrnic up --socket-mode, --socket-group)", sa->sun_path);
		break;
	case EPROTOTYPE:
		complain(CAUSE_SOCKET, "%s is not the socket of a vrnic daemon", sa->sun_path);
		break;
	default:
		complain(CAUSE_SOCKET, "the daemon at %s: %s", sa->sun_path, strerror(err));
	}
	return err;
}

/*
 * Whether the daemon may have this process's memory, and with that all that this user may do: only root and the user
 * himself. That is asked of every daemon, since an unmodified program's memory regions need it.
 */
static int judge(struct vrnic_session *s, const char *path)
{
	struct ucred peer;
	socklen_t len = sizeof(peer);

	if (getsockopt(s->sock, SOL_SOCKET, SO_PEERCRED, &peer, &len)) {
		complain(CAUSE_TRUST, "the daemon at %s: SO_PEERCRED: %s", path, strerror(errno));
		return errno;
	}
	if (peer.uid == 0 || peer.uid == geteuid())
		return 0;
	complain(CAUSE_TRUST, "the daemon at %s runs as uid %u, which is neither root nor this user, %u: it is not given this "
		 "process's memory, and there is no device", path, peer.uid, geteuid());
	return EPERM;
}

/* Checks the session page and finds what is in it. */
static int open_page(struct vrnic_session *s)
{
	char *mem = s->page.mem;
	uint32_t magic = load_acquire(vrnic_word(mem, VRNIC_SESS_MAGIC));
	uint32_t version = load_acquire(vrnic_word(mem, VRNIC_SESS_MAJOR));
	uint32_t words = load_acquire(vrnic_word(mem, VRNIC_SESS_BELL_WORDS));
	uint32_t off = load_acquire(vrnic_word(mem, VRNIC_SESS_BELL_OFF));

	if (magic != VRNIC_MAGIC_SESSION || (version & 0xffff) != VRNIC_MAJOR) {
		vrnic_die(s, "session page with magic %#x, version %u", magic, version & 0xffff);
		return EPROTO;
	}
	if (words > 2 * VRNIC_MAX_DEPTH / 32 || off % 4 || off > s->page.len || 4 * (size_t)words > s->page.len - off) {
		vrnic_die(s, "session page with %u words of bells at %u", words, off);
		return EPROTO;
	}
	s->bells = vrnic_word(mem, off);
	s->nbells = 32 * words;
	s->sleeping = vrnic_word(mem, VRNIC_SESS_SLEEPING);
	s->poll_yield = load_acquire(vrnic_word(mem, VRNIC_SESS_POLL_YIELD));
	if (s->poll_yield < 1 || s->poll_yield > 1024)
		s->poll_yield = VRNIC_POLL_YIELD;
	return 0;
}

/* Learns what devices there are: HELLO names the first of them. */
static int read_names(struct vrnic_session *s, const struct vrnic_hello_reply *rep)
{
	struct vrnic_query_device_request req = { 0 };
	struct vrnic_query_device_reply d;
	uint32_t n = rep->num_devices < MAX_DEVICES ? rep->num_devices : MAX_DEVICES;
	int err;

	s->names = calloc(n + 1, sizeof(*s->names));
	if (!s->names)
		return ENOMEM;
	for (; req.device < n; req.device++) {
		const char *name = d.name;

		if (req.device < VRNIC_MAX_DEVICES) {
			name = rep->devices[req.device];
		} else {
			err = vrnic_rpc(s, VRNIC_OP_QUERY_DEV, &req, sizeof(req), &d, sizeof(d), -1, NULL, 0);
			if (err)
				return err;
		}
		memcpy(s->names[req.device], name, sizeof(*s->names) - 1);
	}
	s->ndevices = n;
	return 0;
}

static int hello(struct vrnic_session *s, const char *path)
{
	struct vrnic_hello_request req = { .magic = VRNIC_MAGIC_HELLO, .major = VRNIC_MAJOR, .minor = VRNIC_MINOR };
	struct vrnic_hello_reply rep = { 0 };
	int fds[2], err;

	snprintf(req.comm, sizeof(req.comm), "%s", program_invocation_short_name);
	err = vrnic_rpc(s, VRNIC_OP_HELLO, &req, sizeof(req), &rep, sizeof(rep), -1, fds, 2);
	if (err) {
		if (err == EPROTONOSUPPORT)
			complain(CAUSE_HELLO, "the daemon at %s speaks version %u.%u of the ring ABI, this library %u.%u: "
				 "install the same release of both", path, rep.major, rep.minor, VRNIC_MAJOR, VRNIC_MINOR);
		else if (vrnic_dead(s))
			complain(CAUSE_HELLO, "the daemon at %s ended the session at once (does it have a session free?)", path);
		else
			complain(CAUSE_HELLO, "the daemon at %s: %s", path, strerror(err));
		return err;
	}
	s->doorbell = fds[1];
	if (rep.magic != VRNIC_MAGIC_HELLO || rep.major != VRNIC_MAJOR) {
		vrnic_close(fds[0]);
		vrnic_die(s, "HELLO with magic %#x, version %u.%u", rep.magic, rep.major, rep.minor);
		err = EPROTO;
	} else {
		/* Line 0, the line of the word that both sides write, and no bells perhaps. */
		err = vrnic_map_fd(s, fds[0], VRNIC_SESS_SLEEPING + 64, &s->page);
	}
	if (!err)
		err = open_page(s);
	if (!err)
		err = read_names(s, &rep);
	if (err)
		complain(CAUSE_HELLO, "what answers at %s is not a vrnic daemon of this release", path);
	return err;
}

/* Puts s among the sessions, or takes the last one off, so that the child of a fork finds its descriptors. */
static void remember(struct vrnic_session *s)
{
	s->next = atomic_load(&sessions);
	atomic_store(&sessions, s);
}

static struct vrnic_session *open_session(void)
{
	struct sockaddr_un sa = { .sun_family = AF_UNIX };
	struct vrnic_session *s;
	int err;

	err = socket_path(&sa);
	if (err)
		goto fail;
	s = calloc(1, sizeof(*s));
	if (!s)
		return NULL;
	s->sock = s->doorbell = -1;
	pthread_mutex_init(&s->rpc_lock, NULL);
	s->mrs = vrnic_mrs_new();
	if (!s->mrs) {
		err = ENOMEM;
		goto free;
	}
	remember(s);
	err = dial(s, &sa);
	if (!err)
		err = judge(s, sa.sun_path);
	if (!err)
		err = hello(s, sa.sun_path);
	if (!err)
		return s;
	atomic_store(&sessions, s->next);
	vrnic_unmap(&s->page);
	vrnic_close(s->doorbell);
	vrnic_close(s->sock);
free:
	vrnic_mrs_free(s->mrs);
	free(s->names);
	pthread_mutex_destroy(&s->rpc_lock);
	free(s);
fail:
	errno = err;
	return NULL;
}

/*
 * In the child of a fork. The daemon must see the end of the parent, so the child has no business with its socket.
 * Other threads of the parent may have held locks, which nobody is left to unlock.
 */
static void forked(void)
{
	struct vrnic_session *s;

	atomic_fetch_add(&forks, 1);
	for (s = atomic_load(&sessions); s; s = s->next) {
		atomic_store(&s->dead, true);
		vrnic_close(s->sock);
		vrnic_close(s->doorbell);
		s->sock = s->doorbell = -1;
		pthread_mutex_init(&s->rpc_lock, NULL);
		vrnic_mrs_forked(s->mrs);
	}
	pthread_mutex_init(&open_lock, NULL);
	vrnic_devices_forked();
}

static void watch_forks(void)
{
	pthread_atfork(NULL, NULL, forked);
}

struct vrnic_session *vrnic_session(void)
{
	static pthread_once_t once = PTHREAD_ONCE_INIT;
	struct vrnic_session *s = atomic_load(&current);
	int old;

	if (s && !vrnic_peer_gone(s))
		return s;
	if (getauxval(AT_SECURE)) {
		complain(CAUSE_PRIVILEGE, "a program with raised privilege has no device: the daemon would get its memory");
		errno = EPERM;
		return NULL;
	}
	pthread_once(&once, watch_forks);
	pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &old);
	pthread_mutex_lock(&open_lock);
	s = atomic_load(&current);
	if (!s || vrnic_dead(s)) {
		s = open_session();
		if (s)
			atomic_store(&current, s);
	}
	pthread_mutex_unlock(&open_lock);
	pthread_setcancelstate(old, NULL);
	return s;
}
