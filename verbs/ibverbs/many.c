/*
 * Which direct paths a CQ has: who polls looks at each of a few, and at those of the others of
 * which a board says that they have something. docs/direct.md#many.
 */
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "queue.h"

/*
 * Waits until nobody looks at the directs of cq without its lock: some nanoseconds, or until a
 * thread that has lost the processor there has it again. In the child of a fork there is none.
 */
static void begin_change(struct vrnic_cq *cq)
{
	const struct timespec pause = { .tv_nsec = 20000 };

	while (atomic_exchange_explicit(&cq->looking, true, memory_order_acquire) &&
	       vrnic_mapped(&cq->head))
		syscall(SYS_clock_nanosleep, CLOCK_MONOTONIC, 0, &pause, NULL); /* no cancellation point */
}

static void end_change(struct vrnic_cq *cq)
{
	atomic_store_explicit(&cq->looking, false, memory_order_release);
}

static uint32_t *place_in(struct vrnic_cq *cq, struct vrnic_direct *d)
{
	return d->qp->qp.send_cq == &cq->cq ? &d->send_place : &d->recv_place;
}

/* Whether who polls looks at one more without being told to. */
static bool has_few(struct vrnic_cq *cq)
{
#ifdef VRNIC_ALL_MANY /* of tests */
	(void)cq;
	return false;
#else
	return atomic_load_explicit(&cq->ndirects, memory_order_relaxed) < VRNIC_DIRECT_FEW;
#endif
}

/* Gives d a place in the board of cq: false if it needs none, as few do. With cq->arm_lock held. */
static bool add_to_many(struct vrnic_cq *cq, struct vrnic_direct *d)
{
	uint32_t *place = place_in(cq, d);
	bool receives = d->qp->qp.recv_cq == &cq->cq;

	*place = VRNIC_NO_PLACE;
	if (has_few(cq))
		return false;
	begin_change(cq);
	vrnic_board_add(cq->many, d, place);
	end_change(cq);
	if (receives)
		vrnic_pair_want_bit(&d->in, *place);
	return true;
}

void vrnic_direct_add(struct vrnic_cq *cq, struct vrnic_direct *d)
{
	uint32_t n;

	pthread_mutex_lock(&cq->arm_lock);
	if (!add_to_many(cq, d)) {
		n = atomic_load_explicit(&cq->ndirects, memory_order_relaxed);
		cq->directs[n] = d;
		atomic_store(&cq->ndirects, n + 1);
		if (cq->chan && d->qp->qp.recv_cq == &cq->cq)
			atomic_fetch_add(&cq->chan->directs, 1);
	}
	atomic_fetch_add(&cq->nall, 1);
	vrnic_direct_arm(cq);
	pthread_mutex_unlock(&cq->arm_lock);
}

void vrnic_direct_drop(struct vrnic_cq *cq, struct vrnic_direct *d)
{
	uint32_t i, n = atomic_load_explicit(&cq->ndirects, memory_order_relaxed);

	pthread_mutex_lock(&cq->arm_lock);
	begin_change(cq);
	if (*place_in(cq, d) != VRNIC_NO_PLACE) {
		vrnic_board_remove(cq->many, *place_in(cq, d));
		*place_in(cq, d) = VRNIC_NO_PLACE;
		n = 0;
		atomic_fetch_sub(&cq->nall, 1);
	}
	for (i = 0; i < n; i++)
		if (cq->directs[i] == d) {
			cq->directs[i] = cq->directs[n - 1];
			atomic_store(&cq->ndirects, n - 1);
			atomic_fetch_sub(&cq->nall, 1);
			if (cq->chan && d->qp->qp.recv_cq == &cq->cq)
				atomic_fetch_sub(&cq->chan->directs, 1);
			break;
		}
	end_change(cq);
	pthread_mutex_unlock(&cq->arm_lock);
}

bool vrnic_direct_make_place(struct vrnic_cq *cq, struct vrnic_qp *qp)
{
	struct vrnic_board *many = cq->many;
	struct vrnic_bits bits;
	struct vrnic_map map;

	if (has_few(cq))
		return true;
	if (!many)
		many = vrnic_board_new();
	if (!many)
		return false;
	pthread_mutex_lock(&cq->arm_lock);
	begin_change(cq);
	cq->many = many;
	end_change(cq);
	pthread_mutex_unlock(&cq->arm_lock);
	if (many->n == VRNIC_MAX_BITS)
		return false;
	if (qp->qp.recv_cq != &cq->cq || many->come.words)
		return true;
	if (!vrnic_bits_ask(qp->s, qp->qp.handle, VRNIC_OP_DIRECT_BITS, &map, &bits))
		return false;
	pthread_mutex_lock(&cq->arm_lock);
	begin_change(cq);
	many->map = map;
	many->come = bits;
	end_change(cq);
	pthread_mutex_unlock(&cq->arm_lock);
	return true;
}

void vrnic_direct_mark(struct vrnic_direct *d)
{
	struct vrnic_cq *cq = to_vcq(d->qp->qp.recv_cq);

	if (*place_in(cq, d) != VRNIC_NO_PLACE)
		vrnic_board_mark(cq->many, *place_in(cq, d));
}

void vrnic_direct_arm(struct vrnic_cq *cq)
{
	uint32_t i, want = atomic_load(cq->arm) & (VRNIC_ARM_NEXT | VRNIC_ARM_SOLICITED);
	struct vrnic_board *many = cq->many;
	struct vrnic_direct *d;

	atomic_store_explicit(&cq->wanted, want, memory_order_relaxed);
	for (i = 0; i < atomic_load_explicit(&cq->ndirects, memory_order_relaxed); i++) {
		d = cq->directs[i];
		if (d->qp->qp.recv_cq == &cq->cq)
			store_release(d->in.want, d->asleep && want ?
				      want | VRNIC_WANT_ASLEEP | cq->sleep : want);
	}
	if (many && many->come.words)
		store_release(many->come.want, want);
}

void vrnic_direct_begin_arm(struct vrnic_cq *cq)
{
	uint32_t i, n = atomic_load_explicit(&cq->ndirects, memory_order_relaxed);
	struct vrnic_direct *d;

	if (atomic_load(cq->arm) & (VRNIC_ARM_NEXT | VRNIC_ARM_SOLICITED))
		return;
	for (i = 0; i < n; i++) {
		d = cq->directs[i];
		if (d->qp->qp.recv_cq == &cq->cq)
			d->heard = vrnic_pair_heard(&d->in);
	}
}
