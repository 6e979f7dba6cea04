/*
 * An extension to verbs, for programs that know of vrnic. libibverbs.so.1 of vrnic has it; look it
 * up with dlsym(3), so that the program runs on other devices too:
 *
 *	void *(*alloc)(size_t) = dlsym(RTLD_DEFAULT, "vrnic_alloc");
 *	void *buf = alloc ? alloc(len) : malloc(len);
 */
#ifndef VRNIC_ALLOC_H
#define VRNIC_ALLOC_H

#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

/*
 * Allocates len octets, zero, at the start of a page. Memory regions that are registered within it
 * are shared with the daemon, which then needs no system call to move data to and from them. What
 * is allocated takes a file descriptor, and a session has room for 64 of them and 4 GiB in all by
 * default, so make few and large ones; what is beyond that works as other memory does. The child of
 * a fork has the same memory, not a copy. NULL with errno.
 */
__attribute__((visibility("default"))) void *vrnic_alloc(size_t len);

/* Frees what vrnic_alloc returned; NULL is nothing. Deregister the memory regions in it before. */
__attribute__((visibility("default"))) void vrnic_free(void *p);

#ifdef __cplusplus
}
#endif

#endif
