/*
 * Functions that receive. Of a pair there is but one end, however the connection has ended: that of
 * one that was reset is an error, or what has come of a file would be taken for all of it.
 */
#undef _FORTIFY_SOURCE
#include "rspreload.h"

/* What a call returns that got r octets. */
static ssize_t end_of(int fd, ssize_t r)
{
	struct rs_name n;
	int err;

	if (r || !rs_is_ours(fd, &n) || n.kind != RS_KIND_CONNECTS)
		return r;
	err = rs_end_said(fd, n.id);
	if (!err)
		return 0;
	errno = err;
	return -1;
}

EXPORT ssize_t read(int fd, void *buf, size_t len)
{
	ssize_t r = rs_next()->read(fd, buf, len);

	return len ? end_of(fd, r) : r;
}

EXPORT ssize_t readv(int fd, const struct iovec *iov, int n)
{
	return end_of(fd, rs_next()->readv(fd, iov, n));
}

EXPORT ssize_t recv(int fd, void *buf, size_t len, int flags)
{
	ssize_t r = rs_next()->recv(fd, buf, len, flags);

	return len ? end_of(fd, r) : r;
}

EXPORT ssize_t recvfrom(int fd, void *buf, size_t len, int flags, struct sockaddr *addr,
			socklen_t *alen)
{
	ssize_t r = rs_next()->recvfrom(fd, buf, len, flags, addr, alen);

	return len ? end_of(fd, r) : r;
}

EXPORT ssize_t recvmsg(int fd, struct msghdr *m, int flags)
{
	return end_of(fd, rs_next()->recvmsg(fd, m, flags));
}

#ifdef __GLIBC__
/* What the compiler makes of them where it checks lengths (_FORTIFY_SOURCE). */
void __chk_fail(void) __attribute__((noreturn));

EXPORT ssize_t __read_chk(int fd, void *buf, size_t len, size_t room);
EXPORT ssize_t __read_chk(int fd, void *buf, size_t len, size_t room)
{
	if (len > room)
		__chk_fail();
	return read(fd, buf, len);
}

EXPORT ssize_t __recv_chk(int fd, void *buf, size_t len, size_t room, int flags);
EXPORT ssize_t __recv_chk(int fd, void *buf, size_t len, size_t room, int flags)
{
	if (len > room)
		__chk_fail();
	return recv(fd, buf, len, flags);
}

EXPORT ssize_t __recvfrom_chk(int fd, void *buf, size_t len, size_t room, int flags,
			      struct sockaddr *addr, socklen_t *alen);
EXPORT ssize_t __recvfrom_chk(int fd, void *buf, size_t len, size_t room, int flags,
			      struct sockaddr *addr, socklen_t *alen)
{
	if (len > room)
		__chk_fail();
	return recvfrom(fd, buf, len, flags, addr, alen);
}
#endif
