/*
 * A program's end of the memory that it has in common with the program at the other end of a
 * connection, by which messages go without the daemon: docs/direct.md, whose numbers of steps stand
 * here. It knows no verbs: what is above says which receive is posted, and where octets are.
 *
 * Either program may have written anything into it: each word is loaded once, into a private copy,
 * and what the other wrote decides about nothing but its own messages.
 */
#ifndef VRNIC_PAIR_H
#define VRNIC_PAIR_H

#include "bits.h"

/* What goes out. It has one user at a time. */
struct vrnic_pair_out {
	_Atomic uint32_t *open, *base, *seq, *done, *notify, *solicited, *own, *slab_cons, *want;
	_Atomic uint64_t *messages, *octets, *asked, *imms;
	_Atomic uint64_t *writes, *unsent, *reads, *read_octets, *atomics;
	_Atomic uint32_t *completed, *polled, *heard, *heard_asked, *takes;
	/* Wakes the peer, if it sleeps: false if it cannot, and the daemon has to. NULL: never. */
	bool (*wake)(struct vrnic_pair_out *out);
	/*
	 * Finds the bitmap of the peer's CQ: false if it cannot be had, and then messages are the
	 * daemon's, where the peer wants a bit to be set. It is asked once. NULL: it never can be.
	 */
	bool (*bits)(struct vrnic_pair_out *out, struct vrnic_bits *bits);
	_Atomic uint32_t *bit_word; /* DirBit */
	_Atomic uint32_t *bits_word; /* what bit is set in behind each message, or NULL */
	uint32_t bit;
	uint32_t room_bit; /* VRNIC_ROOM_BIT then, else 0 */
	bool no_bits; /* it has been asked for in vain */
	uint32_t woken; /* DirWant of the last sleep that has been ended */
	uint32_t peer; /* the number of the QP at the other end */
	uint32_t reach; /* what keys may be asked for, of enum ibv_access_flags */
	char *rooms, *slots, *slab;
	uint32_t mask; /* slots - 1 */
	uint32_t slab_size, slab_prod;
	uint32_t odd; /* DirSeq */
	uint32_t used; /* receives */
	uint32_t was; /* DirRecvBase, as last seen */
	uint32_t slab_off, slab_end; /* between begin and end */
};

/* What comes in. rooms have one user at a time, and the rest has one. */
struct vrnic_pair_in {
	bool closed; /* what comes goes by the daemon, all of it */
	_Atomic uint32_t *bit; /* DirBit */
	uint32_t room_bit; /* VRNIC_ROOM_BIT if the sender sets a bit */
	char *rooms, *slots, *slab;
	_Atomic uint32_t *slab_cons_word, *want, *spoiled, *passed, *heard, *heard_asked;
	uint32_t mask;
	uint32_t slab_size, slab_cons;
};

/*
 * What a message says of itself, as it stands in a slot. Octets of it there are none with
 * VRNIC_SLOT_WRITE, and immediate data, as VRNIC_SQ_IMM and VRNIC_SQ_IMM_LOW have it, only with
 * VRNIC_SLOT_IMM.
 */
struct vrnic_pair_head {
	uint32_t length, flags;
	uint32_t imm[2];
};

/* A message that has come, where the other may still write; head is a private copy. */
struct vrnic_pair_message {
	struct vrnic_pair_head head;
	const char *from;
	uint32_t octets; /* from there on */
	uint32_t slab_off; /* VRNIC_NO_SLAB: in the slot */
	uint32_t slab_len;
};

/*
 * Finds both directions in m, from side (0 or 1) and to it, where there are receives of them: false
 * if it makes no sense.
 */
bool vrnic_pair_open(const struct vrnic_map *m, int side, uint32_t receives,
		     struct vrnic_pair_out *out, struct vrnic_pair_in *in);

/*
 * Whether the sender may try at all, and whether a receive seems to be posted, which may call bits.
 */
static inline bool vrnic_pair_is_open(const struct vrnic_pair_out *out)
{
	return load_acquire(out->open);
}

bool vrnic_pair_has_room(struct vrnic_pair_out *out);

/* The same of one that takes this message: else all that is done before it is in vain. */
bool vrnic_pair_takes(const struct vrnic_pair_out *out, const struct vrnic_pair_head *h);

/*
 * Steps 2 and 3, for what takes no receive: false, and the direction is the daemon's. Until
 * vrnic_pair_leave, step 6, what a key gives stays there.
 */
bool vrnic_pair_enter(struct vrnic_pair_out *out);
void vrnic_pair_leave(struct vrnic_pair_out *out);

/* In between: what has been done is counted. */
void vrnic_pair_wrote(struct vrnic_pair_out *out, uint32_t n);
void vrnic_pair_wrote_nothing(struct vrnic_pair_out *out, bool sent);
void vrnic_pair_read(struct vrnic_pair_out *out, uint32_t n);
void vrnic_pair_modified(struct vrnic_pair_out *out);

/*
 * Steps 2 to 4, for a message: where its octets go, or NULL and it is the daemon's. After the copy,
 * and when the request is recorded as complete, vrnic_pair_end has steps 5 and 6.
 */
char *vrnic_pair_begin(struct vrnic_pair_out *out, const struct vrnic_pair_head *h);
void vrnic_pair_end(struct vrnic_pair_out *out, const struct vrnic_pair_head *h);

/*
 * Behind vrnic_pair_enter, for a message that tells of what is done there: step 4. vrnic_pair_end
 * follows in place of vrnic_pair_leave; or, if there is no place for it, that.
 */
char *vrnic_pair_place(struct vrnic_pair_out *out, const struct vrnic_pair_head *h);

/*
 * Step 7: true if the QP's bell is to be rung, since the peer waits for an event and is not woken
 * here, or who posted waits for its own completion (own).
 */
bool vrnic_pair_wanted(struct vrnic_pair_out *out, bool solicited, bool own);

/* Of step 7 what is about the own completion alone: the bell is to be rung. */
void vrnic_pair_own(struct vrnic_pair_out *out);

/*
 * The sender is to set bit n of the CQ's bitmap behind each message. It comes before the first
 * vrnic_pair_room.
 */
void vrnic_pair_want_bit(struct vrnic_pair_in *in, uint32_t n);

/* Receive i is posted, and takes so many octets. */
void vrnic_pair_room(struct vrnic_pair_in *in, uint32_t i, uint64_t octets);

/* Whether receive i has its message. */
bool vrnic_pair_stamped(const struct vrnic_pair_in *in, uint32_t i);

/* The message of receive i, which is stamped: false if it makes no sense. */
bool vrnic_pair_message(const struct vrnic_pair_in *in, uint32_t i, struct vrnic_pair_message *m);

/* What has come makes no sense: the daemon ends the connection when it hears the QP's bell. */
static inline void vrnic_pair_spoil(struct vrnic_pair_in *in)
{
	store_release(in->spoiled, 1);
}

/* How many messages the sender has counted for who sleeps, and solicited ones beside them. */
struct vrnic_pair_heard {
	uint32_t plain, asked;
};

static inline struct vrnic_pair_heard vrnic_pair_heard(const struct vrnic_pair_in *in)
{
	return (struct vrnic_pair_heard){ load_acquire(in->heard), load_acquire(in->heard_asked) };
}

/* The daemon is to raise an event of which a sleeper has heard: the QP's bell is to be rung. */
void vrnic_pair_pass(struct vrnic_pair_in *in);

/* m has been copied: its place in the slab is free. */
void vrnic_pair_taken(struct vrnic_pair_in *in, const struct vrnic_pair_message *m);

#endif
