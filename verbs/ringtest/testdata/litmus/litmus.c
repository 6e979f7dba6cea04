/*
 * Litmus tests of what rings and the direct path ask of the order of memory, with the operations
 * that the library does it by (docs/abi.md#waking, docs/direct.md):
 *
 *   litmus NAME TIMES     prints how often the order was not kept
 *
 * Two threads run freely: what one has seen of the other's count, and the other of its, says
 * whether there is an order in which both can have been.
 */
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/core.h"

#define LINE _Alignas(64)

static LINE _Atomic uint32_t x;
static LINE _Atomic uint32_t y;
static LINE _Atomic uint32_t data;
static LINE _Atomic uint32_t over;
static LINE _Atomic uint32_t ready;
static uint32_t times, *seen[2];
static bool fenced;

static void relax(uint32_t i)
{
	if (i % 4096 == 0) /* there may be one processor */
		sched_yield();
}

/* Both begin at once. */
static void begin(void)
{
	uint32_t k;

	atomic_fetch_add(&ready, 1);
	for (k = 1; atomic_load(&ready) != 2; k++)
		relax(k);
}

static uint32_t load(_Atomic uint32_t *w)
{
	return atomic_load_explicit(w, memory_order_relaxed);
}

static void store(_Atomic uint32_t *w, uint32_t v)
{
	atomic_store_explicit(w, v, memory_order_relaxed);
}

/* Message passing: what was written before a stamp is there behind it. */
static void *mp_write(void *arg)
{
	uint32_t i;

	begin();
	for (i = 1; i <= times; i++) {
		store(&data, i);
		store_release(&x, i);
		relax(i);
	}
	return arg;
}

static void *mp_read(void *arg)
{
	uint32_t n, *bad = arg;

	begin();
	do {
		n = load_acquire(&x);
		*bad += load(&data) < n;
		relax(n);
	} while (n != times);
	return arg;
}

/* Store buffering: of two that store and then look, one sees the other. */
static void store_and_look(_Atomic uint32_t *mine, _Atomic uint32_t *other, uint32_t *saw)
{
	uint32_t i;

	begin();
	for (i = 1; i <= times; i++) {
		store(mine, i);
		if (fenced)
			atomic_thread_fence(memory_order_seq_cst);
		else
			atomic_signal_fence(memory_order_seq_cst); /* the compiler's order alone */
		saw[i] = load(other);
		relax(i);
	}
}

static void *sb_first(void *arg)
{
	store_and_look(&x, &y, seen[0]);
	return arg;
}

static void *sb_second(void *arg)
{
	store_and_look(&y, &x, seen[1]);
	return arg;
}

/* In how many of its steps the first saw less of the second than let that see less of it. */
static uint32_t sb_bad(void)
{
	uint32_t i, bad = 0;

	for (i = 1; i <= times; i++)
		bad += seen[0][i] < times && seen[1][seen[0][i] + 1] < i;
	return bad;
}

/*
 * Hand-over: x is the sender's seq, y is open. Who closes and finds that nobody is at it, or waits
 * until he has gone on, has the data.
 */
static void *send(void *arg)
{
	uint32_t seq = 0, i;

	begin();
	for (i = 1; !load(&over); i++) {
		if (fenced) {
			atomic_exchange(&x, ++seq);
			atomic_thread_fence(memory_order_seq_cst);
		} else {
			store(&x, ++seq);
			atomic_signal_fence(memory_order_seq_cst);
		}
		if (load_acquire(&y))
			store(&data, i);
		store_release(&x, ++seq);
		relax(i);
	}
	return arg;
}

static void *take(void *arg)
{
	uint32_t i, k, was, *bad = arg;

	begin();
	for (i = 1; i <= times; i++) {
		store_release(&y, 1);
		for (k = 0; k < i % 32; k++)
			atomic_signal_fence(memory_order_seq_cst);
		if (fenced) {
			atomic_exchange(&y, 0);
			atomic_thread_fence(memory_order_seq_cst);
		} else {
			store(&y, 0);
			atomic_signal_fence(memory_order_seq_cst);
		}
		was = load_acquire(&x);
		if (was & 1)
			for (k = 1; load_acquire(&x) == was; k++)
				relax(k);
		was = load(&data);
		for (k = 0; k < 64; k++)
			if (load(&data) != was) {
				++*bad;
				break;
			}
		relax(i);
	}
	store(&over, 1);
	return arg;
}

static const struct litmus {
	const char *name;
	void *(*run[2])(void *);
	bool fenced;
} all[] = {
	{ "message_passing", { mp_write, mp_read }, true },
	{ "store_buffering", { sb_first, sb_second }, true },
	{ "store_buffering_unfenced", { sb_first, sb_second }, false },
	{ "hand_over", { send, take }, true },
	{ "hand_over_unfenced", { send, take }, false },
};

int main(int argc, char **argv)
{
	const struct litmus *l = all, *end = all + sizeof(all) / sizeof(*all);
	uint32_t i, bad = 0;
	pthread_t first;

	while (l != end && (argc != 3 || strcmp(argv[1], l->name)))
		l++;
	if (l == end)
		return 2;
	times = (uint32_t)atoi(argv[2]);
	fenced = l->fenced;
	for (i = 0; i < 2; i++) {
		seen[i] = malloc((times + 2) * sizeof(**seen));
		if (!seen[i])
			return 2;
		memset(seen[i], 0xff, (times + 2) * sizeof(**seen)); /* all of it is there */
	}
	if (pthread_create(&first, NULL, l->run[0], NULL))
		return 2;
	l->run[1](&bad);
	pthread_join(first, NULL);
	if (l->run[0] == sb_first)
		bad = sb_bad();
	printf("%u\n", bad);
	free(seen[0]);
	free(seen[1]);
	return 0;
}
