/* The order in which objects end. */
#include <string.h>

#include "check.h"

/* How many of those that hang on an object are shown. */
#define SHOWN 3

struct hanging {
	const struct object *on;
	struct report *r;
	bool lost; /* they are told of here, and not as leaks again */
	uint64_t n;
};

static void hangs(struct object *o, void *arg)
{
	struct hanging *h = arg;
	int i;

	for (i = 0; i < OBJECT_USES; i++)
		if (o->uses[i] == h->on)
			break;
	/* what is only an id's implies nothing that the program could end */
	if (i == OBJECT_USES || o->kind == KIND_EVENT || o->generation != book_generation())
		return;
	if (h->r && h->n < SHOWN)
		report_object(h->r, "hangs", o);
	o->told |= h->lost;
	h->n++;
}

bool destroy_hangs(const struct object *o)
{
	struct hanging h = { .on = o };
	enum kind k;

	for (k = 0; k < KINDS; k++)
		book_each(k, hangs, &h);
	return h.n;
}

void destroy_tell(const char *what, const char *call, const struct object *o,
		  const struct site *site)
{
	struct hanging h = { .on = o };
	struct report r;
	enum kind k;

	for (k = 0; k < KINDS; k++)
		book_each(k, hangs, &h);
	if (!h.n || !report_begin(&r, what, site))
		return;
	report_text(&r, "call", call);
	report_number(&r, "hanging", h.n);
	report_site(&r, "here", site);
	report_object(&r, "object", o);
	h.n = 0;
	h.r = &r;
	h.lost = !strcmp(what, "closed");
	for (k = 0; k < KINDS; k++)
		book_each(k, hangs, &h);
	report_send(&r);
}
