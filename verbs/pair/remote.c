/*
 * Writes, Reads and atomic operations of the direct path: the peer's program has lent its memory to
 * the daemon, which says by a table of keys what of it may be reached (pair/keys.h), and gives it
 * to this one when it is first used. What is not found there, and what is refused, is the daemon's.
 */
#include <stdlib.h>
#include <string.h>

#include "mark.h"
#include "remote.h"

/* What goes so: longer operations are the daemon's, since who posts waits for the copy. */
#define LONGEST (1u << 20)

/* As much is copied between two looks at the key. */
#define CHUNK (128u << 10)

/* Memories of the peer's that a queue pair has mapped at a time: docs/decisions.md#X10. */
#define MOST_MAPPED 64

/* Operations between two that ask for what there was not, at most. */
#define MOST_ASKED 4096

struct vrnic_remote {
	struct vrnic_session *s;
	uint32_t qp; /* its handle */
	struct vrnic_pair_out *out;
	struct vrnic_map table;
	struct vrnic_keys keys;
	uint32_t gone; /* of the table, when all of mapped was there */
	uint32_t ask_in, ask_every;
	uint32_t n, next; /* of mapped: how many there are, and where the next one goes */
	struct mapped {
		struct vrnic_map map;
		uint32_t mem;
	} mapped[MOST_MAPPED];
};

static void forget(struct vrnic_remote *r)
{
	while (r->n)
		vrnic_unmap(&r->mapped[--r->n].map);
	r->next = 0;
}

struct vrnic_remote *vrnic_remote_new(struct vrnic_session *s, uint32_t qp,
				      struct vrnic_pair_out *out)
{
	struct vrnic_remote *r = calloc(1, sizeof(*r));

	if (r) {
		r->s = s;
		r->qp = qp;
		r->out = out;
	}
	return r;
}

void vrnic_remote_free(struct vrnic_remote *r)
{
	if (!r)
		return;
	forget(r);
	vrnic_unmap(&r->table);
	free(r);
}

/* Whether it is time to ask the daemon: what there was not may be there later. */
static bool is_due(struct vrnic_remote *r)
{
	if (r->ask_in) {
		r->ask_in--;
		return false;
	}
	if (r->ask_every < MOST_ASKED)
		r->ask_every = 2 * r->ask_every + 1;
	r->ask_in = r->ask_every;
	return true;
}

/* Has the table there: false if it cannot be now. */
static bool has_table(struct vrnic_remote *r)
{
	struct vrnic_handle_request req = { .handle = r->qp };
	int fd;

	if (likely(r->table.mem))
		return true;
	if (!is_due(r) ||
	    vrnic_rpc(r->s, VRNIC_OP_DIRECT_KEYS, &req, sizeof(req), NULL, 0, -1, &fd, 1) ||
	    vrnic_map_peers(fd, VRNIC_KEYS_HEADER_LEN, false, &r->table))
		return false;
	if (!vrnic_keys_open(&r->table, &r->keys)) {
		vrnic_corrupt(r->s, "a table of keys");
		vrnic_unmap(&r->table);
		return false;
	}
	r->gone = load_acquire(r->keys.gone);
	r->ask_in = r->ask_every = 0;
	VRNIC_MARK(TABLE);
	return true;
}

static struct vrnic_map *find_mapped(struct vrnic_remote *r, uint32_t mem)
{
	uint32_t i;

	for (i = 0; i < r->n; i++)
		if (r->mapped[i].mem == mem)
			return &r->mapped[i].map;
	return NULL;
}

/* Maps mem of the peer's: false if that cannot be now. */
static bool map(struct vrnic_remote *r, uint32_t mem)
{
	struct vrnic_direct_mem_request req = { .qp = r->qp, .mem = mem };
	struct mapped m = { .mem = mem };
	int fd;

	if (!is_due(r) ||
	    vrnic_rpc(r->s, VRNIC_OP_DIRECT_MEM, &req, sizeof(req), NULL, 0, -1, &fd, 1) ||
	    vrnic_map_peers(fd, 1, true, &m.map))
		return false;
	if (r->n == MOST_MAPPED)
		vrnic_unmap(&r->mapped[r->next].map);
	else
		r->n++;
	r->mapped[r->next] = m;
	r->next = (r->next + 1) % MOST_MAPPED;
	r->ask_in = r->ask_every = 0;
	VRNIC_MARK(MAPPED);
	return true;
}

/*
 * Where in this process what w wants of the peer's is: NULL if it is not to be had. *mem is which
 * memory is to be mapped for it, or 0.
 */
static char *look(struct vrnic_remote *r, const struct vrnic_want *w, uint32_t *mem)
{
	struct vrnic_map *m;
	uint64_t off;

	*mem = 0;
	if (!vrnic_keys_find(&r->keys, w, mem, &off))
		return NULL;
	m = find_mapped(r, *mem);
	if (unlikely(!m))
		return NULL;
	*mem = 0;
	return off <= m->len && w->length <= m->len - off ? (char *)m->mem + off : NULL;
}

bool vrnic_remote_is_there(struct vrnic_remote *r, const struct vrnic_want *w)
{
	uint32_t mem, gone;

	if (!w->length || w->length > LONGEST || !(w->right & r->out->reach) || !has_table(r))
		return false;
	gone = load_acquire(r->keys.gone);
	if (unlikely(gone != r->gone)) {
		forget(r);
		r->gone = gone;
	}
	return look(r, w, &mem) || (mem && map(r, mem));
}

