/*
 * Those of many direct paths that complete on a CQ, each at a place of its own, and which of them
 * have something: a message, by the CQ's bitmap, or requests of the program's own that are over
 * (docs/direct.md#many).
 */
#ifndef VRNIC_BOARD_H
#define VRNIC_BOARD_H

#include "bits.h"

#define VRNIC_BOARD_WORDS (VRNIC_MAX_BITS / 32)

/* The kinds of what there is to be looked at. */
enum { VRNIC_BOARD_COME, VRNIC_BOARD_DONE };

struct vrnic_direct;

/* Calls must not overlap, but for those that say so. */
struct vrnic_board {
	struct vrnic_map map;
	struct vrnic_bits come; /* the bitmap, where senders write; no words: no messages come */
	uint32_t n; /* places that are taken */
	atomic_uint words; /* in which there is one that was */
	atomic_bool all, some; /* are to be looked at */
	atomic_bool more; /* than the words say is to be looked at */
	atomic_uint polls, turn; /* of vrnic_board_turn */
	uint32_t sweep; /* which of some was the last */
	bool first; /* before those that are at no place, at the next poll */
	uint32_t from[2]; /* which place comes first then */
	uint32_t todo[2][VRNIC_BOARD_WORDS]; /* taken of the words, and not looked through */
	atomic_uint done[VRNIC_BOARD_WORDS]; /* the program's own requests */
	struct vrnic_direct *at[VRNIC_MAX_BITS];
};

struct vrnic_board *vrnic_board_new(void);
void vrnic_board_free(struct vrnic_board *b);

/* The first place that is free: false if there is none. */
bool vrnic_board_add(struct vrnic_board *b, struct vrnic_direct *d, uint32_t *place);
void vrnic_board_remove(struct vrnic_board *b, uint32_t place);

/* A request is over of what is at place, or it is to be looked at for messages: from any thread. */
void vrnic_board_done(struct vrnic_board *b, uint32_t place);
void vrnic_board_mark(struct vrnic_board *b, uint32_t place);

/*
 * All are to be looked at, or some, others each time, if there are so many: from any thread.
 */
void vrnic_board_mark_all(struct vrnic_board *b);
void vrnic_board_mark_some(struct vrnic_board *b);

/* Whether nothing is to be looked at: from any thread. */
bool vrnic_board_is_empty(struct vrnic_board *b);

/*
 * What is to be looked at although nothing says so: NULL, none now. From any thread, while nothing
 * is removed.
 */
struct vrnic_direct *vrnic_board_turn(struct vrnic_board *b, uint32_t *place);

/*
 * Takes what there is to be looked at of a kind, before anybody looks: what comes later says so
 * again. Messages first: docs/direct.md#receiving. At last vrnic_board_taken.
 */
void vrnic_board_take(struct vrnic_board *b, int kind);
void vrnic_board_taken(struct vrnic_board *b);

/* Goes through what has been taken of a kind. */
struct vrnic_board_look {
	int kind;
	uint32_t place; /* of what vrnic_board_next has given */
	uint32_t next, left;
};

static inline struct vrnic_board_look vrnic_board_look(const struct vrnic_board *b, int kind)
{
	return (struct vrnic_board_look){ .kind = kind, .next = b->from[kind],
					  .left = 32 * atomic_load_explicit(&b->words,
									    memory_order_relaxed) };
}

/* The next one: NULL, that was all. */
struct vrnic_direct *vrnic_board_next(struct vrnic_board *b, struct vrnic_board_look *l);

/* All there was of what vrnic_board_next has given has been found. */
void vrnic_board_clear(struct vrnic_board *b, const struct vrnic_board_look *l);

/* What vrnic_board_next has given last comes first the next time. */
static inline void vrnic_board_stop(struct vrnic_board *b, const struct vrnic_board_look *l)
{
	b->from[l->kind] = l->place;
}

#endif
