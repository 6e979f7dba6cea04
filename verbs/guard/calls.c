/*
 * System calls that are given memory. Of a page that the program cannot access the kernel says
 * EFAULT: so it is given back before, and what reads it is noted.
 */
#include <dlfcn.h>
#include <errno.h>
#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include "guard.h"

/*
 * Reads what a call is given as the kernel would: false, and it says EFAULT itself. Where the
 * kernel does not let it the program is believed.
 */
static bool look_at(void *to, const void *from, size_t n)
{
	struct iovec here = { to, n }, there = { (void *)from, n };
	long got;

	guard_open(from, n);
	got = syscall(SYS_process_vm_readv, getpid(), &here, 1, &there, 1, 0);
	if (got < 0 && errno != EFAULT) {
		memcpy(to, from, n);
		return true;
	}
	return got == (long)n;
}

#define TOGETHER 16

static void touch_all(const struct iovec *iov, int n, bool reads)
{
	struct iovec some[TOGETHER];
	int i, k, err = errno;

	for (; n > 0 && n <= IOV_MAX; iov += k, n -= k) {
		k = n < TOGETHER ? n : TOGETHER;
		if (!look_at(some, iov, (size_t)k * sizeof(*iov)))
			break;
		for (i = 0; i < k; i++)
			guard_touch(some[i].iov_base, some[i].iov_len, reads);
	}
	errno = err;
}

static void touch_message(const struct msghdr *m, bool reads)
{
	struct msghdr h;
	int err = errno;

	if (look_at(&h, m, sizeof(h)) && h.msg_iovlen <= IOV_MAX)
		touch_all(h.msg_iov, (int)h.msg_iovlen, reads);
	errno = err;
}

