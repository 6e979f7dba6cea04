/*
 * The session with the daemon: finding and judging the daemon, opening, lending it this process's
 * memory, and forks.
 */
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/auxv.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "private.h"
#include "setting/setting.h"

#define MAX_DEVICES 65536 /* that come and go in the life of a session */

static pthread_mutex_t open_lock = PTHREAD_MUTEX_INITIALIZER;
static _Atomic(struct vrnic_session *) current;
/* all, also one that is being opened; changed with open_lock held */
static _Atomic(struct vrnic_session *) sessions;

void vrnic_complain(enum vrnic_cause cause, const char *fmt, ...)
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

/*
 * Lending this process's memory to the daemon.
 */

static int lend(struct vrnic_session *s)
{
	struct vrnic_set_mem_request req = { .nonce_addr = (uintptr_t)s->page.mem + VRNIC_SESS_NONCE };
	int fd, err;

	/* Not /proc/self: after the end of the main thread that has no memory. */
	fd = open("/proc/thread-self/mem", O_RDWR | O_CLOEXEC);
	if (fd < 0) {
		err = errno;
		vrnic_complain(VRNIC_CAUSE_MEM,
			       "this process cannot lend its memory to the daemon: open of /proc/thread-self/mem: %s "
			       "(is it not dumpable, or /proc not mounted?)", strerror(err));
		return err;
	}
	err = vrnic_rpc(s, VRNIC_OP_SET_MEM, &req, sizeof(req), NULL, 0, fd, NULL, 0);
	/*
	 * What could write to any page of this process should not be found by a program that closes or
	 * lists its files.
	 */
	vrnic_close(fd);
	if (err && !vrnic_dead(s))
		vrnic_complain(VRNIC_CAUSE_MEM,
			       "the daemon refused this process's memory: %s", strerror(err));
	/*
	 * Where Yama lets nobody but a parent reach into a process, that spares a daemon of this user a
	 * copy of what is long. It gives it nothing that it does not have now; elsewhere it fails, and
	 * does nothing.
	 */
	if (!err && s->daemon > 0)
		prctl(PR_SET_PTRACER, (unsigned long)s->daemon, 0, 0, 0);
	return err;
}

int vrnic_lend_mem(struct vrnic_session *s)
{
	int old, err = 0;

	pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &old);
	pthread_mutex_lock(&s->lend_lock);
	if (!s->mem_lent) {
		err = lend(s);
		s->mem_lent = !err;
	}
	pthread_mutex_unlock(&s->lend_lock);
	pthread_setcancelstate(old, NULL);
	return err;
}

/* Shows the daemon one namespace, by a descriptor: nobody else can have one of it. */
static bool show_namespace(struct vrnic_session *s, const char *file, uint32_t kind)
{
	struct vrnic_identify_request req = { .kind = kind };
	int fd, err;

	fd = open(file, O_RDONLY | O_CLOEXEC);
	if (fd < 0)
		return false;
	err = vrnic_rpc(s, VRNIC_OP_IDENTIFY, &req, sizeof(req), NULL, 0, fd, NULL, 0);
	vrnic_close(fd);
	return !err;
}

bool vrnic_say_who(struct vrnic_session *s)
{
	bool ok;
	int old;

	pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &old);
	pthread_mutex_lock(&s->lend_lock);
	if (!s->said_who) {
		s->said_who = true;
		s->direct = show_namespace(s, "/proc/thread-self/ns/user", VRNIC_NAMESPACE_USER) &&
			    show_namespace(s, "/proc/thread-self/ns/pid", VRNIC_NAMESPACE_PROCESS);
	}
	ok = s->direct;
	pthread_mutex_unlock(&s->lend_lock);
	pthread_setcancelstate(old, NULL);
	return ok;
}

/*
 * Opening.
 */

/* The daemon's socket: 0, or an errno. */
static int socket_path(struct sockaddr_un *sa)
{
	char *p = vrnic_setting("VRNIC_SOCKET");
	const char *dir = secure_getenv("XDG_RUNTIME_DIR");
	int n;

	if (p)
		n = snprintf(sa->sun_path, sizeof(sa->sun_path), "%s", p);
	else if (dir && *dir)
		n = snprintf(sa->sun_path, sizeof(sa->sun_path), "%s/vrnic.sock", dir);
	else
		n = snprintf(sa->sun_path, sizeof(sa->sun_path), "/run/vrnic.sock");
	if (n >= (int)sizeof(sa->sun_path))
		vrnic_complain(VRNIC_CAUSE_PATH,
			       "the path of the daemon's socket is too long: %s", p ? p : dir);
	free(p);
	return n < (int)sizeof(sa->sun_path) ? 0 : ENAMETOOLONG;
}

