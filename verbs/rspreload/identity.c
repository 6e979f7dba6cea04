/* What a descriptor is. */
#include <poll.h>

#include "rspreload.h"

static bool named(int (*get)(int, struct sockaddr *, socklen_t *), int fd, struct rs_name *n)
{
	struct sockaddr_un a;
	socklen_t len = sizeof(a);
	int err = errno;
	bool yes = !get(fd, (struct sockaddr *)&a, &len) && len <= sizeof(a) &&
		   rs_name_unpack(&a, len, n);

	errno = err;
	return yes;
}

bool rs_is_ours(int fd, struct rs_name *n) { return named(rs_next()->getsockname, fd, n); }

int rs_verdict(int fd)
{
	struct rs_name n;

	if (!named(rs_next()->getpeername, fd, &n) || n.kind != RS_KIND_VERDICT)
		return -1;
	return n.err;
}

int rs_end_said(int fd, uint64_t id)
{
	struct pollfd p = { .fd = fd };
	int err = rs_verdict(fd);

	if (err >= 0)
		return err;
	/* the other direction goes on; or rsocketd, which says first how it ends, has not ended it */
	if (poll(&p, 1, 0) <= 0 || rs_is_known(id))
		return 0;
	err = rs_verdict(fd); /* what is not known any more has been said before */
	return err < 0 ? ECONNRESET : err; /* rsocketd itself has gone */
}

static int option(int fd, int name)
{
	socklen_t len = sizeof(int);
	int value = -1, err = errno;

	if (rs_next()->getsockopt(fd, SOL_SOCKET, name, &value, &len))
		value = -1;
	errno = err;
	return value;
}

bool rs_is_stream(int fd, int *family)
{
	int protocol;

	*family = option(fd, SO_DOMAIN);
	if ((*family != AF_INET && *family != AF_INET6) || option(fd, SO_TYPE) != SOCK_STREAM)
		return false;
	protocol = option(fd, SO_PROTOCOL);
	return protocol == IPPROTO_TCP;
}
