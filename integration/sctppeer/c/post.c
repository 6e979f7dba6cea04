#include "post.h"
#include "link.h"
#include "text.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

// What waits for room in the send buffer.
struct pending {
	struct pending *next;
	uint16_t stream;
	uint32_t ppid;
	int flags;
	size_t len;
	uint8_t data[];
};
static struct pending *first, **last = &first;

int post(uint16_t stream, uint32_t ppid, int flags, const void *data, size_t len)
{
	struct pending *p;

	if (first == NULL) {
		int err = link_send(stream, ppid, flags, data, len);
		if (err != EAGAIN)
			return err;
	}
	p = malloc(sizeof(*p) + len);
	p->next = NULL;
	p->stream = stream;
	p->ppid = ppid;
	p->flags = flags;
	p->len = len;
	memcpy(p->data, data, len);
	*last = p;
	last = &p->next;
	return 0;
}

void send_pending(void)
{
	while (first != NULL) {
		struct pending *p = first;
		int err = link_send(p->stream, p->ppid, p->flags, p->data, p->len);

		if (err == EAGAIN)
			return;
		if (err != 0)
			say("unsent %s", strerror(err));
		first = p->next;
		if (first == NULL)
			last = &first;
		free(p);
	}
}