static int dial(struct vrnic_session *s, struct sockaddr_un *sa)
{
	struct stat st;
	int err;

	s->sock = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
	if (s->sock < 0) {
		err = errno;
		vrnic_complain(VRNIC_CAUSE_SOCKET,
			       "socket: %s", strerror(err));
		return err;
	}
	if (!fstat(s->sock, &st)) {
		s->sock_dev = st.st_dev;
		s->sock_ino = st.st_ino;
	}
	do {
		err = connect(s->sock, (struct sockaddr *)sa, sizeof(*sa)) ? errno : 0;
	} while (err == EINTR);
	switch (err) {
	case 0:
		break;
	case ENOENT:
	case ECONNREFUSED:
		vrnic_complain(VRNIC_CAUSE_SOCKET,
			       "no daemon at %s: start one with \"vrnic up\"", sa->sun_path);
		break;
	case EACCES:
	case EPERM:
		vrnic_complain(VRNIC_CAUSE_SOCKET,
			       "not allowed to use the daemon at %s: its socket's mode says who may "
			       "(vrnic up --socket-mode, --socket-group)", sa->sun_path);
		break;
	case EPROTOTYPE:
		vrnic_complain(VRNIC_CAUSE_SOCKET,
			       "%s is not the socket of a vrnic daemon", sa->sun_path);
		break;
	default:
		vrnic_complain(VRNIC_CAUSE_SOCKET,
			       "the daemon at %s: %s", sa->sun_path, strerror(err));
	}
	return err;
}

/*
 * Whether the daemon may have this process's memory, and with that all that this user may do: only
 * root and the user himself. That is asked of every daemon, since an unmodified program's memory
 * regions need it.
 */
static int judge(struct vrnic_session *s, const char *path)
{
	struct ucred peer;
	socklen_t len = sizeof(peer);

	if (getsockopt(s->sock, SOL_SOCKET, SO_PEERCRED, &peer, &len)) {
		vrnic_complain(VRNIC_CAUSE_TRUST,
			       "the daemon at %s: SO_PEERCRED: %s", path, strerror(errno));
		return errno;
	}
	if (peer.uid == geteuid())
		s->daemon = peer.pid;
	if (peer.uid == 0 || peer.uid == geteuid())
		return 0;
	vrnic_complain(VRNIC_CAUSE_TRUST,
		       "the daemon at %s runs as uid %u, which is neither root nor this user, %u: it is not "
		       "given this process's memory, and there is no device", path, peer.uid, geteuid());
	return EPERM;
}

/* Whether there are processors for this process, its daemon, and one more. */
static bool many_processors(void)
{
	cpu_set_t set;

	return sched_getaffinity(0, sizeof(set), &set) || CPU_COUNT(&set) > 2;
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
	if (words > 2 * VRNIC_MAX_DEPTH / 32 || off % 4 || off > s->page.len ||
	    4 * (size_t)words > s->page.len - off) {
		vrnic_die(s, "session page with %u words of bells at %u", words, off);
		return EPROTO;
	}
	s->bells = vrnic_word(mem, off);
	s->nbells = 32 * words;
	s->sleeping = vrnic_word(mem, VRNIC_SESS_SLEEPING);
	s->spin = many_processors();
	s->poll_yield = load_acquire(vrnic_word(mem, VRNIC_SESS_POLL_YIELD));
	if (s->poll_yield < 1 || s->poll_yield > 1024)
		s->poll_yield = VRNIC_POLL_YIELD;
	return 0;
}

/* Asks for a device; ENXIO: it has gone, and its number stays so. */
static int ask_device(struct vrnic_session *s, uint32_t index, struct vrnic_query_device_reply *rep)
{
	struct vrnic_query_device_request req = { .device = index };
	int err = vrnic_rpc(s, VRNIC_OP_QUERY_DEVICE, &req, sizeof(req), rep, sizeof(*rep), -1, NULL, 0);

	if (!err)
		rep->name[sizeof(rep->name) - 1] = rep->fw_version[sizeof(rep->fw_version) - 1] = 0;
	if (err == ENXIO && index < MAX_DEVICES)
		atomic_store(&s->gone[index], true);
	return err;
}

int vrnic_query_device(struct vrnic_session *s, uint32_t index,
		       struct vrnic_query_device_reply *rep)
{
	int err = ask_device(s, index, rep);

	return err == ENXIO ? ENODEV : err;
}

/* Learns what devices there are: HELLO names the first of them. */
static int read_names(struct vrnic_session *s, const struct vrnic_hello_reply *rep)
{
	struct vrnic_query_device_reply d;
	uint32_t i, n = rep->num_devices < MAX_DEVICES ? rep->num_devices : MAX_DEVICES;
	int err;

	/* Nobody who reads them sees them move, and what is not used yet is no memory. */
	s->names = calloc(MAX_DEVICES, sizeof(*s->names));
	s->gone = calloc(MAX_DEVICES, sizeof(*s->gone));
	if (!s->names || !s->gone)
		return ENOMEM;
	for (i = 0; i < n; i++) {
		const char *name = d.name;

		if (i < VRNIC_MAX_DEVICES) {
			name = rep->devices[i];
		} else {
			err = ask_device(s, i, &d);
			if (err == ENXIO)
				continue;
			if (err)
				return err;
		}
		memcpy(s->names[i], name, sizeof(*s->names) - 1);
	}
	atomic_store(&s->ndevices, n);
	return 0;
}

