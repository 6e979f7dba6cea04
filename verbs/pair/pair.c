/* The order of the steps is that of docs/direct.md, which a search in shm/ring goes through. */
#include <string.h>

#include "mark.h"
#include "pair.h"

/* What a slot may say of its message. */
#define KNOWN_FLAGS (VRNIC_SQ_SOLICITED | VRNIC_SLOT_IMM | VRNIC_SLOT_WRITE)

/* What goes into a slot; the rest goes into the slab. */
#define IN_SLOT (VRNIC_SLOT_LEN - VRNIC_SLOT_DATA)

static char *room_at(char *rooms, uint32_t i, uint32_t mask)
{
	return rooms + (size_t)(i & mask) * VRNIC_ROOM_LEN;
}

static char *slot_at(char *slots, uint32_t i, uint32_t mask)
{
	return slots + (size_t)(i & mask) * VRNIC_SLOT_LEN;
}

static bool is_power(uint32_t n)
{
	return n && !(n & (n - 1));
}

/* Where a direction lies: false if it does not fit. */
static bool find(const struct vrnic_map *m, int side, char **dir, uint32_t *slots, uint32_t *slab)
{
	uint32_t off = load_acquire(vrnic_word(m->mem, VRNIC_PAIR_OFF + 4 * side));
	uint64_t size;

	*slots = load_acquire(vrnic_word(m->mem, VRNIC_PAIR_SLOTS + 4 * side));
	*slab = load_acquire(vrnic_word(m->mem, VRNIC_PAIR_SLAB + 4 * side));
	if (!is_power(*slots) || *slots > VRNIC_MAX_DEPTH || !is_power(*slab) || *slab > VRNIC_MAX_SLAB)
		return false;
	size = (VRNIC_DIR_ROOMS + *slots * VRNIC_ROOM_LEN + 63) & ~63u;
	size += (uint64_t)*slots * VRNIC_SLOT_LEN + *slab;
	*dir = (char *)m->mem + off;
	return off % 64 == 0 && off <= m->len && size <= m->len - off;
}

static char *slots_of(char *dir, uint32_t slots)
{
	return dir + ((VRNIC_DIR_ROOMS + slots * VRNIC_ROOM_LEN + 63) & ~63u);
}

static void open_out(struct vrnic_pair_out *out, char *dir, uint32_t slots, uint32_t slab)
{
	out->open = vrnic_word(dir, VRNIC_DIR_OPEN);
	out->base = vrnic_word(dir, VRNIC_DIR_RECV_BASE);
	out->seq = vrnic_word(dir, VRNIC_DIR_SEQ);
	out->done = vrnic_word(dir, VRNIC_DIR_RECV_DONE);
	out->notify = vrnic_word(dir, VRNIC_DIR_NOTIFY);
	out->solicited = vrnic_word(dir, VRNIC_DIR_SOLICITED);
	out->own = vrnic_word(dir, VRNIC_DIR_OWN);
	out->messages = (_Atomic uint64_t *)(dir + VRNIC_DIR_MESSAGES);
	out->octets = (_Atomic uint64_t *)(dir + VRNIC_DIR_OCTETS);
	out->asked = (_Atomic uint64_t *)(dir + VRNIC_DIR_ASKED);
	out->imms = (_Atomic uint64_t *)(dir + VRNIC_DIR_IMMS);
	out->writes = (_Atomic uint64_t *)(dir + VRNIC_DIR_WRITES);
	out->unsent = (_Atomic uint64_t *)(dir + VRNIC_DIR_UNSENT);
	out->reads = (_Atomic uint64_t *)(dir + VRNIC_DIR_READS);
	out->read_octets = (_Atomic uint64_t *)(dir + VRNIC_DIR_READ_OCTETS);
	out->atomics = (_Atomic uint64_t *)(dir + VRNIC_DIR_ATOMICS);
	out->completed = vrnic_word(dir, VRNIC_DIR_COMPLETED);
	out->polled = vrnic_word(dir, VRNIC_DIR_POLLED);
	out->heard = vrnic_word(dir, VRNIC_DIR_HEARD);
	out->heard_asked = vrnic_word(dir, VRNIC_DIR_HEARD_ASKED);
	out->slab_cons = vrnic_word(dir, VRNIC_DIR_SLAB_CONS);
	out->want = vrnic_word(dir, VRNIC_DIR_WANT);
	out->takes = vrnic_word(dir, VRNIC_DIR_TAKES);
	out->bit_word = vrnic_word(dir, VRNIC_DIR_BIT);
	out->rooms = dir + VRNIC_DIR_ROOMS;
	out->slots = slots_of(dir, slots);
	out->mask = slots - 1;
	out->slab = out->slots + (size_t)slots * VRNIC_SLOT_LEN;
	out->slab_size = slab;
	out->was = out->used = load_acquire(out->base);
}

