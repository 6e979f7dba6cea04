/*
 * libvrnic-heap.so: the large and the page-aligned allocations of a program out of memory that can
 * be lent to the daemon.
 *
 * Registration of memory that lies in a memfd of the program costs the daemon a mapping, and
 * messages a copy each; other memory is reached by system calls. Programs register what malloc and
 * posix_memalign gave them, so this library, preloaded by `vrnic exec --lend-heap`, takes those out
 * of memfds. It knows nothing of verbs: libibverbs.so.1 finds the memfds as it finds those that
 * programs make.
 *
 * malloc.c has the functions of malloc(3), pages.c the pages, fork.c what a fork takes.
 */
#ifndef VRNIC_HEAP_H
#define VRNIC_HEAP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

/* From here on an allocation is lent; page-aligned ones always are. */
#define HEAP_LEAST ((size_t)64 << 10)

/*
 * All that is lent is in one range of addresses, the zone, of which nothing is reserved: other
 * mappings do not come there unless somebody asks for those very addresses. It is divided into
 * slots. A chunk is one memfd, mapped from the beginning of a slot on.
 */
#define HEAP_SLOT ((size_t)64 << 20)
#define HEAP_SLOTS 4096
#define HEAP_ZONE (HEAP_SLOT * HEAP_SLOTS)

extern uintptr_t heap_zone; /* where it begins: while there is none, where no program has memory */

static inline bool heap_has(const void *p) { return (uintptr_t)p - heap_zone < HEAP_ZONE; }

/* What pages are in: at the first and the last page of each such run of a chunk. */
enum run_state {
	RUN_USED = 1,
	RUN_DIRTY, /* free, with the octets of whoever had it */
	RUN_CLEAN, /* free, and reads as zeros */
	/* freed while the heap was frozen: the first page of a run that counts as used until the thaw */
	RUN_LEFT,
};

struct run {
	uint32_t len; /* in pages */
	uint32_t next, prev; /* of its list, if it is free: page numbers */
	uint8_t state;
	bool first; /* this is the first page of it */
};

#define RUN_CLASSES 32
#define NO_RUN UINT32_MAX

struct chunk {
	struct chunk *next;
	uintptr_t addr;
	uint32_t pages;	 /* of the memfd */
	uint32_t mapped; /* of these, from the first on */
	uint32_t used;
	bool single;	 /* for one allocation */
	/* private memory, copied when this process was forked: nothing is taken out of it any more */
	bool inherited;
	int fd;
	dev_t dev;	 /* fd's: the program may close what it has not opened */
	ino_t ino;
	void *copy;	 /* while a fork is under way */
	uint32_t free[2][RUN_CLASSES]; /* lists of dirty and of clean runs */
	struct run run[];
};

/*
 * While the heap is frozen nothing of it changes, so that a fork can copy it without a lock: other
 * allocations come from libc, and what is freed is noted. A lock would not do: libc takes its own
 * for a fork, and a thread that has one of those may allocate.
 */
void heap_freeze(void);
void heap_thaw(void);

/* The heap is frozen, or its lock is held, for what follows down to heap_find. */
extern struct chunk *heap_chunks;
extern size_t heap_page;
bool heap_own_fd(const struct chunk *c); /* c->fd is still the memfd */
void heap_close(struct chunk *c);
void heap_release(struct chunk *c); /* frees all of it */
void heap_forked(void); /* in the child, still frozen: another lock, and no dirty pages */
struct chunk *heap_find(uintptr_t addr);

bool heap_start(void); /* finds a zone */
bool heap_watch_forks(void);

/*
 * Memory of the zone, or NULL if size cannot come from there. align is a power of two or 0. room is
 * how much of the address space is kept for it to grow, at least size. errno stays.
 */
void *heap_alloc(size_t size, size_t align, size_t room, bool zero);
void heap_free(void *p);
size_t heap_usable(void *p);
bool heap_resize(void *p, size_t size); /* where it is, or false */
void heap_die(const char *why) __attribute__((noreturn));

#endif
