/*
 * Forks. A child has a copy of its parent's memory, and what is shared with the daemon would be
 * shared with the child too. So the parent copies what is in use, before it forks, into private
 * memory, which the child then has in the place of the shared. This library's handlers are the
 * first that are registered: they run behind all others of the program before the fork, and before
 * them afterwards, so that what a program locks for a fork is locked while this copies.
 */
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "heap.h"

/*
 * Copies without the descriptor, which the program has closed: by another mapping, since parts of
 * the first may not be readable.
 */
static bool copy_mapped(struct chunk *c, size_t off, size_t end)
{
	void *from = mremap((void *)(c->addr + off), 0, end - off, MREMAP_MAYMOVE);
	bool ok;

	if (from == MAP_FAILED)
		return false;
	ok = !mprotect(from, end - off, PROT_READ);
	if (ok)
		memcpy((char *)c->copy + off, from, end - off);
	munmap(from, end - off);
	return ok;
}

/*
 * Copies octets off.. to end.. of the memfd, but for pages that it has never had, unless the
 * program closes it just now.
 */
static bool copy_range(struct chunk *c, size_t off, size_t end)
{
	off_t data = off, hole;
	ssize_t n;

	while (data < (off_t)end) {
		data = lseek(c->fd, data, SEEK_DATA);
		if (data < 0)
			return errno == ENXIO; /* there is no more */
		if (data >= (off_t)end)
			break;
		hole = lseek(c->fd, data, SEEK_HOLE);
		if (hole < 0 || hole > (off_t)end)
			hole = end;
		for (; data < hole; data += n) {
			n = syscall(SYS_pread64, c->fd, (char *)c->copy + data, hole - data, data);
			if (n <= 0)
				return false;
		}
	}
	return true;
}

static void drop_copy(struct chunk *c)
{
	if (c->copy)
		munmap(c->copy, c->mapped * heap_page);
	c->copy = NULL;
}

/* Leaves no copy if there cannot be one. */
static void copy_chunk(struct chunk *c)
{
	bool own = heap_own_fd(c), ok = true;
	size_t off, end;
	uint32_t i;

	c->copy = mmap(NULL, c->mapped * heap_page, PROT_READ | PROT_WRITE,
		       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	if (c->copy == MAP_FAILED) {
		c->copy = NULL;
		return;
	}
	for (i = 0; i < c->mapped && ok; i += c->run[i].len) {
		if (c->run[i].state != RUN_USED)
			continue;
		off = i * heap_page;
		end = off + c->run[i].len * heap_page;
		ok = (own && copy_range(c, off, end)) || copy_mapped(c, off, end);
	}
	if (!ok)
		drop_copy(c);
}

/* Of two threads that fork one waits for the other. */
static pthread_mutex_t fork_lock = PTHREAD_MUTEX_INITIALIZER;

static void before_fork(void)
{
	struct chunk *c;
	int err = errno;

	pthread_mutex_lock(&fork_lock);
	heap_freeze();
	for (c = heap_chunks; c; c = c->next)
		if (!c->inherited && c->used)
			copy_chunk(c);
	errno = err;
}

static void in_parent(void)
{
	struct chunk *c;
	int err = errno;

	for (c = heap_chunks; c; c = c->next)
		drop_copy(c);
	heap_thaw();
	pthread_mutex_unlock(&fork_lock);
	errno = err;
}

/*
 * The child.
 */

/* Puts the copy of addresses lo to hi where they are. */
static void put_copy(struct chunk *c, uintptr_t lo, uintptr_t hi, int prot)
{
	void *from = (char *)c->copy + (lo - c->addr);

	if (mremap(from, hi - lo, hi - lo, MREMAP_MAYMOVE | MREMAP_FIXED, (void *)lo) != (void *)lo)
		heap_die("vrnic: the child of a fork cannot map its copy of the heap\n");
	if (prot != (PROT_READ | PROT_WRITE))
		mprotect((void *)lo, hi - lo, prot);
}

/* A mapping of this process: a line of /proc/self/maps. */
struct mapping {
	uintptr_t lo, hi;
	int prot;
	bool shared;
	uint64_t ino;
};

/* Reads a number up to the character that ends it. */
static const char *number(const char *s, unsigned int base, char end, uint64_t *n)
{
	for (*n = 0; *s && *s != end; s++)
		*n = *n * base + (*s <= '9' ? *s - '0' : *s - 'a' + 10);
	return *s ? s + 1 : s;
}

/* LO-HI rwxs OFFSET MAJOR:MINOR INODE */
static void parse_mapping(const char *s, struct mapping *m)
{
	uint64_t lo, hi, skipped;

	s = number(s, 16, '-', &lo);
	s = number(s, 16, ' ', &hi);
	m->lo = lo;
	m->hi = hi;
	m->prot = (s[0] == 'r' ? PROT_READ : 0) | (s[1] == 'w' ? PROT_WRITE : 0) |
		  (s[2] == 'x' ? PROT_EXEC : 0);
	m->shared = s[3] == 's';
	s = number(s + 5, 16, ' ', &skipped);
	s = number(s, 16, ' ', &skipped);
	number(s, 10, ' ', &m->ino);
}

static void put_mapping(const struct mapping *m)
{
	struct chunk *c;

	if (!heap_has((void *)m->lo) || !m->shared)
		return;
	c = heap_find(m->lo);
	if (c && c->copy && c->ino == m->ino && m->lo >= c->addr &&
	    m->hi <= c->addr + c->mapped * heap_page)
		put_copy(c, m->lo, m->hi, m->prot);
}

/*
 * Goes by the mappings that there are, since the program may have changed the protection of a part,
 * or kept it from its children. Without malloc. False if there is no such file.
 */
static bool put_mapped(void)
{
	int fd = syscall(SYS_openat, AT_FDCWD, "/proc/self/maps", O_RDONLY | O_CLOEXEC);
	char line[128], buf[4096];
	struct mapping m;
	size_t len = 0;
	ssize_t n, i;

	if (fd < 0)
		return false;
	while ((n = syscall(SYS_read, fd, buf, sizeof(buf))) > 0) {
		for (i = 0; i < n; i++) {
			if (buf[i] != '\n') {
				if (len < sizeof(line) - 1)
					line[len++] = buf[i]; /* what is longer is a name */
				continue;
			}
			line[len] = 0;
			len = 0;
			parse_mapping(line, &m);
			put_mapping(&m);
		}
	}
	syscall(SYS_close, fd);
	return true;
}

static void in_child(void)
{
	struct chunk *c, *next;
	int err = errno;
	bool put;

	pthread_mutex_init(&fork_lock, NULL);
	heap_forked();
	for (c = heap_chunks; c; c = c->next)
		if (!c->inherited && c->used && !c->copy)
			heap_die("vrnic: there is no memory for a copy of the heap in the child of a fork\n");
	put = put_mapped();
	for (c = heap_chunks; c; c = next) {
		next = c->next;
		if (c->inherited)
			continue;
		if (c->copy && !put)
			put_copy(c, c->addr, c->addr + c->mapped * heap_page, PROT_READ | PROT_WRITE);
		drop_copy(c); /* what is left of it */
		heap_close(c);
		c->inherited = true;
		if (!c->used)
			heap_release(c);
	}
	heap_thaw();
	errno = err;
}

bool heap_watch_forks(void) { return !pthread_atfork(before_fork, in_parent, in_child); }
