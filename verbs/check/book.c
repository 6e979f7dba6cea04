/* The objects of the program, by its pointers and by their numbers. */
#include <stdlib.h>
#include <string.h>

#include "check.h"

#define BUCKETS 4096

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct object *by_pointer[BUCKETS];
static struct object *by_number[BUCKETS];
static struct object *by_kind[KINDS];
/*
 * Those that were removed, to be used again: what is allocated here is never freed, since free is
 * one of the functions that this library stands in front of.
 */
static struct object *unused[KINDS];
static unsigned int generation;

/* What the C library frees meanwhile is of no interest: book_held. */
static __thread bool held __attribute__((tls_model("initial-exec")));
/* A thread that is cancelled does not take the lock along. */
static __thread int cancel __attribute__((tls_model("initial-exec")));

void book_lock(void)
{
	int state;

	pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &state);
	held = true; /* before it is so: the handler of a signal may come between */
	pthread_mutex_lock(&lock);
	cancel = state;
}

void book_unlock(void)
{
	int state = cancel;

	pthread_mutex_unlock(&lock);
	held = false;
	pthread_setcancelstate(state, NULL);
}

bool book_held(void) { return held; }

static void in_child(void)
{
	generation++;
	book_unlock();
}

__attribute__((constructor)) static void watch_forks(void)
{
	pthread_atfork(book_lock, book_unlock, in_child);
}

unsigned int book_generation(void) { return generation; }

static struct object **pointer_bucket(const void *at)
{
	return &by_pointer[((uintptr_t)at >> 4) * UINT64_C(0x9e3779b97f4a7c15) >> 52];
}

static struct object **number_bucket(uint32_t number)
{
	return &by_number[number * UINT64_C(0x9e3779b97f4a7c15) >> 52];
}

void *book_add(enum kind kind, void *at, size_t size, const struct site *made)
{
	struct object *o = unused[kind], **b = pointer_bucket(at);

	if (o)
		unused[kind] = o->next;
	else
		o = malloc(size);
	if (!o)
		return NULL;
	memset(o, 0, size);
	o->kind = kind;
	o->at = at;
	o->generation = generation;
	o->made = *made;
	o->next = *b;
	*b = o;
	o->next_kind = by_kind[kind];
	by_kind[kind] = o;
	return o;
}

void *book_find(enum kind kind, const void *at)
{
	struct object *o = *pointer_bucket(at);

	while (o && (o->at != at || o->kind != kind))
		o = o->next;
	return o;
}

struct object *book_number(enum kind kind, uint32_t number, struct object *after)
{
	struct object *o = after ? after->next_key : *number_bucket(number);

	while (o && (o->number != number || o->kind != kind))
		o = o->next_key;
	return o;
}

static void forget_number(struct object *o)
{
	struct object **p = number_bucket(o->number);

	while (*p && *p != o)
		p = &(*p)->next_key;
	if (*p)
		*p = o->next_key;
}

void book_set_number(struct object *o, uint32_t number)
{
	struct object **b = number_bucket(number);

	forget_number(o);
	o->number = number;
	o->next_key = *b;
	*b = o;
}

void book_use(struct object *o, struct object *used)
{
	int i = 0;

	while (i < OBJECT_USES && o->uses[i])
		i++;
	if (i < OBJECT_USES)
		o->uses[i] = used;
}

static void unuse(struct object *o, void *used)
{
	int i;

	for (i = 0; i < OBJECT_USES; i++)
		if (o->uses[i] == used)
			o->uses[i] = NULL;
}

void book_remove(struct object *o)
{
	struct object **p = pointer_bucket(o->at);
	enum kind k;

	while (*p && *p != o)
		p = &(*p)->next;
	if (*p)
		*p = o->next;
	for (p = &by_kind[o->kind]; *p && *p != o; p = &(*p)->next_kind)
		;
	if (*p)
		*p = o->next_kind;
	forget_number(o);
	/* nothing hangs on those of the other kinds */
	for (k = 0; k < KINDS && o->kind > KIND_QP && o->kind != KIND_EVENT; k++)
		book_each(k, unuse, o);
	o->next = unused[o->kind];
	unused[o->kind] = o;
}

void book_each(enum kind kind, void (*each)(struct object *o, void *arg), void *arg)
{
	struct object *o, *following;

	for (o = by_kind[kind]; o; o = following) {
		following = o->next_kind;
		each(o, arg);
	}
}