/* One of them, with what it does before. */
#define CALL(type, name, params, args, before) \
	GUARD_EXPORT type name params \
	{ \
		static __typeof__(&name) next_; \
\
		if (!next_) \
			next_ = (__typeof__(next_))dlsym(RTLD_NEXT, #name); \
		before; \
		return next_ args; \
	}

#define READS true
#define FILLS false

CALL(ssize_t, read, (int fd, void *p, size_t n), (fd, p, n), guard_touch(p, n, FILLS))
CALL(ssize_t, pread, (int fd, void *p, size_t n, off_t o), (fd, p, n, o),
     guard_touch(p, n, FILLS))
CALL(ssize_t, readv, (int fd, const struct iovec *v, int n), (fd, v, n), touch_all(v, n, FILLS))
CALL(ssize_t, preadv, (int fd, const struct iovec *v, int n, off_t o), (fd, v, n, o),
     touch_all(v, n, FILLS))
CALL(ssize_t, recv, (int fd, void *p, size_t n, int f), (fd, p, n, f), guard_touch(p, n, FILLS))
CALL(ssize_t, recvmsg, (int fd, struct msghdr *m, int f), (fd, m, f), touch_message(m, FILLS))
CALL(size_t, fread, (void *p, size_t n, size_t k, FILE *f), (p, n, k, f),
     guard_touch(p, n * k, FILLS))
CALL(ssize_t, write, (int fd, const void *p, size_t n), (fd, p, n), guard_touch(p, n, READS))
CALL(ssize_t, pwrite, (int fd, const void *p, size_t n, off_t o), (fd, p, n, o),
     guard_touch(p, n, READS))
CALL(ssize_t, writev, (int fd, const struct iovec *v, int n), (fd, v, n), touch_all(v, n, READS))
CALL(ssize_t, pwritev, (int fd, const struct iovec *v, int n, off_t o), (fd, v, n, o),
     touch_all(v, n, READS))
CALL(ssize_t, send, (int fd, const void *p, size_t n, int f), (fd, p, n, f),
     guard_touch(p, n, READS))
CALL(ssize_t, sendmsg, (int fd, const struct msghdr *m, int f), (fd, m, f),
     touch_message(m, READS))
CALL(size_t, fwrite, (const void *p, size_t n, size_t k, FILE *f), (p, n, k, f),
     guard_touch(p, n * k, READS))

#ifdef __GLIBC__ /* which has an address that can be one of several types there */
#define ADDRESS __SOCKADDR_ARG
#define CONST_ADDRESS __CONST_SOCKADDR_ARG
#else
#define ADDRESS struct sockaddr *
#define CONST_ADDRESS const struct sockaddr *
#endif

CALL(ssize_t, recvfrom, (int fd, void *p, size_t n, int f, ADDRESS a, socklen_t *len),
     (fd, p, n, f, a, len), guard_touch(p, n, FILLS))
CALL(ssize_t, sendto, (int fd, const void *p, size_t n, int f, CONST_ADDRESS a, socklen_t len),
     (fd, p, n, f, a, len), guard_touch(p, n, READS))

#ifdef __GLIBC__ /* names of the same, of large files and of checked programs */
CALL(ssize_t, pread64, (int fd, void *p, size_t n, off64_t o), (fd, p, n, o),
     guard_touch(p, n, FILLS))
CALL(ssize_t, pwrite64, (int fd, const void *p, size_t n, off64_t o), (fd, p, n, o),
     guard_touch(p, n, READS))
CALL(ssize_t, preadv64, (int fd, const struct iovec *v, int n, off64_t o), (fd, v, n, o),
     touch_all(v, n, FILLS))
CALL(ssize_t, pwritev64, (int fd, const struct iovec *v, int n, off64_t o), (fd, v, n, o),
     touch_all(v, n, READS))

ssize_t __read_chk(int fd, void *p, size_t n, size_t room);
ssize_t __pread_chk(int fd, void *p, size_t n, off_t o, size_t room);
ssize_t __pread64_chk(int fd, void *p, size_t n, off64_t o, size_t room);
ssize_t __recv_chk(int fd, void *p, size_t n, size_t room, int f);
size_t __fread_chk(void *p, size_t room, size_t n, size_t k, FILE *f);

CALL(ssize_t, __read_chk, (int fd, void *p, size_t n, size_t room), (fd, p, n, room),
     guard_touch(p, n, FILLS))
CALL(ssize_t, __pread_chk, (int fd, void *p, size_t n, off_t o, size_t room), (fd, p, n, o, room),
     guard_touch(p, n, FILLS))
CALL(ssize_t, __pread64_chk, (int fd, void *p, size_t n, off64_t o, size_t room),
     (fd, p, n, o, room), guard_touch(p, n, FILLS))
CALL(ssize_t, __recv_chk, (int fd, void *p, size_t n, size_t room, int f), (fd, p, n, room, f),
     guard_touch(p, n, FILLS))
CALL(size_t, __fread_chk, (void *p, size_t room, size_t n, size_t k, FILE *f), (p, room, n, k, f),
     guard_touch(p, n * k, FILLS))
#endif

/* ---- what becomes of memory ---- */

CALL(int, mlock, (const void *p, size_t n), (p, n), guard_open(p, n))
CALL(int, madvise, (void *p, size_t n, int advice), (p, n, advice), guard_open(p, n))

static __thread bool forking __attribute__((tls_model("initial-exec")));

void guard_forking(bool now) { forking = now; }

#define FORGET(p, n) \
	do { \
		if (!forking) \
			guard_forget_pages(p, n); \
	} while (0)

CALL(void *, mmap, (void *p, size_t n, int prot, int flags, int fd, off_t o),
     (p, n, prot, flags, fd, o), if (flags & MAP_FIXED) FORGET(p, n))
#ifdef __GLIBC__
CALL(void *, mmap64, (void *p, size_t n, int prot, int flags, int fd, off64_t o),
     (p, n, prot, flags, fd, o), if (flags & MAP_FIXED) FORGET(p, n))
#endif

GUARD_EXPORT int mprotect(void *p, size_t n, int prot)
{
	static int (*next_)(void *p, size_t n, int prot);

	if (!next_)
		next_ = (__typeof__(next_))dlsym(RTLD_NEXT, "mprotect");
	FORGET(p, n);
	if (prot != (PROT_READ | PROT_WRITE) && !forking)
		guard_never(p, n);
	return next_(p, n, prot);
}

GUARD_EXPORT void *mremap(void *p, size_t old, size_t size, int flags, ...)
{
	static void *(*next_)(void *p, size_t old, size_t size, int flags, void *to);
	void *to = NULL;
	va_list args;

	if (!next_)
		next_ = (__typeof__(next_))dlsym(RTLD_NEXT, "mremap");
	if (flags & MREMAP_FIXED) {
		va_start(args, flags);
		to = va_arg(args, void *);
		va_end(args);
		FORGET(to, size);
	}
	FORGET(p, old);
	return next_(p, old, size, flags, to);
}
