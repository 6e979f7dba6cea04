/*
 * Memory of the program that the daemon has mapped too: it moves messages to and from it with no
 * system call, where it else reads and writes the process's memory through the kernel. There are
 * two kinds: what vrnic_alloc gave out, and mappings that the program made itself, MAP_SHARED, of a
 * memfd which it still has open and has sealed against shrinking. Regions registered there stand
 * for octets of the memfd, as a registration stands for pages: a program that maps something else
 * at the address afterwards has not changed the region.
 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "private.h"
#include "vrnic_alloc.h"

/* Below this the search for a mapping costs more than it saves. */
#define MIN_FOUND 4096

/* Descriptors that are looked at: programs with more have sockets there. */
#define MAX_LOOKED 512

struct vrnic_area {
	struct vrnic_area *next;
	void *addr;	  /* of vrnic_alloc, or NULL: the program's own memfd */
	size_t len;	  /* of the memfd */
	int fd;		  /* of vrnic_alloc: kept, since there may be another session; or -1 */
	dev_t dev;	  /* of the program's memfd */
	ino_t ino;
	unsigned int users; /* regions, of any session */
	bool freed;	  /* by vrnic_free, while there were users */
	struct vrnic_session *s; /* whose daemon has it, or NULL */
	uint32_t mem;	  /* what that calls it */
};

static pthread_mutex_t area_lock = PTHREAD_MUTEX_INITIALIZER; /* before rpc_lock */
static struct vrnic_area *areas;

void vrnic_areas_forked(void)
{
	pthread_mutex_init(&area_lock, NULL);
}

/* Gives the daemon of s the memory fd, unless it has it: 0 or an errno. */
static int share(struct vrnic_session *s, struct vrnic_area *a, int fd)
{
	struct vrnic_add_mem_request req = { 0 };
	struct vrnic_add_mem_reply rep;
	int err;

	if (a->s == s)
		return 0;
	if (a->s && !vrnic_dead(a->s))
		/* of another session that lives: there is none, but for the moment in which one dies */
		return EBUSY;
	err = vrnic_rpc(s, VRNIC_OP_ADD_MEM, &req, sizeof(req), &rep, sizeof(rep), fd, NULL, 0);
	if (err)
		return err;
	a->s = s;
	a->mem = rep.mem;
	return 0;
}

static void unlink_area(struct vrnic_area *a)
{
	struct vrnic_area **p;

	for (p = &areas; *p != a; p = &(*p)->next)
		;
	*p = a->next;
}

/* Ends an area without users that nobody can register in any more: area_lock is held. */
static void end_area(struct vrnic_area *a)
{
	unlink_area(a);
	if (a->s)
		vrnic_rpc_handle(a->s, VRNIC_OP_DEL_MEM, a->mem, NULL, 0); /* the session's end does it too */
	vrnic_close(a->fd);
	free(a);
}

static struct vrnic_area *allocated(const void *addr, size_t length, uint64_t *offset)
{
	struct vrnic_area *a;
	uintptr_t off;

	for (a = areas; a; a = a->next) {
		off = (uintptr_t)addr - (uintptr_t)a->addr;
		if (a->addr && !a->freed && (uintptr_t)addr >= (uintptr_t)a->addr && off <= a->len &&
		    length <= a->len - off) {
			*offset = off;
			return a;
		}
	}
	return NULL;
}

/*
 * The program's own memfds.
 */

/* Whether fd is memory that can be shared: a memfd that keeps its size, open for writing. */
static bool shareable(int fd, struct stat *st)
{
	int seals = fcntl(fd, F_GET_SEALS), flags;

	if (seals < 0 || !(seals & F_SEAL_SHRINK))
		return false;
	flags = fcntl(fd, F_GETFL);
	return flags >= 0 && (flags & O_ACCMODE) == O_RDWR && !fstat(fd, st) && S_ISREG(st->st_mode);
}

/*
 * Finds a file that can be shared among those that the process has open; with want, the one of that
 * device and number. A duplicate is returned, since the program may close its own meanwhile, or -1.
 */
static int open_memfd(const struct stat *want)
{
	DIR *dir = opendir("/proc/thread-self/fd");
	int fd = -1, looked = 0;
	struct dirent *e;
	struct stat st;

	while (dir && fd < 0 && looked++ < MAX_LOOKED && (e = readdir(dir))) {
		char *end;
		long n = strtol(e->d_name, &end, 10);

		if (*end || end == e->d_name || !shareable(n, &st))
			continue;
		fd = fcntl(n, F_DUPFD_CLOEXEC, 0);
		if (fd >= 0 &&
		    (!shareable(fd, &st) || (want && (st.st_dev != want->st_dev || st.st_ino != want->st_ino)))) {
			close(fd);
			fd = -1;
		}
	}
	if (dir)
		closedir(dir);
	return fd;
}

/*
 * Looks for one mapping, MAP_SHARED, that holds length octets at addr: the file's device and number
 * and the offset in it go to st and *offset.
 */
