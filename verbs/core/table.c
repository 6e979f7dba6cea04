/* Tables that grow. */
#include <stdlib.h>

#include "table.h"

/*
 * A table gets buckets with its second entry, and then twice as many whenever it has more entries
 * than buckets.
 */
#define MIN_BITS 4
#define MAX_BITS 24

static size_t buckets_of(const struct vrnic_table *t)
{
	return t->buckets ? (size_t)1 << t->bits : 1;
}

static void link_entry(struct vrnic_table *t, struct vrnic_entry *e)
{
	struct vrnic_entry **b = vrnic_table_bucket(t, e->key);

	e->next = *b;
	*b = e;
}

static void grow(struct vrnic_table *t)
{
	struct vrnic_table more = { .bits = t->buckets ? t->bits + 1 : MIN_BITS, .n = t->n };
	struct vrnic_entry *e, *next;
	size_t i;

	more.buckets = calloc((size_t)1 << more.bits, sizeof(*more.buckets));
	if (!more.buckets)
		return;
	for (i = 0; i < buckets_of(t); i++) {
		for (e = t->buckets ? t->buckets[i] : t->first; e; e = next) {
			next = e->next;
			link_entry(&more, e);
		}
	}
	free(t->buckets);
	*t = more;
}

void vrnic_table_add(struct vrnic_table *t, struct vrnic_entry *e, uint32_t key)
{
	if (t->n++ >= buckets_of(t) && t->bits < MAX_BITS)
		grow(t);
	e->key = key;
	link_entry(t, e);
}

void vrnic_table_remove(struct vrnic_table *t, struct vrnic_entry *e)
{
	struct vrnic_entry **p = vrnic_table_bucket(t, e->key);

	while (*p && *p != e)
		p = &(*p)->next;
	if (*p) {
		*p = e->next;
		t->n--;
	}
}

void vrnic_table_free(struct vrnic_table *t)
{
	free(t->buckets);
	*t = (struct vrnic_table){ 0 };
}

struct vrnic_entry *vrnic_table_each(struct vrnic_table *t, struct vrnic_entry *e)
{
	size_t i = 0;

	if (e && e->next)
		return e->next;
	if (!t->buckets)
		return e ? NULL : t->first;
	if (e)
		i = vrnic_table_bucket(t, e->key) - t->buckets + 1;
	for (; i < buckets_of(t); i++)
		if (t->buckets[i])
			return t->buckets[i];
	return NULL;
}
