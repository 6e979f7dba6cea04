/* Runs of pages in memfds. */
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/sysinfo.h>
#include <unistd.h>

#include "heap.h"

/* More of dirty pages than this are given back to the system when they are freed. */
#define MOST_DIRTY ((size_t)8 << 20)

/* Allocations beyond this have a memfd of their own. */
#define MOST_SHARED (HEAP_SLOT / 2)

/* What is larger comes from libc: a daemon does not map more of a program by default. */
#define MOST_LENT ((size_t)4 << 30)

/* A chunk is mapped in such steps, so that what is not used is in no core dump. */
#define MAP_STEP ((size_t)4 << 20)

#define MOST_ALIGN ((size_t)2 << 20)
#define MOST_CHUNKS 256

/*
 * Runs of its own class that are looked at for one that is long enough. Those of the next class
 * always are.
 */
#define MOST_LOOKED 32

/* After a chunk could not be made, so many allocations do not try. */
#define REST 64

uintptr_t heap_zone = -HEAP_ZONE;
size_t heap_page;
struct chunk *heap_chunks;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static bool frozen; /* lock */
static bool left;   /* lock: there are runs that are RUN_LEFT */
static struct chunk *slots[HEAP_SLOTS];
static struct chunk *spare; /* with nothing in use */
static unsigned int nchunks, rest;
static size_t dirty; /* pages */
static size_t most;

static void heap_lock(void) { pthread_mutex_lock(&lock); }
static void heap_unlock(void) { pthread_mutex_unlock(&lock); }

void heap_forked(void)
{
	pthread_mutex_init(&lock, NULL);
	dirty = 0;
	spare = NULL;
}

void heap_die(const char *why)
{
	syscall(SYS_write, 2, why, strlen(why));
	abort();
}

/* close(2) without a thread being cancelled in it. */
static void close_fd(int fd) { syscall(SYS_close, fd); }

static size_t pages_of(size_t size) { return (size + heap_page - 1) / heap_page; }

static uint32_t page_at(const struct chunk *c, const void *p)
{
	return ((uintptr_t)p - c->addr) / heap_page;
}

static void *at_page(const struct chunk *c, uint32_t i)
{
	return (void *)(c->addr + i * heap_page);
}

/*
 * Runs.
 */

static void set_run(struct chunk *c, uint32_t i, uint32_t len, uint8_t state)
{
	c->run[i + len - 1] = (struct run){ .len = len, .state = state };
	c->run[i].len = len;
	c->run[i].state = state;
	c->run[i].first = true;
}

static uint32_t *list_of(struct chunk *c, uint32_t len, uint8_t state)
{
	return &c->free[state == RUN_CLEAN][31 - __builtin_clz(len)];
}

static void link_run(struct chunk *c, uint32_t i, uint32_t len, uint8_t state)
{
	uint32_t *list = list_of(c, len, state);

	set_run(c, i, len, state);
	c->run[i].prev = NO_RUN;
	c->run[i].next = *list;
	if (*list != NO_RUN)
		c->run[*list].prev = i;
	*list = i;
	if (state == RUN_DIRTY)
		dirty += len;
}

static void unlink_run(struct chunk *c, uint32_t i)
{
	struct run *r = &c->run[i];

	if (r->prev == NO_RUN)
		*list_of(c, r->len, r->state) = r->next;
	else
		c->run[r->prev].next = r->next;
	if (r->next != NO_RUN)
		c->run[r->next].prev = r->prev;
	if (r->state == RUN_DIRTY)
		dirty -= r->len;
}

/*
 * Links a free run after having joined it with its neighbours of the same state. Returns where it
 * begins.
 */
static uint32_t join_run(struct chunk *c, uint32_t i, uint32_t len, uint8_t state)
{
	uint32_t end = i + len, n;

	c->run[i].first = false; /* unless it stays so */
	if (end < c->pages && c->run[end].state == state) {
		n = c->run[end].len;
		unlink_run(c, end);
		c->run[end].first = false;
		len += n;
	}
	if (i > 0 && c->run[i - 1].state == state) {
		n = c->run[i - 1].len;
		unlink_run(c, i - n);
		i -= n;
		len += n;
	}
	link_run(c, i, len, state);
	return i;
}