static void open_in(struct vrnic_pair_in *in, char *dir, uint32_t slots, uint32_t slab)
{
	in->rooms = dir + VRNIC_DIR_ROOMS;
	in->slots = slots_of(dir, slots);
	in->mask = slots - 1;
	in->slab = in->slots + (size_t)slots * VRNIC_SLOT_LEN;
	in->slab_size = slab;
	in->slab_cons_word = vrnic_word(dir, VRNIC_DIR_SLAB_CONS);
	in->want = vrnic_word(dir, VRNIC_DIR_WANT);
	in->spoiled = vrnic_word(dir, VRNIC_DIR_SPOILED);
	in->passed = vrnic_word(dir, VRNIC_DIR_PASSED);
	in->bit = vrnic_word(dir, VRNIC_DIR_BIT);
	in->heard = vrnic_word(dir, VRNIC_DIR_HEARD);
	in->heard_asked = vrnic_word(dir, VRNIC_DIR_HEARD_ASKED);
	store_release(vrnic_word(dir, VRNIC_DIR_TAKES), VRNIC_TAKES_IMM); /* before any room */
}

bool vrnic_pair_open(const struct vrnic_map *m, int side, uint32_t receives,
		     struct vrnic_pair_out *out, struct vrnic_pair_in *in)
{
	uint32_t slots, slab;
	char *dir;

	if (load_acquire(vrnic_word(m->mem, VRNIC_PAIR_MAGIC)) != VRNIC_MAGIC_PAIR ||
	    !find(m, side, &dir, &slots, &slab))
		return false;
	open_out(out, dir, slots, slab);
	out->peer = load_acquire(vrnic_word(m->mem, VRNIC_PAIR_QPN + 4 * !side));
	out->reach = load_acquire(vrnic_word(m->mem, VRNIC_PAIR_REACH + 4 * side));
	if (!find(m, !side, &dir, &slots, &slab) || slots != receives)
		return false;
	open_in(in, dir, slots, slab);
	return true;
}

/* Which receive the next message seems to be for. */
static uint32_t next_of(const struct vrnic_pair_out *out)
{
	uint32_t base = load_acquire(out->base);

	return base != out->was ? base : out->used;
}

/* Whether receive i is posted, as far as messages may go there. */
static bool posted(const struct vrnic_pair_out *out, uint32_t i)
{
	char *room = room_at(out->rooms, i, out->mask);

	return load_acquire(vrnic_word(room, VRNIC_ROOM_STAMP)) == ((i + 1) ^ out->room_bit);
}

/*
 * Finds out which bit the peer wants to be set behind each message, if it has not been found yet:
 * false if there is none. The peer has said so before the first room.
 */
static bool wants_bit(struct vrnic_pair_out *out)
{
	struct vrnic_bits bits;
	uint32_t n;

	if (out->room_bit || out->no_bits || !out->bits)
		return false;
	n = load_acquire(out->bit_word);
	if (!n)
		return false;
	if (!out->bits(out, &bits) || n > VRNIC_MAX_BITS) {
		out->no_bits = true;
		return false;
	}
	out->bits_word = &bits.words[(n - 1) / 32];
	out->bit = 1u << (n - 1) % 32;
	out->room_bit = VRNIC_ROOM_BIT;
	out->want = bits.want;
	return true;
}

bool vrnic_pair_has_room(struct vrnic_pair_out *out)
{
	uint32_t i = next_of(out);

	return posted(out, i) || (wants_bit(out) && posted(out, i));
}

/* A full fence, behind a read-modify-write that is one on amd64. */
static inline void fence_behind(void)
{
#ifndef __x86_64__
	atomic_thread_fence(memory_order_seq_cst);
#endif
}

/* Where in the slab a message of n octets goes, in one piece: false if there is no room now. */
static bool slab_room(struct vrnic_pair_out *out, uint32_t n)
{
	uint32_t size = out->slab_size, begin = out->slab_prod;
	uint32_t used = begin - load_acquire(out->slab_cons);

	if (used > size || n > size)
		return false;
	if ((begin & (size - 1)) + n > size)
		begin = (begin + size - 1) & ~(size - 1);
	if (begin - out->slab_prod + used + n > size)
		return false;
	out->slab_off = begin & (size - 1);
	out->slab_end = begin + n;
	return true;
}

/* How many octets a message takes of its receive, and beside them for immediate data. */
static uint32_t octets_of(const struct vrnic_pair_head *h)
{
	return h->flags & VRNIC_SLOT_WRITE ? 0 : h->length;
}

static uint32_t imm_len(const struct vrnic_pair_head *h)
{
	return h->flags & VRNIC_SLOT_IMM ? VRNIC_IMM_LEN : 0;
}

