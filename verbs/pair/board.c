#include <stdlib.h>

#include "board.h"

/*
 * Polls between two that look at one more without being told to. A program that is told nothing,
 * since another peer clears what its own has set, finds it so.
 */
#define TURN_POLLS 64

/* So many are looked at by the first poll of who is about to sleep although nothing says so. */
#define SOME_LOOKS 64

struct vrnic_board *vrnic_board_new(void)
{
	return calloc(1, sizeof(struct vrnic_board));
}

void vrnic_board_free(struct vrnic_board *b)
{
	if (b)
		vrnic_unmap(&b->map);
	free(b);
}

bool vrnic_board_add(struct vrnic_board *b, struct vrnic_direct *d, uint32_t *place)
{
	uint32_t i;

	for (i = 0; i < VRNIC_MAX_BITS && b->at[i]; i++)
		;
	if (i == VRNIC_MAX_BITS)
		return false;
	b->at[i] = d;
	b->n++;
	if (i / 32 >= atomic_load_explicit(&b->words, memory_order_relaxed))
		atomic_store(&b->words, i / 32 + 1);
	*place = i;
	return true;
}

void vrnic_board_remove(struct vrnic_board *b, uint32_t place)
{
	b->at[place] = NULL;
	b->n--;
}

void vrnic_board_done(struct vrnic_board *b, uint32_t place)
{
	atomic_fetch_or(&b->done[place / 32], 1u << place % 32);
}

void vrnic_board_mark(struct vrnic_board *b, uint32_t place)
{
	atomic_fetch_or(&b->come.words[place / 32], 1u << place % 32);
}

void vrnic_board_mark_all(struct vrnic_board *b)
{
	atomic_store(&b->all, true);
}

void vrnic_board_mark_some(struct vrnic_board *b)
{
	atomic_store(&b->some, true);
}

bool vrnic_board_is_empty(struct vrnic_board *b)
{
	uint32_t i, any = 0, n = atomic_load_explicit(&b->words, memory_order_relaxed);

	if (b->come.words)
		for (i = 0; i < n; i++)
			any |= load_acquire(&b->come.words[i]);
	for (i = 0; i < n; i++)
		any |= load_acquire(&b->done[i]);
	/* Behind the words: who takes them says this first. */
	return !any && !atomic_load_explicit(&b->more, memory_order_relaxed) &&
	       !atomic_load_explicit(&b->all, memory_order_relaxed) &&
	       !atomic_load_explicit(&b->some, memory_order_relaxed);
}

struct vrnic_direct *vrnic_board_turn(struct vrnic_board *b, uint32_t *place)
{
	uint32_t turn;

	/* Not read and written at once, which costs a message more than a turn that is lost. */
	turn = atomic_load_explicit(&b->polls, memory_order_relaxed) + 1;
	atomic_store_explicit(&b->polls, turn, memory_order_relaxed);
	if (likely(turn % TURN_POLLS))
		return NULL;
	turn = atomic_load_explicit(&b->turn, memory_order_relaxed) + 1;
	if (turn >= 32 * atomic_load_explicit(&b->words, memory_order_relaxed))
		turn = 0;
	atomic_store_explicit(&b->turn, turn, memory_order_relaxed);
	*place = turn;
	return b->at[turn];
}

static void sweep(struct vrnic_board *b, uint32_t end)
{
	uint32_t i;

	for (i = 0; i < SOME_LOOKS && i < end; i++) {
		b->sweep = (b->sweep + 1) % end;
		b->todo[VRNIC_BOARD_COME][b->sweep / 32] |= 1u << b->sweep % 32;
	}
}

void vrnic_board_take(struct vrnic_board *b, int kind)
{
	_Atomic uint32_t *from = kind == VRNIC_BOARD_COME ? b->come.words : b->done;
	uint32_t i, n = atomic_load_explicit(&b->words, memory_order_relaxed);

	atomic_store_explicit(&b->more, true, memory_order_relaxed);
	for (i = 0; from && i < n; i++)
		if (load_acquire(&from[i]))
			b->todo[kind][i] |= atomic_exchange(&from[i], 0);
	if (kind == VRNIC_BOARD_COME && atomic_load_explicit(&b->some, memory_order_relaxed) &&
	    atomic_exchange(&b->some, false))
		sweep(b, 32 * n);
	if (kind == VRNIC_BOARD_COME && atomic_load_explicit(&b->all, memory_order_relaxed) &&
	    atomic_exchange(&b->all, false))
		for (i = 0; i < 32 * n; i++)
			if (b->at[i]) {
				b->todo[VRNIC_BOARD_COME][i / 32] |= 1u << i % 32;
				b->todo[VRNIC_BOARD_DONE][i / 32] |= 1u << i % 32;
			}
}

void vrnic_board_taken(struct vrnic_board *b)
{
	uint32_t i, any = 0, n = atomic_load_explicit(&b->words, memory_order_relaxed);

	for (i = 0; i < n; i++)
		any |= b->todo[VRNIC_BOARD_COME][i] | b->todo[VRNIC_BOARD_DONE][i];
	atomic_store_explicit(&b->more, any, memory_order_relaxed);
}

struct vrnic_direct *vrnic_board_next(struct vrnic_board *b, struct vrnic_board_look *l)
{
	uint32_t w, skip, end = 32 * atomic_load_explicit(&b->words, memory_order_relaxed);

	while (l->left) {
		w = b->todo[l->kind][l->next / 32] >> l->next % 32;
		skip = w ? (uint32_t)__builtin_ctz(w) : 32 - l->next % 32;
		if (skip >= l->left)
			return NULL;
		l->left -= skip;
		l->place = l->next + skip;
		if (w) {
			l->left--;
			l->next = (l->place + 1) % end;
			if (b->at[l->place])
				return b->at[l->place];
			vrnic_board_clear(b, l); /* it has gone */
		} else {
			l->next = l->place % end;
		}
	}
	return NULL;
}

void vrnic_board_clear(struct vrnic_board *b, const struct vrnic_board_look *l)
{
	b->todo[l->kind][l->place / 32] &= ~(1u << l->place % 32);
}
