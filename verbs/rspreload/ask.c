/* Questions to rsocketd, which is started where there is none: it ends when nobody needs it. */
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "rspreload.h"

enum { TRIES = 10, AGAIN_US = 5000, STACK = 65536 };

/* What $VRNIC_RSOCKETS says, UID.WORD.SECRET. */
struct whom {
	unsigned long uid;
	struct sockaddr_un at;
	socklen_t len;
	char secret[RS_SECRET];
};

static bool whom(struct whom *w)
{
	const char *env = rs_kept("VRNIC_RSOCKETS"), *dot, *secret;
	size_t n;
	char *end;

	memset(w, 0, sizeof(*w));
	w->uid = env ? strtoul(env, &end, 10) : 0;
	if (!env || end == env || *end != '.')
		return false;
	dot = end + 1;
	secret = strchr(dot, '.');
	n = sizeof(RS_ASK_MAGIC) - 1;
	if (!secret || strlen(secret + 1) != RS_SECRET ||
	    (size_t)(secret - dot) > sizeof(w->at.sun_path) - 1 - n)
		return false;
	w->at.sun_family = AF_UNIX;
	memcpy(w->at.sun_path + 1, RS_ASK_MAGIC, n);
	memcpy(w->at.sun_path + 1 + n, dot, secret - dot);
	w->len = offsetof(struct sockaddr_un, sun_path) + 1 + n + (secret - dot);
	memcpy(w->secret, secret + 1, RS_SECRET);
	return true;
}

void rs_complain(const char *what, int err)
{
	char line[PATH_MAX + 200];
	int was = errno, n;

	n = snprintf(line, sizeof(line), "vrnic: %s: %s\n", what, strerror(err));
	if (n > 0 && write(STDERR_FILENO, line, (size_t)n < sizeof(line) ? (size_t)n : sizeof(line) - 1))
		errno = was;
	errno = was;
}

/* What is executed: as long as that takes the program's thread waits, and all share its memory. */
struct program {
	char path[PATH_MAX];
	char ready_text[12];
	int ready; /* a pipe: errno, or 0 when it can be asked; or nothing */
	char *middle; /* of a stack */
};

static int execute(void *arg)
{
	struct program *p = arg;
	char *argv[] = { "rsocketd", p->ready_text, NULL };
	uint8_t err;

	fcntl(p->ready, F_SETFD, 0);
	execve(p->path, argv, rs_kept_env());
	err = errno;
	_exit(write(p->ready, &err, 1) != 1);
}

/* So that rsocketd is nobody's child: the program may wait for any, and is told of none. */
static int between(void *arg)
{
	struct program *p = arg;

	_exit(clone(execute, p->middle, CLONE_VM | CLONE_VFORK | SIGCHLD, p) < 0);
}

/* It is beside this library. */
static bool find(char *path, size_t size)
{
	static const char name[] = "libvrnic-rsocketd.so";
	const char *slash;
	Dl_info info;
	size_t n;

	if (!dladdr((void *)find, &info) || !(slash = strrchr(info.dli_fname, '/')))
		return false;
	n = slash + 1 - info.dli_fname;
	if (n + sizeof(name) > size)
		return false;
	memcpy(path, info.dli_fname, n);
	memcpy(path + n, name, sizeof(name));
	return true;
}

/* Starts it, and waits until it, or another one, can be asked: 0, or errno */
static int start(void)
{
	char *stack = mmap(NULL, STACK, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	struct program p;
	sigset_t all, was;
	uint8_t said = 0;
	int ready[2], state;
	pid_t pid;

	if (stack == MAP_FAILED)
		return ENOMEM;
	if (!find(p.path, sizeof(p.path)) || pipe2(ready, O_CLOEXEC)) {
		munmap(stack, STACK);
		return EMFILE;
	}
	p.ready = ready[1];
	p.middle = stack + STACK / 2;
	snprintf(p.ready_text, sizeof(p.ready_text), "%d", p.ready);
	pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &state);
	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &was); /* handlers would run on both's memory */
	pid = clone(between, stack + STACK, CLONE_VM | CLONE_VFORK, &p);
	pthread_sigmask(SIG_SETMASK, &was, NULL);
	close(ready[1]);
	while (pid >= 0 && waitpid(pid, NULL, __WCLONE) < 0 && errno == EINTR)
		;
	while (rs_next()->read(ready[0], &said, 1) < 0 && errno == EINTR)
		;
	pthread_setcancelstate(state, NULL);
	close(ready[0]);
	munmap(stack, STACK);
	if (said)
		rs_complain(p.path, said);
	return said;
}

