/*
 * Included in front of every file (-include): the libraries, built with any glibc, load with those
 * from 2.28 on. Symbols that 2.34 has moved from libpthread and libdl into libc are taken in their
 * older versions, and what is new is not called. A test holds the libraries to it.
 */
#ifndef VRNIC_GLIBC_H
#define VRNIC_GLIBC_H

#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#ifdef __GLIBC__
#ifdef __x86_64__
#define VRNIC_OLD(name) __asm__(".symver " #name "," #name "@GLIBC_2.2.5")
#define VRNIC_OLD_CANCEL(name) __asm__(".symver " #name "," #name "@GLIBC_2.3.3")
#else
#define VRNIC_OLD(name) __asm__(".symver " #name "," #name "@GLIBC_2.17")
#define VRNIC_OLD_CANCEL(name) VRNIC_OLD(name)
#endif
VRNIC_OLD(dlopen);
VRNIC_OLD(dlclose);
VRNIC_OLD(dlsym);
VRNIC_OLD(dladdr);
VRNIC_OLD(pthread_create);
VRNIC_OLD(pthread_attr_setstacksize);
VRNIC_OLD(__libc_start_main);
VRNIC_OLD(pthread_mutex_trylock);
VRNIC_OLD(pthread_once);
#ifndef VRNIC_HAS_SIGMASK /* that of guard/segv.c is its own */
VRNIC_OLD(pthread_sigmask);
#endif
VRNIC_OLD(pthread_rwlock_init);
VRNIC_OLD(pthread_rwlock_rdlock);
VRNIC_OLD(pthread_rwlock_unlock);
VRNIC_OLD(pthread_rwlock_wrlock);
VRNIC_OLD_CANCEL(__pthread_register_cancel);
VRNIC_OLD_CANCEL(__pthread_unregister_cancel);
VRNIC_OLD_CANCEL(__pthread_unwind_next);

/* The kernel's structure is that of libc, in 64 bits. */
static inline int vrnic_fstat(int fd, struct stat *st)
{
	return (int)syscall(SYS_fstat, fd, st);
}
#define fstat vrnic_fstat
#endif

#endif
