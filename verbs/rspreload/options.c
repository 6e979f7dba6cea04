/* Options of sockets, of which those of TCP and IP are kept by rsocketd. */
#include <netinet/tcp.h>

#include "rspreload.h"

static int tell(const struct rs_name *n, int level, int name, const void *val, socklen_t len)
{
	struct rs_ask q = { .op = RS_OP_SET, .id = n->id, .level = level, .name = name, .len = len };
	struct rs_answer a;

	if (len > sizeof(q.value)) {
		errno = EINVAL;
		return -1;
	}
	memcpy(q.value, val, len);
	/* of a connection that is over there is nothing to set */
	return rs_ask(&q, -1, &a, NULL) && errno != ENOENT && errno != ECONNREFUSED ? -1 : 0;
}

EXPORT int setsockopt(int fd, int level, int name, const void *val, socklen_t len)
{
	int r = rs_next()->setsockopt(fd, level, name, val, len);
	struct rs_name n;

	if (r && errno != EOPNOTSUPP && errno != ENOPROTOOPT)
		return r;
	if (r ? rs_is_ours(fd, &n) :
		level == SOL_SOCKET && name == SO_LINGER && rs_is_ours(fd, &n))
		return tell(&n, level, name, val, len);
	return r;
}

static int ask(const struct rs_name *n, int level, int name, void *val, socklen_t *len)
{
	struct rs_ask q = { .op = RS_OP_GET, .id = n->id, .level = level, .name = name,
			    .len = *len < RS_VALUE ? *len : RS_VALUE };
	struct rs_answer a = { .len = 0 };

	if (rs_ask(&q, -1, &a, NULL)) {
		if (errno != ENOENT && errno != ECONNREFUSED)
			return -1;
		a = (struct rs_answer){ .len = q.len }; /* it is over: nothing is set */
	}
	if (*len > a.len)
		*len = a.len;
	memcpy(val, a.value, *len);
	return 0;
}

/* What the kernel says of a pair, for what the program takes it for. */
static void correct(int fd, int name, int *value)
{
	struct rs_name n;
	int err;

	if (!rs_is_ours(fd, &n))
		return;
	switch (name) {
	case SO_DOMAIN:
		*value = n.family;
		break;
	case SO_TYPE:
		*value = SOCK_STREAM;
		break;
	case SO_PROTOCOL:
		*value = IPPROTO_TCP;
		break;
	case SO_ACCEPTCONN:
		*value = n.kind == RS_KIND_LISTENS;
		break;
	case SO_ERROR:
		err = rs_verdict(fd);
		if (*value && err > 0)
			*value = err;
		break;
	}
}

EXPORT int getsockopt(int fd, int level, int name, void *val, socklen_t *len)
{
	int r = rs_next()->getsockopt(fd, level, name, val, len), value;
	struct rs_name n;

	if (r) {
		if ((errno == EOPNOTSUPP || errno == ENOPROTOOPT) && rs_is_ours(fd, &n))
			return ask(&n, level, name, val, len);
		return r;
	}
	if (level == SOL_SOCKET && *len == sizeof(value) &&
	    (name == SO_DOMAIN || name == SO_TYPE || name == SO_PROTOCOL || name == SO_ACCEPTCONN ||
	     name == SO_ERROR)) {
		memcpy(&value, val, sizeof(value));
		/* what a socket of the kernel's says needs no second look */
		if (name == SO_ERROR ? value : name == SO_DOMAIN ? value == AF_UNIX :
		    name == SO_TYPE ? value == SOCK_SEQPACKET : !value)
			correct(fd, name, &value);
		memcpy(val, &value, sizeof(value));
	}
	return 0;
}