/* Pages that lie before and behind a run of n pages, aligned, in one that begins at i. */
static uint32_t skip_for(const struct chunk *c, uint32_t i, size_t align)
{
	uintptr_t addr = (uintptr_t)at_page(c, i);

	return align <= heap_page ? 0 : (((addr + align - 1) & ~(align - 1)) - addr) / heap_page;
}

static uint32_t find_run(struct chunk *c, uint32_t n, size_t align, uint8_t state)
{
	unsigned int class = 31 - __builtin_clz(n), looked;
	uint32_t i;

	for (; class < RUN_CLASSES; class++) {
		i = c->free[state == RUN_CLEAN][class];
		for (looked = 0; i != NO_RUN && looked < MOST_LOOKED; looked++, i = c->run[i].next)
			if (c->run[i].len >= n && skip_for(c, i, align) <= c->run[i].len - n)
				return i;
	}
	return NO_RUN;
}

/* Has the first n pages mapped. */
static bool map_to(struct chunk *c, uint32_t n)
{
	uint32_t step = MAP_STEP / heap_page;
	size_t len;
	void *p;

	if (n <= c->mapped)
		return true;
	n = (n + step - 1) / step * step;
	if (n > c->pages)
		n = c->pages;
	len = (n - c->mapped) * heap_page;
	if (!heap_own_fd(c)) {
		errno = EBADF;
		return false;
	}
	p = mmap(at_page(c, c->mapped), len, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED_NOREPLACE,
		 c->fd, (off_t)c->mapped * heap_page);
	if (p == MAP_FAILED)
		return false;
	/* a kernel that does not know the flag, and something is there */
	if (p != at_page(c, c->mapped)) {
		munmap(p, len);
		return false;
	}
	c->mapped = n;
	return true;
}

/* Takes n pages of a chunk into use, if there are such in that state. */
static void *take(struct chunk *c, uint32_t n, size_t align, uint8_t state)
{
	uint32_t i = find_run(c, n, align, state), len, skip;

	if (i == NO_RUN)
		return NULL;
	len = c->run[i].len;
	skip = skip_for(c, i, align);
	if (!map_to(c, i + skip + n))
		return NULL;
	unlink_run(c, i);
	if (skip)
		link_run(c, i, skip, state);
	if (len > skip + n)
		link_run(c, i + skip + n, len - skip - n, state);
	set_run(c, i + skip, n, RUN_USED);
	c->used += n;
	if (c == spare)
		spare = NULL;
	return at_page(c, i + skip);
}

/* Gives a dirty run back to the system. Returns the page behind the run that it is in then. */
static uint32_t clean_run(struct chunk *c, uint32_t i)
{
	uint32_t len = c->run[i].len;
	size_t size = len * heap_page;
	void *p = at_page(c, i);

	/* If the program has locked it: what libc maps for an allocation would not be locked any more. */
	if (madvise(p, size, MADV_REMOVE) &&
	    (!heap_own_fd(c) ||
	     mmap(p, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, c->fd,
		  (off_t)i * heap_page) != p ||
	     madvise(p, size, MADV_REMOVE)))
		return i + len;
	unlink_run(c, i);
	i = join_run(c, i, len, RUN_CLEAN);
	return i + c->run[i].len;
}

/* Gives all dirty runs back, which joins them with clean ones. */
static void clean_all(void)
{
	struct chunk *c;
	uint32_t i;

	for (c = heap_chunks; c; c = c->next)
		for (i = 0; i < c->pages && !c->inherited;)
			i = c->run[i].state == RUN_DIRTY ? clean_run(c, i) : i + c->run[i].len;
}

/*
 * Chunks.
 */

bool heap_own_fd(const struct chunk *c)
{
	struct stat st;

	return c->fd >= 0 && !fstat(c->fd, &st) && st.st_dev == c->dev && st.st_ino == c->ino;
}

void heap_close(struct chunk *c)
{
	if (heap_own_fd(c))
		close_fd(c->fd);
	c->fd = -1;
}

