/*
 * Pages that are the device's. What a receive or an RDMA Read is to put somewhere a program has not
 * read before it knows that the request is over: until then the pages that lie wholly in its
 * buffer, and in that of no other request, cannot be accessed. Who reads there all the same is told
 * of, and finds the page as it was: segv.c, and calls.c for system calls. A right program never
 * does, so nothing of this happens to it.
 *
 * The daemon writes there as ever: what is lent by a mapping of its own, other memory by
 * /proc/self/mem, for which protection does not count. The program's own library says before it
 * does. What requests there are, and when they are over, is for who uses this to know.
 */
#ifndef VRNIC_GUARD_H
#define VRNIC_GUARD_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define GUARD_EXPORT __attribute__((visibility("default")))

/* What a page is. */
#define GUARD_MAY   (1u << 24) /* the daemon can write there when the program cannot */
#define GUARD_NEVER (1u << 25) /* or that is not known */
#define GUARD_PEERS (1u << 26) /* peers may write there by themselves */

/*
 * pages.c, of one thread at a time. guard_start comes first: f is told who reads a page that is
 * taken, in the handler of a signal at pc, or by a call, and then pc is NULL.
 */
void guard_start(void (*f)(uintptr_t addr, const void *pc));
bool guard_mark(const void *p, size_t n, uint32_t set);
/* A request is to have a buffer, and has it no more. What others have of its pages they lose. */
void guard_use(const void *p, size_t n);
void guard_unuse(const void *p, size_t n);
/*
 * Takes what pages of a buffer in use are nobody else's and not of the kind of not: how many runs.
 * They go back by guard_release, and their number by guard_released.
 */
uint32_t guard_hold(const void *p, size_t n, uint32_t not);
void guard_release(const void *p, size_t n);
void guard_released(uint32_t n);

/* regions.c, likewise: memory is registered, which is lent or not, or which peers may write. */
void guard_region(const void *p, size_t n, bool lent, bool peers);

/*
 * Of any thread: who comes next may use the memory; it has another life, or all of its pages have,
 * as the kernel takes them; it is of its own kind.
 */
void guard_open(const void *p, size_t n);
void guard_forget(const void *p, size_t n);
void guard_forget_pages(const void *p, size_t n);
void guard_never(const void *p, size_t n);
/* A system call is given it, which reads it or not. */
void guard_touch(const void *p, size_t n, bool reads);

/* calls.c: this thread forks, and the memory that it lends is made anew meanwhile. */
void guard_forking(bool now);

/* segv.c: what is not fault's is the program's. False: nobody would see it. */
bool segv_watch(bool (*fault)(uintptr_t addr, bool reads, const void *pc));

#endif