static bool shared_mapping(const void *addr, size_t length, struct stat *st, uint64_t *offset)
{
	struct vrnic_mapping map = { 0 };
	uintptr_t at = (uintptr_t)addr;
	struct vrnic_maps m;
	bool found = false;

	if (vrnic_maps_open(&m)) {
		while (vrnic_maps_next(&m, &map) && at >= map.hi)
			;
		found = at >= map.lo && at < map.hi && length <= map.hi - at && map.shared && map.ino;
	}
	vrnic_maps_close(&m);
	if (!found)
		return false;
	st->st_dev = map.dev;
	st->st_ino = map.ino;
	*offset = map.offset + (at - map.lo);
	return true;
}

/*
 * The area of the program's own memfd that is mapped at addr, shared with the daemon: area_lock is
 * held.
 */
static struct vrnic_area *find_own(struct vrnic_session *s, const void *addr, size_t length,
				   uint64_t *offset)
{
	struct vrnic_area *a = NULL;
	struct stat st;
	int fd;

	if (length < MIN_FOUND)
		return NULL;
	/* Programs that have no such memfd, nearly all, are spared the look at their mappings. */
	fd = open_memfd(NULL);
	if (fd < 0)
		return NULL;
	close(fd);
	if (!shared_mapping(addr, length, &st, offset))
		return NULL;
	fd = open_memfd(&st);
	if (fd < 0)
		return NULL;
	for (a = areas; a; a = a->next)
		if (!a->addr && a->s == s && a->dev == st.st_dev && a->ino == st.st_ino)
			goto out;
	if (fstat(fd, &st) || *offset > (uint64_t)st.st_size || length > (uint64_t)st.st_size - *offset)
		goto out;
	a = calloc(1, sizeof(*a));
	if (!a)
		goto out;
	a->fd = -1;
	a->len = st.st_size;
	a->dev = st.st_dev;
	a->ino = st.st_ino;
	if (share(s, a, fd)) {
		free(a);
		a = NULL;
		goto out;
	}
	a->next = areas;
	areas = a;
out:
	close(fd);
	return a;
}

struct vrnic_area *vrnic_area_find(struct vrnic_session *s, void *addr, size_t length,
				   uint32_t *mem, uint64_t *offset)
{
	struct vrnic_area *a;
	int old;

	pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &old);
	pthread_mutex_lock(&area_lock);
	a = allocated(addr, length, offset);
	if (!a)
		a = find_own(s, addr, length, offset);
	else if (share(s, a, a->fd))
		a = NULL; /* over a quota perhaps */
	if (a) {
		*mem = a->mem;
		a->users++;
	} else {
		*mem = 0;
		*offset = 0;
	}
	pthread_mutex_unlock(&area_lock);
	pthread_setcancelstate(old, NULL);
	return a;
}

void vrnic_area_put(struct vrnic_area *a)
{
	int old;

	if (!a)
		return;
	pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &old);
	pthread_mutex_lock(&area_lock);
	if (!--a->users && (!a->addr || a->freed))
		end_area(a);
	pthread_mutex_unlock(&area_lock);
	pthread_setcancelstate(old, NULL);
}

/*
 * For programs that know of vrnic.
 */

void *vrnic_alloc(size_t len)
{
	size_t page = sysconf(_SC_PAGESIZE);
	struct vrnic_area *a;
	int err;

	if (!len || len > SIZE_MAX / 2) {
		errno = EINVAL;
		return NULL;
	}
	a = calloc(1, sizeof(*a));
	if (!a)
		return NULL;
	a->len = (len + page - 1) & ~(page - 1);
	a->fd = memfd_create("vrnic", MFD_CLOEXEC | MFD_ALLOW_SEALING);
	if (a->fd < 0)
		goto fail;
	if (ftruncate(a->fd, a->len) ||
	    fcntl(a->fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL))
		goto fail;
	a->addr = mmap(NULL, a->len, PROT_READ | PROT_WRITE, MAP_SHARED, a->fd, 0);
	if (a->addr == MAP_FAILED)
		goto fail;
	pthread_mutex_lock(&area_lock);
	a->next = areas;
	areas = a;
	pthread_mutex_unlock(&area_lock);
	return a->addr;
fail:
	err = errno;
	vrnic_close(a->fd);
	free(a);
	errno = err;
	return NULL;
}

void vrnic_free(void *p)
{
	struct vrnic_area *a;
	int old;

	if (!p)
		return;
	pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &old);
	pthread_mutex_lock(&area_lock);
	for (a = areas; a; a = a->next) {
		if (a->addr != p || a->freed)
			continue;
		munmap(a->addr, a->len);
		a->freed = true; /* regions in it keep what the daemon has mapped */
		if (!a->users)
			end_area(a);
		break;
	}
	pthread_mutex_unlock(&area_lock);
	pthread_setcancelstate(old, NULL);
}