/* Steps 2 to 4: where it is, or NULL and it is the daemon's. */
static char *enter(struct vrnic_remote *r, const struct vrnic_want *w)
{
	uint32_t mem;
	char *at;

	if (!vrnic_pair_enter(r->out))
		return NULL;
	VRNIC_MARK(ENTERED);
	at = look(r, w, &mem);
	if (!at) {
		vrnic_pair_leave(r->out);
		return NULL;
	}
	VRNIC_MARK(FOUND);
	return at;
}

/* The n octets of iov from skip on. */
struct cursor {
	const struct iovec *iov;
	size_t skip; /* of *iov */
};

static void copy(struct cursor *c, char *far, size_t n, bool write)
{
	size_t k;
	char *near;

	while (n) {
		k = c->iov->iov_len - c->skip;
		if (!k) {
			c->iov++;
			c->skip = 0;
			continue;
		}
		if (k > n)
			k = n;
		near = (char *)c->iov->iov_base + c->skip;
		memmove(write ? far : near, write ? near : far, k);
		c->skip += k;
		far += k;
		n -= k;
	}
}

/*
 * Writes the last of a Write's octets behind the others, and together: the longest aligned word
 * that ends there. Programs poll it (docs/decisions.md#V16).
 */
static void copy_end(struct cursor *c, char *to, size_t n)
{
	union {
		uint8_t u8;
		uint16_t u16;
		uint32_t u32;
		uint64_t u64;
	} word;
	size_t k = 8;
	char *at;

	while (k > n || ((uintptr_t)to + n) % k)
		k /= 2;
	copy(c, to, n - k, true);
	copy(c, (char *)&word, k, true);
	at = to + n - k;
	switch (k) {
	case 8:
		atomic_store_explicit((_Atomic uint64_t *)at, word.u64, memory_order_release);
		break;
	case 4:
		atomic_store_explicit((_Atomic uint32_t *)at, word.u32, memory_order_release);
		break;
	case 2:
		atomic_store_explicit((_Atomic uint16_t *)at, word.u16, memory_order_release);
		break;
	default:
		atomic_store_explicit((_Atomic uint8_t *)at, word.u8, memory_order_release);
	}
}

/* All parts but the last, from *done on: where the last one goes, or NULL. */
static char *enter_last(struct vrnic_remote *r, const struct vrnic_want *w, struct cursor *c,
			uint32_t *done, bool write)
{
	char *far;

	for (*done = 0;; *done += CHUNK) {
		far = enter(r, w);
		if (!far || w->length - *done <= CHUNK)
			return far ? far + *done : NULL;
		copy(c, far + *done, CHUNK, write);
		VRNIC_MARK(PART);
		vrnic_pair_leave(r->out);
	}
}

/* A Write that stops in the middle begins again by the daemon. */
static bool place(struct vrnic_remote *r, const struct vrnic_want *w, const struct iovec *iov,
		  const struct vrnic_pair_head *told)
{
	struct cursor c = { .iov = iov };
	uint32_t done;
	char *far;

	if (told && !vrnic_pair_takes(r->out, told)) /* before all of it is copied for nothing */
		return false;
	far = enter_last(r, w, &c, &done, true);
	if (!far)
		return false;
	if (told && !vrnic_pair_place(r->out, told)) {
		vrnic_pair_leave(r->out);
		return false;
	}
	copy_end(&c, far, w->length - done);
	VRNIC_MARK(MOVED);
	vrnic_pair_wrote(r->out, w->length);
	return true;
}

bool vrnic_remote_write(struct vrnic_remote *r, const struct vrnic_want *w,
			const struct iovec *iov)
{
	bool done = place(r, w, iov, NULL);

	if (done)
		vrnic_pair_leave(r->out);
	return done;
}

bool vrnic_remote_write_told(struct vrnic_remote *r, const struct vrnic_want *w,
			     const struct iovec *iov, const struct vrnic_pair_head *told)
{
	return place(r, w, iov, told);
}

bool vrnic_remote_read(struct vrnic_remote *r, const struct vrnic_want *w,
		       const struct iovec *iov)
{
	struct cursor c = { .iov = iov };
	uint32_t done;
	char *far = enter_last(r, w, &c, &done, false);

	if (!far)
		return false;
	copy(&c, far, w->length - done, false);
	VRNIC_MARK(MOVED);
	vrnic_pair_read(r->out, w->length);
	vrnic_pair_leave(r->out);
	return true;
}

/* The word that w wants, for an atomic operation: NULL leaves it to the daemon. */
static _Atomic uint64_t *enter_word(struct vrnic_remote *r, const struct vrnic_want *w)
{
	char *far = enter(r, w);

	if (far && (w->addr % 8 || (uintptr_t)far % 8)) {
		vrnic_pair_leave(r->out);
		return NULL;
	}
	return (_Atomic uint64_t *)far;
}

/* It was old. */
static bool leave_word(struct vrnic_remote *r, const struct iovec *iov, uint64_t old)
{
	struct cursor c = { .iov = iov };

	VRNIC_MARK(MODIFIED);
	copy(&c, (char *)&old, sizeof(old), false);
	vrnic_pair_modified(r->out);
	vrnic_pair_leave(r->out);
	return true;
}

bool vrnic_remote_fetch_add(struct vrnic_remote *r, const struct vrnic_want *w,
			    const struct iovec *iov, uint64_t add)
{
	_Atomic uint64_t *far = enter_word(r, w);

	return far && leave_word(r, iov, atomic_fetch_add(far, add));
}

bool vrnic_remote_compare_swap(struct vrnic_remote *r, const struct vrnic_want *w,
			       const struct iovec *iov, uint64_t compare, uint64_t swap)
{
	_Atomic uint64_t *far = enter_word(r, w);

	if (!far)
		return false;
	atomic_compare_exchange_strong(far, &compare, swap);
	return leave_word(r, iov, compare);
}
