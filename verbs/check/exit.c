/* What a program leaves when it ends. */
#include <stdlib.h>

#include "check.h"

/* How many queue pairs the daemon is asked about. */
#define MAX_ASKED 64

struct leak {
	const struct object *first;
	uint64_t n, octets;
};

static bool is_left(const struct object *o)
{
	return !o->internal && !o->told && o->generation == book_generation();
}

/* Those of one place are told of together. */
static void add_same(struct object *o, void *arg)
{
	struct leak *l = arg;

	if (!is_left(o) || !site_same(&o->made, &l->first->made))
		return;
	l->n++;
	l->octets += o->octets;
	o->told = true;
}

static void tell_leak(struct object *o, void *arg)
{
	const int *status = arg;
	struct leak l = { .first = o };
	struct report r;

	if (!is_left(o) || o->kind == KIND_EVENT)
		return;
	book_each(o->kind, add_same, &l);
	if (!report_begin(&r, "leak", &o->made))
		return;
	report_number(&r, "count", l.n);
	report_number(&r, "octets", l.octets);
	report_number(&r, "status", (uint64_t)*status);
	report_object(&r, "object", o);
	report_send(&r);
}

/* Copies: other threads go on, and a device that was closed has taken its queue pairs along. */
struct asked {
	struct qp_name qps[MAX_ASKED];
	int n;
};

static void last_words(struct object *o, void *arg)
{
	struct qp *qp = container_of(o, struct qp, o);
	struct asked *a = arg;

	if (o->generation != book_generation())
		return;
	qp_last_words(qp);
	if (a->n < MAX_ASKED)
		a->qps[a->n++] = qp->name;
}

/* After the program's own functions that run at its end, and those of its libraries. */
static void at_exit(int status, void *arg)
{
	struct site here = { 0 };
	struct asked a;
	enum kind k;
	int i;

	(void)arg;
	if (book_held()) /* the handler of a signal that came then has called exit(3) */
		return;
	a.n = 0;
	book_lock();
	early_tell();
	book_each(KIND_QP, last_words, &a);
	for (k = 0; k < KINDS; k++)
		book_each(k, tell_leak, &status);
	book_unlock();
	for (i = 0; i < a.n; i++)
		qp_ask(&a.qps[i], &here);
	book_lock();
	rights_tell();
	book_unlock();
}

/* Of glibc; where there is none the status is not known. */
extern int on_exit(void (*f)(int status, void *arg), void *arg) __attribute__((weak));

__attribute__((constructor)) static void watch_exit(void)
{
	if (on_exit)
		on_exit(at_exit, NULL);
}

__attribute__((destructor)) static void end(void)
{
	if (!on_exit)
		at_exit(0, NULL);
}