/* A connection to it, or -1. */
static int join(const struct whom *w)
{
	struct ucred who;
	socklen_t len = sizeof(who);
	int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0), err;

	if (fd < 0)
		return -1;
	if (rs_next()->connect(fd, (const struct sockaddr *)&w->at, w->len)) {
		err = errno;
		goto fail;
	}
	/* anybody can take a name */
	if (!rs_next()->getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &who, &len) && who.uid == w->uid)
		return fd;
	err = EPERM;
fail:
	close(fd);
	errno = err;
	return -1;
}

static bool say(int to, const struct rs_ask *q, int send)
{
	union {
		struct cmsghdr h;
		char room[CMSG_SPACE(sizeof(int))];
	} c = { .h = { .cmsg_level = SOL_SOCKET, .cmsg_type = SCM_RIGHTS,
		       .cmsg_len = CMSG_LEN(sizeof(int)) } };
	struct iovec v = { (void *)q, sizeof(*q) };
	struct msghdr m = { .msg_iov = &v, .msg_iovlen = 1 };
	ssize_t n;

	if (send >= 0) {
		memcpy(CMSG_DATA(&c.h), &send, sizeof(send));
		m.msg_control = &c;
		m.msg_controllen = sizeof(c);
	}
	do
		n = sendmsg(to, &m, MSG_NOSIGNAL);
	while (n < 0 && errno == EINTR);
	return n == (ssize_t)sizeof(*q);
}

/* The answer; ECONNRESET: there is none. */
static bool hear(int from, struct rs_answer *a, int *got)
{
	union {
		struct cmsghdr h;
		char room[CMSG_SPACE(sizeof(int))];
	} c;
	struct iovec v = { a, sizeof(*a) };
	struct msghdr m = { .msg_iov = &v, .msg_iovlen = 1, .msg_control = &c,
			    .msg_controllen = sizeof(c) };
	ssize_t n;

	do
		n = rs_next()->recvmsg(from, &m, MSG_CMSG_CLOEXEC);
	while (n < 0 && errno == EINTR);
	if (n != (ssize_t)sizeof(*a)) {
		errno = ECONNRESET;
		return false;
	}
	*got = -1;
	if (m.msg_controllen >= CMSG_LEN(sizeof(int)) && c.h.cmsg_type == SCM_RIGHTS)
		memcpy(got, CMSG_DATA(&c.h), sizeof(*got));
	return true;
}

int rs_ask(struct rs_ask *q, int send, struct rs_answer *a, int *got)
{
	bool fresh = q->op != RS_OP_SET && q->op != RS_OP_GET && !q->id, heard = false;
	struct whom w;
	int i, fd, new = -1, err = 0;

	if (!whom(&w)) {
		errno = ENOENT;
		return -1;
	}
	memcpy(q->secret, w.secret, sizeof(q->secret));
	/* one that is about to end does not answer */
	for (i = 0; !heard && i < TRIES; i++) {
		fd = join(&w);
		if (fd < 0 && (errno != ECONNREFUSED || !fresh)) {
			err = errno; /* what it knew it has taken along */
			break;
		}
		if (fd < 0) {
			usleep(i * AGAIN_US); /* another one may be about to be ready */
			err = start();
			if (err && err != EADDRINUSE)
				break;
			err = ECONNREFUSED;
			continue;
		}
		heard = say(fd, q, send) && hear(fd, a, &new);
		err = heard ? a->err : errno;
		close(fd);
	}
	if (got)
		*got = new;
	else if (new >= 0)
		close(new);
	if (!heard && fresh)
		rs_complain("the process of sockets over RDMA (libvrnic-rsocketd.so) does not answer", err);
	if (heard && err == ENODEV)
		rs_complain("no daemon is there for sockets over RDMA: start one with `vrnic up`", err);
	if (heard && !err)
		return 0;
	errno = err;
	return -1;
}

bool rs_is_known(uint64_t id)
{
	struct rs_ask q = { .op = RS_OP_GET, .id = id, .level = SOL_SOCKET, .name = SO_TYPE,
			    .len = sizeof(int) };
	struct rs_answer a;
	int was = errno;
	bool known = !rs_ask(&q, -1, &a, NULL);

	errno = was;
	return known;
}
