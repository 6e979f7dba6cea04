/*
 * Options that a Unix socket does not have. The kernel's socket that the program has made keeps
 * them, as it would for TCP, and says which there are; those that mean something over RDMA are set
 * there, too.
 */
#include <errno.h>
#include <netinet/tcp.h>

#include "rsocketd.h"

/* One that was accepted has none yet. */
static int keeper(struct socket *s)
{
	if (s->kernel < 0)
		s->kernel = socket(s->family, SOCK_STREAM | SOCK_CLOEXEC, 0);
	return s->kernel;
}

int option_set(struct socket *s, const struct rs_ask *q)
{
	if (keeper(s) < 0 || setsockopt(s->kernel, q->level, q->name, q->value, q->len))
		return -errno;
	(void)rsetsockopt(s->rs, q->level, q->name, q->value, q->len); /* most there are not */
	return 0;
}

int option_get(struct socket *s, const struct rs_ask *q, struct rs_answer *a)
{
	socklen_t len = q->len;

	/* what is so of the connection itself */
	if (q->level == IPPROTO_TCP && (q->name == TCP_INFO || q->name == TCP_MAXSEG)) {
		if (rgetsockopt(s->rs, q->level, q->name, a->value, &len))
			return -errno;
	} else if (keeper(s) < 0 || getsockopt(s->kernel, q->level, q->name, a->value, &len)) {
		return -errno;
	}
	a->len = len;
	return 0;
}