void vrnic_look(struct vrnic_session *s)
{
	struct vrnic_query_device_reply d;
	uint32_t n;
	int old, err;

	pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &old);
	pthread_mutex_lock(&s->names_lock);
	for (n = atomic_load(&s->ndevices); n < MAX_DEVICES; atomic_store(&s->ndevices, ++n)) {
		err = ask_device(s, n, &d);
		if (!err)
			memcpy(s->names[n], d.name, sizeof(*s->names) - 1);
		else if (err != ENXIO) /* there is none */
			break;
	}
	pthread_mutex_unlock(&s->names_lock);
	pthread_setcancelstate(old, NULL);
}

static int hello(struct vrnic_session *s, const char *path)
{
	struct vrnic_hello_request req = { .magic = VRNIC_MAGIC_HELLO, .major = VRNIC_MAJOR,
					  .minor = VRNIC_MINOR,
					  .features = VRNIC_FEATURE_REASONS | VRNIC_FEATURE_AGAIN |
						      VRNIC_FEATURE_DIRECT | VRNIC_FEATURE_GONE |
						      VRNIC_FEATURE_SOCKETS };
	struct vrnic_hello_reply rep = { 0 };
	int fds[2], err;

	snprintf(req.comm, sizeof(req.comm), "%s", program_invocation_short_name);
	err = vrnic_rpc(s, VRNIC_OP_HELLO, &req, sizeof(req), &rep, sizeof(rep), -1, fds, 2);
	if (err) {
		if (err == EPROTONOSUPPORT)
			vrnic_complain(VRNIC_CAUSE_HELLO,
				       "the daemon at %s speaks version %u.%u of the ring ABI, this library %u.%u: "
				       "install the same release of both", path, rep.major, rep.minor, VRNIC_MAJOR,
				       VRNIC_MINOR);
		else if (vrnic_dead(s))
			vrnic_complain(VRNIC_CAUSE_HELLO,
				       "the daemon at %s ended the session at once", path);
		else
			vrnic_complain(VRNIC_CAUSE_HELLO,
				       "the daemon at %s: %s", path, strerror(err));
		return err;
	}
	s->doorbell = fds[1];
	s->direct = rep.features & VRNIC_FEATURE_DIRECT;
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
		vrnic_complain(VRNIC_CAUSE_HELLO,
			       "what answers at %s is not a vrnic daemon of this release", path);
	return err;
}

/*
 * Puts s among the sessions, or takes the last one off, so that the child of a fork finds its
 * descriptors.
 */
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
	pthread_mutex_init(&s->lend_lock, NULL);
	pthread_mutex_init(&s->names_lock, NULL);
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
	free(s->gone);
	free(s->names);
	pthread_mutex_destroy(&s->names_lock);
	pthread_mutex_destroy(&s->lend_lock);
	pthread_mutex_destroy(&s->rpc_lock);
	free(s);
fail:
	errno = err;
	return NULL;
}

/* VRNIC_DEVICE names the only device that there shall be. */
static const char *only(void)
{
	const char *name = secure_getenv("VRNIC_DEVICE");

	return name && *name ? name : NULL;
}

bool vrnic_device_named(void)
{
	return only();
}

uint32_t vrnic_num_devices(struct vrnic_session *s)
{
	return atomic_load(&s->ndevices);
}

bool vrnic_device_allowed(struct vrnic_session *s, uint32_t index)
{
	return index < atomic_load(&s->ndevices) && !atomic_load(&s->gone[index]) &&
	       (!only() || !strcmp(only(), s->names[index]));
}

/*
 * In the child of a fork. The daemon must see the end of the parent, so the child has no business
 * with its socket. Other threads of the parent may have held locks, which nobody is left to unlock.
 */
static void forked(void)
{
	struct vrnic_session *s;

	atomic_fetch_add(&vrnic_forks, 1);
	for (s = atomic_load(&sessions); s; s = s->next) {
		atomic_store(&s->dead, true);
		if (vrnic_sock_there(s)) { /* else the program has closed both, and files of its own are there */
			vrnic_close(s->sock);
			vrnic_close(s->doorbell);
		}
		s->sock = s->doorbell = -1;
		pthread_mutex_init(&s->rpc_lock, NULL);
		pthread_mutex_init(&s->lend_lock, NULL);
		pthread_mutex_init(&s->names_lock, NULL);
	}
	pthread_mutex_init(&open_lock, NULL);
	vrnic_areas_forked();
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
		vrnic_complain(VRNIC_CAUSE_PRIVILEGE,
			       "a program with raised privilege has no device: the daemon would get its memory");
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
