/* Memory that a call was given, in pieces. */
#include <limits.h>
#include <string.h>

#include "socket.h"

bool rs_cursor_init(struct rs_cursor *c, const struct iovec *iov, size_t n)
{
	size_t i;

	*c = (struct rs_cursor){ .iov = iov, .n = n };
	for (i = 0; i < n; i++) {
		if (iov[i].iov_len > SSIZE_MAX - c->left)
			return false;
		c->left += iov[i].iov_len;
	}
	return true;
}

/* The next piece that is whole in memory, len at most. */
static void *next(struct rs_cursor *c, size_t len, size_t *got)
{
	void *p;

	while (c->skip == c->iov->iov_len) {
		c->iov++;
		c->n--;
		c->skip = 0;
	}
	p = (char *)c->iov->iov_base + c->skip;
	*got = c->iov->iov_len - c->skip;
	if (*got > len)
		*got = len;
	c->skip += *got;
	c->left -= *got;
	return p;
}

void rs_copy_out(struct rs_cursor *c, void *to, size_t len)
{
	size_t got;
	void *p;

	for (; len; len -= got) {
		p = next(c, len, &got);
		memcpy(to, p, got);
		to = (char *)to + got;
	}
}

void rs_copy_in(struct rs_cursor *c, const void *from, size_t len)
{
	size_t got;
	void *p;

	for (; len; len -= got) {
		p = next(c, len, &got);
		memcpy(p, from, got);
		from = (const char *)from + got;
	}
}