static rlim_t limit(int what)
{
	struct rlimit lim;

	return getrlimit(what, &lim) ? 0 : lim.rlim_cur;
}

/* A memfd as the daemon wants it, with a number that no program counts on. */
static int make_memfd(size_t size)
{
	rlim_t fds = limit(RLIMIT_NOFILE);
	int fd, high;

	/*
	 * Copies for forks would count against the address space too, and nothing of this against data;
	 * ftruncate would raise a signal.
	 */
	if (limit(RLIMIT_AS) != RLIM_INFINITY || limit(RLIMIT_DATA) != RLIM_INFINITY ||
	    limit(RLIMIT_FSIZE) < size)
		return -1;
	fd = memfd_create("vrnic-heap", MFD_CLOEXEC | MFD_ALLOW_SEALING);
	if (fd < 0)
		return -1;
	high = fcntl(fd, F_DUPFD_CLOEXEC, (int)((fds < 1024 ? fds : 1024) / 4 * 3));
	close_fd(fd);
	if (high >= 0 &&
	    (ftruncate(high, size) ||
	     fcntl(high, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL))) {
		close_fd(high);
		high = -1;
	}
	return high;
}

struct chunk *heap_find(uintptr_t addr) { return slots[(addr - heap_zone) / HEAP_SLOT]; }

static unsigned int slots_of(const struct chunk *c)
{
	return (c->pages * heap_page + HEAP_SLOT - 1) / HEAP_SLOT;
}

/* The first of so many slots that are free, or HEAP_SLOTS. */
static unsigned int free_slots(unsigned int n, unsigned int from)
{
	unsigned int i, have = 0;

	for (i = from; i < HEAP_SLOTS; i++) {
		have = slots[i] ? 0 : have + 1;
		if (have == n)
			return i + 1 - n;
	}
	return HEAP_SLOTS;
}

static size_t chunk_len(size_t pages) { return sizeof(struct chunk) + pages * sizeof(struct run); }

static struct chunk *new_chunk(size_t size, bool single)
{
	size_t pages = pages_of(size);
	unsigned int i, at;
	struct chunk *c;
	struct stat st;

