/*
 * Tables by numbers that the daemon gives out, which grow with what is in them: no look-up gets
 * slower for a program with many QPs or regions. A table of zeros is empty, and has no lock: who
 * has the table has one.
 */
#ifndef VRNIC_TABLE_H
#define VRNIC_TABLE_H

#include <stddef.h>
#include <stdint.h>

/* An entry, which is part of what it stands for. Keys need not differ. */
struct vrnic_entry {
	struct vrnic_entry *next; /* in its bucket */
	uint32_t key;
};

struct vrnic_table {
	struct vrnic_entry **buckets; /* 1 << bits of them, or NULL: there is one, first */
	struct vrnic_entry *first;
	unsigned int bits;
	uint32_t n;
};

static inline struct vrnic_entry **vrnic_table_bucket(struct vrnic_table *t, uint32_t key)
{
	/* Some keys differ in their low bits, others in their high ones. */
	return t->buckets ? &t->buckets[(key * 2654435761u) >> (32 - t->bits)] : &t->first;
}

/* The first entry of e's bucket, from e on, that has this key. */
static inline struct vrnic_entry *vrnic_table_same(struct vrnic_entry *e, uint32_t key)
{
	while (e && e->key != key)
		e = e->next;
	return e;
}

/* An entry with a key, or NULL; and the one after e that has its key, too. */
static inline struct vrnic_entry *vrnic_table_find(struct vrnic_table *t, uint32_t key)
{
	return vrnic_table_same(*vrnic_table_bucket(t, key), key);
}

static inline struct vrnic_entry *vrnic_table_again(struct vrnic_entry *e)
{
	return vrnic_table_same(e->next, e->key);
}

/* Adds e. It does not fail: without memory for more buckets look-ups take longer. */
void vrnic_table_add(struct vrnic_table *t, struct vrnic_entry *e, uint32_t key);

/* Takes e out, if it is in. */
void vrnic_table_remove(struct vrnic_table *t, struct vrnic_entry *e);

/* Forgets all entries. */
void vrnic_table_free(struct vrnic_table *t);

/*
 * Goes through all entries, in no order, as long as none is added: that after e, or the first for
 * NULL.
 */
struct vrnic_entry *vrnic_table_each(struct vrnic_table *t, struct vrnic_entry *e);

#endif