/* Whether the receive of a room, whose stamp is there, takes a message here. */
static bool takes(const struct vrnic_pair_out *out, char *room, const struct vrnic_pair_head *h)
{
	uint32_t length = atomic_load_explicit(vrnic_word(room, VRNIC_ROOM_LENGTH), memory_order_relaxed);

	/* TAKES behind the room, before which the receiver has said it */
	return length != VRNIC_NO_ROOM && octets_of(h) <= length &&
	       (!imm_len(h) || load_acquire(out->takes) & VRNIC_TAKES_IMM);
}

bool vrnic_pair_takes(const struct vrnic_pair_out *out, const struct vrnic_pair_head *h)
{
	uint32_t i = next_of(out);

	return posted(out, i) && takes(out, room_at(out->rooms, i, out->mask), h);
}

/* Steps 3 and 4. */
char *vrnic_pair_place(struct vrnic_pair_out *out, const struct vrnic_pair_head *h)
{
	uint32_t base, i, n = octets_of(h), imm = imm_len(h);
	char *room, *to;

	if (!load_acquire(out->open))
		return NULL;
	VRNIC_MARK(OPEN);
	base = load_acquire(out->base);
	if (base != out->was) /* the daemon has used some, behind all that were used here */
		out->was = out->used = base;
	i = out->used;
	room = room_at(out->rooms, i, out->mask);
	if (!posted(out, i) || !takes(out, room, h))
		return NULL;
	VRNIC_MARK(ROOM);
	out->slab_off = VRNIC_NO_SLAB;
	out->slab_end = out->slab_prod;
	if (n <= IN_SLOT - imm)
		to = slot_at(out->slots, i, out->mask) + VRNIC_SLOT_DATA;
	else if (slab_room(out, n + imm))
		to = out->slab + out->slab_off;
	else
		return NULL;
	if (imm)
		memcpy(to, h->imm, VRNIC_IMM_LEN);
	return to + imm;
}

static void enter(struct vrnic_pair_out *out)
{
	atomic_exchange(out->seq, ++out->odd);
	fence_behind();
}

bool vrnic_pair_enter(struct vrnic_pair_out *out)
{
	enter(out);
	if (load_acquire(out->open))
		return true;
	vrnic_pair_leave(out);
	return false;
}

void vrnic_pair_leave(struct vrnic_pair_out *out)
{
	store_release(out->seq, ++out->odd);
}

char *vrnic_pair_begin(struct vrnic_pair_out *out, const struct vrnic_pair_head *h)
{
	char *to;

	enter(out);
	VRNIC_MARK(ODD);
	to = vrnic_pair_place(out, h);
	if (!to)
		vrnic_pair_leave(out);
	return to;
}

static void count(_Atomic uint64_t *c, uint64_t n)
{
	atomic_store_explicit(c, atomic_load_explicit(c, memory_order_relaxed) + n,
			      memory_order_relaxed);
}

void vrnic_pair_wrote(struct vrnic_pair_out *out, uint32_t n)
{
	count(out->writes, 1);
	count(out->octets, n);
}

void vrnic_pair_wrote_nothing(struct vrnic_pair_out *out, bool sent)
{
	count(out->writes, 1);
	if (!sent)
		count(out->unsent, 1);
}

void vrnic_pair_read(struct vrnic_pair_out *out, uint32_t n)
{
	count(out->reads, 1);
	count(out->read_octets, n);
}

void vrnic_pair_modified(struct vrnic_pair_out *out)
{
	count(out->atomics, 1);
}

void vrnic_pair_end(struct vrnic_pair_out *out, const struct vrnic_pair_head *h)
{
	char *slot = slot_at(out->slots, out->used, out->mask);

	VRNIC_MARK(RECORDED);
	out->slab_prod = out->slab_end;
	*(uint32_t *)(slot + VRNIC_SLOT_LENGTH) = h->length;
	*(uint32_t *)(slot + VRNIC_SLOT_FLAGS) = h->flags;
	*(uint32_t *)(slot + VRNIC_SLOT_SLAB_OFF) = out->slab_off;
	out->used++;
	store_release(vrnic_word(slot, VRNIC_SLOT_STAMP), out->used);
	VRNIC_MARK(STAMPED);
	store_release(out->done, out->used);
	VRNIC_MARK(DONE);
	count(out->messages, 1);
	count(out->octets, octets_of(h));
	if (h->flags & VRNIC_SQ_SOLICITED)
		count(out->asked, 1);
	if (h->flags & VRNIC_SLOT_IMM)
		count(out->imms, 1);
	vrnic_pair_leave(out);
	VRNIC_MARK(EVEN);
	if (unlikely(out->bits_word)) { /* always, also if it looks set */
		atomic_fetch_or(out->bits_word, out->bit);
		VRNIC_MARK(MARKED);
	}
}

