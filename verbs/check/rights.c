/*
 * Rights that regions give to peers, and what of them peers have made use of, as the daemon has
 * counted it at the end of each queue pair. It does not say which region a peer has reached: a
 * right that is told of is one of which no peer has made use at all.
 */
#include <string.h>

#include "check.h"

/* Places where regions with such rights were registered; those beyond are not told of. */
#define PLACES 64

#define REMOTE (IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC)

static struct {
	struct site made;
	int access;
	uint64_t octets;
} given[PLACES];
static int places;
static uint64_t qps, asked; /* queue pairs that were made, and whose counters are known */
static struct qp_counts used;

void rights_given(const struct object *mr, int access)
{
	int i;

	if (mr->internal || !(access & REMOTE))
		return;
	for (i = 0; i < places && !site_same(&given[i].made, &mr->made); i++)
		;
	if (i == PLACES)
		return;
	if (i == places) {
		given[places++].made = mr->made;
		given[i].octets = mr->octets;
	}
	given[i].access |= access & REMOTE;
}

void rights_made_qp(void)
{
	qps++;
}

/* On iWARP its answer is a Write: cards want the right to that of the region that it comes to. */
void rights_read(const struct qp *qp)
{
	if (qp->context->device->transport_type == IBV_TRANSPORT_IWARP)
		used.writes++;
}

void rights_used(const struct qp_counts *c)
{
	asked++;
	used.writes += c->writes;
	used.reads += c->reads;
	used.atomics += c->atomics;
}

void rights_tell(void)
{
	struct report r;
	int i, left;

	if (!qps || asked != qps || book_generation())
		return;
	for (i = 0; i < places; i++) {
		left = given[i].access;
		if (used.writes)
			left &= ~IBV_ACCESS_REMOTE_WRITE;
		if (used.reads)
			left &= ~IBV_ACCESS_REMOTE_READ;
		if (used.atomics)
			left &= ~IBV_ACCESS_REMOTE_ATOMIC;
		if (!left || !report_begin(&r, "wide-access", &given[i].made))
			continue;
		report_number(&r, "access", (uint64_t)left);
		report_number(&r, "length", given[i].octets);
		report_site(&r, "made", &given[i].made);
		report_send(&r);
	}
}