	if (nchunks >= MOST_CHUNKS)
		return NULL;
	c = mmap(NULL, chunk_len(pages), PROT_READ | PROT_WRITE,
		 MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	if (c == MAP_FAILED)
		return NULL;
	c->pages = pages;
	c->single = single;
	memset(c->free, 0xff, sizeof(c->free));
	c->fd = make_memfd(pages * heap_page);
	if (c->fd < 0 || fstat(c->fd, &st))
		goto fail;
	c->dev = st.st_dev;
	c->ino = st.st_ino;
	/* Where something foreign is, further on. */
	for (at = free_slots(slots_of(c), 0); at < HEAP_SLOTS; at = free_slots(slots_of(c), at + 1)) {
		c->addr = heap_zone + at * HEAP_SLOT;
		if (map_to(c, 1))
			break;
		if (errno != EEXIST)
			goto fail;
	}
	if (at == HEAP_SLOTS)
		goto fail;
	for (i = 0; i < slots_of(c); i++)
		slots[at + i] = c;
	link_run(c, 0, pages, RUN_CLEAN);
	c->next = heap_chunks;
	heap_chunks = c;
	nchunks++;
	return c;
fail:
	if (c->fd >= 0)
		close_fd(c->fd);
	munmap(c, chunk_len(pages));
	return NULL;
}

void heap_release(struct chunk *c)
{
	unsigned int i, at = (c->addr - heap_zone) / HEAP_SLOT;
	struct chunk **p;
	uint32_t k;

	for (k = 0; k < c->pages && !c->inherited; k += c->run[k].len)
		if (c->run[k].state == RUN_DIRTY)
			dirty -= c->run[k].len;
	if (c == spare)
		spare = NULL;
	for (p = &heap_chunks; *p != c; p = &(*p)->next)
		;
	*p = c->next;
	nchunks--;
	for (i = 0; i < slots_of(c); i++)
		slots[at + i] = NULL;
	munmap((void *)c->addr, c->mapped * heap_page);
	heap_close(c);
	munmap(c, chunk_len(c->pages));
}

/*
 * Allocations.
 */

static void *take_any(uint32_t n, size_t align, uint8_t state)
{
	struct chunk *c;
	void *p = NULL;

	for (c = heap_chunks; c && !p; c = c->next)
		if (!c->single && !c->inherited)
			p = take(c, n, align, state);
	return p;
}

static void *take_new(size_t size, uint32_t n, size_t align, bool single)
{
	struct chunk *c;
	void *p = NULL;

	if (rest) {
		rest--;
		return NULL;
	}
	c = new_chunk(size, single);
	if (c)
		p = take(c, n, align, RUN_CLEAN);
	if (c && !p) /* not all of it can be mapped */
		heap_release(c);
	if (!p)
		rest = REST;
	return p;
}

void *heap_alloc(size_t size, size_t align, size_t room, bool zero)
{
	uint32_t n = pages_of(size);
	bool used = false; /* before */
	int err = errno;
	void *p = NULL;

	if (!size || size > most || align > MOST_ALIGN)
		return NULL;
	heap_lock();
	if (frozen) {
		heap_unlock();
		return NULL;
	}
	if (size > MOST_SHARED) {
		/* slots are aligned to what align is at most */
		p = take_new(room > most ? most : room, n, align, true);
	} else {
		p = take_any(n, align, RUN_DIRTY);
		used = p != NULL;
		if (!p)
			p = take_any(n, align, RUN_CLEAN);
		if (!p && dirty >= n) {
			clean_all();
			p = take_any(n, align, RUN_CLEAN);
		}
		if (!p)
			p = take_new(HEAP_SLOT, n, align, false);
	}
	heap_unlock();
	if (used && zero)
		memset(p, 0, size);
	errno = err;
	return p;
}

/* Without the lock: a handler of SIGABRT may allocate. */
static void __attribute__((noreturn)) misused(const char *why)
{
	heap_unlock();
	heap_die(why);
}

/* The chunk and the page of what heap_alloc gave out. */
static struct chunk *find_used(const void *p, uint32_t *i)
{
	struct chunk *c = heap_find((uintptr_t)p);

