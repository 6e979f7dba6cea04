/*
 * The steps of docs/direct.md at which tests stop or kill a program: integration/verbs. In what
 * programs get there is nothing of it.
 */
#ifndef VRNIC_MARK_H
#define VRNIC_MARK_H

enum {
	VRNIC_MARK_ODD = 1,	/* sending: step 2 is done */
	VRNIC_MARK_OPEN,	/* 3 */
	VRNIC_MARK_ROOM,	/* 4 */
	VRNIC_MARK_COPIED,	/* 5, before anything of it shows */
	VRNIC_MARK_RECORDED,	/* the request is complete */
	VRNIC_MARK_STAMPED,
	VRNIC_MARK_DONE,
	VRNIC_MARK_EVEN,	/* 6 */
	VRNIC_MARK_WANTED,	/* 7, before the bell */
	VRNIC_MARK_POSTED,	/* receiving: the ring has the receive, the room is to come */
	VRNIC_MARK_LENGTH,	/* the room's length */
	VRNIC_MARK_ROOMED,	/* and its stamp */
	VRNIC_MARK_TAKEN,	/* the message is copied */
	VRNIC_MARK_GIVEN_BACK,	/* its place in the slab is free */
	VRNIC_MARK_PAIR,	/* the program has asked for the pair */
	VRNIC_MARK_TABLE,	/* keys: the table is mapped */
	VRNIC_MARK_MAPPED,	/* and memory */
	VRNIC_MARK_ENTERED,	/* Writes, Reads, atomic operations: step 3 is done */
	VRNIC_MARK_FOUND,	/* 4: the key */
	VRNIC_MARK_PART,	/* 5: a part of a long copy, before 6 */
	VRNIC_MARK_MOVED,	/* all of it */
	VRNIC_MARK_MODIFIED,	/* an atomic operation, before its answer is stored */
	VRNIC_MARK_LEFT,	/* 6, before the request is complete */
	VRNIC_MARK_HEARD,	/* 7: a message is counted for who sleeps, who is to be woken */
	VRNIC_MARK_ASLEEP,	/* sleeping: peers have been told */
	VRNIC_MARK_AWAKE,	/* and that it is over */
	VRNIC_MARK_MARKED,	/* behind 6: the bit is set */
	VRNIC_MARKS_END,
};

#ifdef VRNIC_MARKS
void vrnic_mark(int step) __attribute__((weak, visibility("default"))); /* the program's */
#define VRNIC_MARK(step)                                \
	do {                                            \
		if (vrnic_mark)                         \
			vrnic_mark(VRNIC_MARK_##step);  \
	} while (0)
#else
#define VRNIC_MARK(step) ((void)0)
#endif

#endif
