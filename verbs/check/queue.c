/* Requests that are posted and have not been polled, in the order of posting. */
#include <stdlib.h>
#include <string.h>

#include "check.h"

/* Of a longer SGE the ends are summed, and a word of each part of the second size between. */
#define SUM_WHOLE 16384
#define SUM_STEP 4096

static struct post *unused; /* kept, as objects are */

struct post *queue_add(struct queue *q, uint64_t wr_id, bool signaled)
{
	struct post *p = unused;

	if (p)
		unused = p->next;
	else
		p = malloc(sizeof(*p));
	if (!p)
		return NULL;
	memset(p, 0, sizeof(*p));
	p->wr_id = wr_id;
	p->signaled = signaled;
	if (q->last)
		q->last->next = p;
	else
		q->head = p;
	q->last = p;
	q->n++;
	q->signaled += signaled;
	return p;
}

void queue_drop(struct post *p)
{
	early_end(p);
	p->next = unused;
	unused = p;
}

/* Takes the one behind before out, or the first one. */
static struct post *take(struct queue *q, struct post *before)
{
	struct post **at = before ? &before->next : &q->head, *p = *at;

	*at = p->next;
	if (q->last == p)
		q->last = before;
	q->n--;
	q->signaled -= p->signaled;
	return p;
}

struct post *queue_take(struct queue *q)
{
	return q->head ? take(q, NULL) : NULL;
}

struct post *queue_take_id(struct queue *q, uint64_t wr_id)
{
	struct post *before = NULL, *p = q->head;

	for (; p && p->wr_id != wr_id; p = p->next)
		before = p;
	return p ? take(q, before) : NULL;
}

void queue_cut(struct queue *q, uint32_t n)
{
	uint32_t keep = n < q->n ? q->n - n : 0, i;
	struct post *before = NULL;

	for (i = 0; i < keep; i++)
		before = before ? before->next : q->head;
	while (q->n > keep)
		queue_drop(take(q, before));
}

void queue_empty(struct queue *q)
{
	queue_cut(q, q->n);
}

void queue_sum_last(struct queue *q, uint32_t n)
{
	struct post *p = q->head;
	uint32_t i;

	for (i = 0; p; p = p->next, i++)
		if (i + n >= q->n && p->summed)
			p->sum = queue_sum(p);
}

static uint64_t mix(uint64_t h, const char *p, size_t n)
{
	uint64_t w;

	for (; n >= sizeof(w); p += sizeof(w), n -= sizeof(w)) {
		memcpy(&w, p, sizeof(w));
		h = (h ^ w) * UINT64_C(0x9e3779b97f4a7c15);
		h ^= h >> 29;
	}
	for (; n; p++, n--)
		h = (h ^ (unsigned char)*p) * UINT64_C(0x100000001b3);
	return h;
}

uint64_t queue_sum(const struct post *p)
{
	uint64_t h = 1;
	size_t n, at;
	int i;

	for (i = 0; i < p->nsge; i++) {
		n = p->octets[i] ? p->sge[i].length : 0;
		if (n <= 2 * SUM_WHOLE) {
			h = mix(h, p->octets[i], n);
			continue;
		}
		h = mix(h, p->octets[i], SUM_WHOLE);
		for (at = SUM_WHOLE; at < n - SUM_WHOLE; at += SUM_STEP)
			h = mix(h, p->octets[i] + at, sizeof(h));
		h = mix(h, p->octets[i] + n - SUM_WHOLE, SUM_WHOLE);
	}
	return h;
}
