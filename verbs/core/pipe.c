/* What the daemon sends descriptors of: memory, what tells of events, and the doorbell. */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "private.h"

/* Far above the largest ring, and far below what would exhaust the address space. */
#define MAX_DAEMON_MEM (1 << 30)

atomic_uint vrnic_forks;

/*
 * Memory from the daemon.
 */

static int map_fd(int fd, size_t min, size_t max, int prot, struct vrnic_map *m)
{
	struct stat st;
	int seals;

	if (fstat(fd, &st))
		return errno;
	seals = fcntl(fd, F_GET_SEALS);
	/* What cannot shrink cannot raise SIGBUS. */
	if (!S_ISREG(st.st_mode) || seals < 0 || !(seals & F_SEAL_SHRINK))
		return EPROTO;
	if (st.st_size <= 0 || (size_t)st.st_size < min || (size_t)st.st_size > max)
		return EPROTO;
	m->len = st.st_size;
	m->mem = mmap(NULL, m->len, prot, MAP_SHARED, fd, 0);
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
	m->forks = atomic_load(&vrnic_forks);
	return 0;
}

int vrnic_map_open_fd(struct vrnic_session *s, int fd, size_t min, struct vrnic_map *m)
{
	int err = map_fd(fd, min, MAX_DAEMON_MEM, PROT_READ | PROT_WRITE, m);

	/* For want of memory of its own a program lacks what it has asked for, and nothing else. */
	if (err && err != ENOMEM && err != EAGAIN)
		vrnic_die(s, "memory from the daemon: %s", strerror(err));
	return err;
}

int vrnic_map_fd(struct vrnic_session *s, int fd, size_t min, struct vrnic_map *m)
{
	int err = vrnic_map_open_fd(s, fd, min, m);

	vrnic_close(fd);
	return err;
}

int vrnic_map_peers(int fd, size_t min, bool write, struct vrnic_map *m)
{
	int err = map_fd(fd, min, SIZE_MAX / 2, write ? PROT_READ | PROT_WRITE : PROT_READ, m);

	vrnic_close(fd);
	if (!err)
		madvise(m->mem, m->len, MADV_DONTDUMP);
	return err;
}

int vrnic_map_page(struct vrnic_session *s, int fd, void *page)
{
	size_t len = sysconf(_SC_PAGESIZE);
	int err = 0;

	if (mmap(page, len, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, fd, 0) == MAP_FAILED ||
	    madvise(page, len, MADV_DONTFORK)) {
		err = errno;
		vrnic_die(s, "memory from the daemon: %s", strerror(err));
	}
	return err;
}

bool vrnic_mapped(const struct vrnic_map *m)
{
	return m->mem && m->forks == atomic_load_explicit(&vrnic_forks, memory_order_relaxed);
}

void vrnic_unmap(struct vrnic_map *m)
{
	/* In the child of a fork something else may be there. */
	if (vrnic_mapped(m))
		munmap(m->mem, m->len);
	m->mem = NULL;
}

/*
 * Event pipes, which are sockets unless the daemon is an older one: an octet in them stands for an
 * event that is queued elsewhere.
 */

static bool is_pipe(int fd)
{
	struct stat st;

	return !fstat(fd, &st) && (S_ISSOCK(st.st_mode) || S_ISFIFO(st.st_mode));
}

bool vrnic_check_pipe(struct vrnic_session *s, int fd)
{
	if (is_pipe(fd))
		return true;
	vrnic_die(s, "the daemon sent something else than a socket or pipe for events");
	return false;
}

/*
 * The pipe fd has come to its end. The daemon closes its side of it when the session ends, or when
 * the channel is destroyed, before which our side is closed.
 */
static void pipe_ended(struct vrnic_session *s, int fd)
{
	struct pollfd p = { .fd = s->sock, .events = POLLRDHUP };

	while (!is_pipe(fd))
		pause();
	/* The end of a process closes pipes and socket in no known order. */
	while (!vrnic_peer_gone(s))
		poll(&p, 1, -1);
}

VRNIC_CANCELLED int vrnic_wait_token(struct vrnic_session *s, int fd)
{
	ssize_t n;
	char c;

	if (vrnic_dead(s))
		return 1;
	n = read(fd, &c, 1);
	if (n == 1)
		return 0;
	/* EBADF: on the way here another thread has destroyed the channel. */
	if (n < 0 && errno != EBADF)
		return vrnic_dead(s) ? 1 : -1;
	pipe_ended(s, fd);
	return 1;
}

/* One description more of the pipe fd: O_NONBLOCK on the program's is the program's. */
static int open_again(int fd)
{
	char path[40];

	snprintf(path, sizeof(path), "/proc/thread-self/fd/%d", fd);
	return syscall(SYS_openat, AT_FDCWD, path, O_RDONLY | O_NONBLOCK | O_CLOEXEC);
}

void vrnic_take_tokens(int fd, uint32_t n)
{
	char buf[256];
	long got, most;
	int f = -1, err = errno;

	/* No cancellation points: locks are held. */
	while (n && fd >= 0) {
		most = n < sizeof(buf) ? n : sizeof(buf);
		if (f < 0)
			got = syscall(SYS_recvfrom, fd, buf, most, MSG_DONTWAIT, NULL, NULL);
		else
			got = syscall(SYS_read, f, buf, most);
		if (got < 0 && (errno == EINTR ||
				(errno == ENOTSOCK && f < 0 && (f = open_again(fd)) >= 0)))
			continue;
		if (got <= 0)
			break; /* another thread has read it, and will find no event */
		n -= got;
	}
	vrnic_close(f);
	errno = err;
}

void vrnic_ring_doorbell(struct vrnic_session *s)
{
	uint64_t one = 1;
	int err = errno;

	/*
	 * The counter is far from full, so it does not block. It must not be a cancellation point: locks
	 * are held.
	 */
	syscall(SYS_write, s->doorbell, &one, sizeof(one));
	errno = err;
}