	if (!c || (uintptr_t)p % heap_page)
		misused("vrnic: free(): this is no address from malloc\n");
	*i = page_at(c, p);
	if (*i >= c->pages || c->run[*i].state != RUN_USED || !c->run[*i].first)
		misused("vrnic: free(): this is not allocated, or was freed before\n");
	return c;
}

/* Frees pages behind the first i of a run, or all of it. */
static void free_pages(struct chunk *c, uint32_t i, uint32_t len)
{
	c->used -= len;
	if (c->inherited) {
		set_run(c, i, len, RUN_CLEAN);
		madvise(at_page(c, i), len * heap_page, MADV_DONTNEED);
		if (!c->used)
			heap_release(c);
		return;
	}
	if (!c->used && (c->single || spare)) {
		set_run(c, i, len, RUN_CLEAN);
		heap_release(c);
		return;
	}
	if (!c->used)
		spare = c;
	i = join_run(c, i, len, RUN_DIRTY);
	if (dirty * heap_page > MOST_DIRTY)
		clean_run(c, i);
}

void heap_free(void *p)
{
	struct chunk *c;
	int err = errno;
	uint32_t i;

	heap_lock();
	c = find_used(p, &i);
	if (frozen) {
		left = true;
		c->run[i].state = RUN_LEFT;
	} else {
		free_pages(c, i, c->run[i].len);
	}
	heap_unlock();
	errno = err;
}

size_t heap_usable(void *p)
{
	struct chunk *c;
	uint32_t i, n;

	heap_lock();
	c = find_used(p, &i);
	n = c->run[i].len;
	heap_unlock();
	return n * heap_page;
}

/* Takes the free run behind a used one, which so gets longer. */
static bool grow(struct chunk *c, uint32_t i, uint32_t n)
{
	uint32_t len = c->run[i].len, end = i + len, more;
	uint8_t state;

	if (c->inherited || end >= c->pages || c->run[end].state == RUN_USED || c->run[end].len < n - len
	    || !map_to(c, i + n))
		return false;
	more = c->run[end].len;
	state = c->run[end].state;
	unlink_run(c, end);
	c->run[end].first = false;
	set_run(c, i, n, RUN_USED);
	c->used += n - len;
	if (len + more > n)
		link_run(c, i + n, len + more - n, state);
	return true;
}

bool heap_resize(void *p, size_t size)
{
	uint32_t n = pages_of(size), i, len;
	int err = errno;
	struct chunk *c;
	bool ok = true;

	if (!size || size > most)
		return false;
	heap_lock();
	c = find_used(p, &i);
	len = c->run[i].len;
	if (n != len && frozen) {
		ok = false;
	} else if (n > len) {
		ok = grow(c, i, n);
	} else if (n < len) {
		set_run(c, i, n, RUN_USED);
		free_pages(c, i + n, len - n);
	}
	heap_unlock();
	errno = err;
	return ok;
}

/*
 * Forks.
 */

void heap_freeze(void)
{
	heap_lock();
	frozen = true;
	heap_unlock();
}

/* Frees what is left of a chunk, which may be gone afterwards. */
static void free_left(struct chunk *c)
{
	uint32_t i, next, len;
	bool last;

	for (i = 0; i < c->pages; i = next) {
		len = c->run[i].len;
		next = i + len;
		if (c->run[i].state != RUN_LEFT)
			continue;
		/* What is free behind it may be joined with it. */
		while (next < c->pages && (c->run[next].state == RUN_DIRTY || c->run[next].state == RUN_CLEAN))
			next += c->run[next].len;
		c->run[i].state = RUN_USED;
		last = c->used == len; /* of all that is in use: the chunk may go with it */
		free_pages(c, i, len);
		if (last)
			return;
	}
}

void heap_thaw(void)
{
	struct chunk *c, *next;

	heap_lock();
	for (c = heap_chunks; left && c; c = next) {
		next = c->next;
		free_left(c);
	}
	frozen = left = false;
	heap_unlock();
}

/*
 * The beginning.
 */

/*
 * Whether the system gives out memory that it may not have. Where it does not, pages of a memfd
 * could be missing when they are touched.
 */
static bool overcommits(void)
{
	int fd = open("/proc/sys/vm/overcommit_memory", O_RDONLY | O_CLOEXEC);
	char mode = '0';

	if (fd < 0)
		return true;
	if (syscall(SYS_read, fd, &mode, 1) != 1)
		mode = '0';
	close_fd(fd);
	return mode != '2';
}

/*
 * A part of the address space that nobody uses: below the programs and the mappings of a process
 * with 47 bits or more.
 */
static bool find_zone(void)
{
	const uintptr_t low = (uintptr_t)1 << 44, places = 128;
	uintptr_t at, mix = 0;
	unsigned int i;
	void *p;

	if (getrandom(&mix, sizeof(mix), GRND_NONBLOCK) != sizeof(mix))
		mix = (uintptr_t)&mix / 16; /* the stack's is random too */
	for (i = 0; i < 16; i++, mix = mix * 6364136223846793005u + 1442695040888963407u) {
		at = low + (mix >> 33) % places * HEAP_ZONE + (mix >> 13) % 1024 * HEAP_SLOT;
		p = mmap((void *)at, HEAP_ZONE, PROT_NONE,
			 MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED_NOREPLACE, -1, 0);
		if (p == MAP_FAILED)
			continue;
		munmap(p, HEAP_ZONE);
		if ((uintptr_t)p == at) {
			heap_zone = at;
			return true;
		}
	}
	return false;
}

bool heap_start(void)
{
	struct sysinfo info;

	heap_page = sysconf(_SC_PAGESIZE);
	if (heap_page > HEAP_LEAST || sysinfo(&info) || !overcommits())
		return false;
	/* More than there is libc refuses, or its kernel. */
	most = (size_t)info.totalram * info.mem_unit / 2;
	if (most > MOST_LENT)
		most = MOST_LENT;
	return find_zone();
}