static void one_more(_Atomic uint32_t *count)
{
	store_release(count, atomic_load_explicit(count, memory_order_relaxed) + 1);
}

/* For a peer that seems to sleep: false, and the daemon has to tell it. */
static bool wake(struct vrnic_pair_out *out, bool solicited)
{
	uint32_t want;

	one_more(solicited ? out->heard_asked : out->heard);
	VRNIC_MARK(HEARD);
	/* Behind it, once more: who has woken meanwhile may not have seen it. */
	atomic_thread_fence(memory_order_seq_cst);
	want = atomic_load_explicit(out->want, memory_order_relaxed);
	if (!(want & VRNIC_WANT_ASLEEP))
		return false;
	if (want != out->woken && !out->wake(out))
		return false;
	out->woken = want;
	return true;
}

bool vrnic_pair_wanted(struct vrnic_pair_out *out, bool solicited, bool own)
{
	uint32_t want = atomic_load_explicit(out->want, memory_order_relaxed);

	if (unlikely(want & VRNIC_ARM_NEXT || (want & VRNIC_ARM_SOLICITED && solicited))) {
		want = !(want & VRNIC_WANT_ASLEEP && out->wake && wake(out, solicited));
		if (want)
			one_more(solicited ? out->solicited : out->notify);
	} else {
		want = 0;
	}
	if (unlikely(own))
		one_more(out->own);
	VRNIC_MARK(WANTED);
	return want || own;
}

void vrnic_pair_own(struct vrnic_pair_out *out)
{
	one_more(out->own);
}

void vrnic_pair_pass(struct vrnic_pair_in *in)
{
	one_more(in->passed);
}

void vrnic_pair_want_bit(struct vrnic_pair_in *in, uint32_t n)
{
	store_release(in->bit, n + 1);
	in->room_bit = VRNIC_ROOM_BIT;
}

void vrnic_pair_room(struct vrnic_pair_in *in, uint32_t i, uint64_t octets)
{
	char *room = room_at(in->rooms, i, in->mask);

	atomic_store_explicit(vrnic_word(room, VRNIC_ROOM_LENGTH),
			      octets < VRNIC_NO_ROOM && !in->closed ? octets : VRNIC_NO_ROOM,
			      memory_order_relaxed);
	VRNIC_MARK(LENGTH);
	store_release(vrnic_word(room, VRNIC_ROOM_STAMP), (i + 1) ^ in->room_bit);
	VRNIC_MARK(ROOMED);
}

bool vrnic_pair_stamped(const struct vrnic_pair_in *in, uint32_t i)
{
	return load_acquire(vrnic_word(slot_at(in->slots, i, in->mask), VRNIC_SLOT_STAMP)) == i + 1;
}

static uint32_t load(char *slot, size_t off)
{
	return atomic_load_explicit(vrnic_word(slot, off), memory_order_relaxed);
}

bool vrnic_pair_message(const struct vrnic_pair_in *in, uint32_t i, struct vrnic_pair_message *m)
{
	char *slot = slot_at(in->slots, i, in->mask);
	struct vrnic_pair_head *h = &m->head;
	uint32_t imm;

	h->length = load(slot, VRNIC_SLOT_LENGTH);
	h->flags = load(slot, VRNIC_SLOT_FLAGS);
	m->slab_off = load(slot, VRNIC_SLOT_SLAB_OFF);
	if (h->flags & ~KNOWN_FLAGS || (h->flags & VRNIC_SLOT_WRITE && !(h->flags & VRNIC_SLOT_IMM)))
		return false;
	imm = imm_len(h);
	m->octets = octets_of(h);
	if (m->slab_off == VRNIC_NO_SLAB) {
		if (m->octets > IN_SLOT - imm)
			return false;
		m->from = slot + VRNIC_SLOT_DATA;
	} else {
		if (m->slab_off >= in->slab_size || imm > in->slab_size - m->slab_off ||
		    m->octets > in->slab_size - m->slab_off - imm)
			return false;
		m->from = in->slab + m->slab_off;
	}
	m->slab_len = imm + m->octets;
	memcpy(h->imm, m->from, imm);
	m->from += imm;
	return true;
}

void vrnic_pair_taken(struct vrnic_pair_in *in, const struct vrnic_pair_message *m)
{
	VRNIC_MARK(TAKEN);
	if (m->slab_off == VRNIC_NO_SLAB)
		return;
	in->slab_cons += ((m->slab_off - in->slab_cons) & (in->slab_size - 1)) + m->slab_len;
	store_release(in->slab_cons_word, in->slab_cons);
	VRNIC_MARK(GIVEN_BACK);
}
