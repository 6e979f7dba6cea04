/*
 * The direct path as it is (pair/pair.c), with three threads that run freely: one sends, one
 * receives, and one is the daemon, which takes the direction and gives it back, and uses receives
 * meanwhile:
 *
 *   pair TIMES     prints how many messages were in a receive that was used already, out of order,
 *                  or not whole, and then how often the direction changed hands
 */
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "pair/pair.h"

#define DEPTH 8u
#define SLAB 4096u

static struct vrnic_map map;
static struct vrnic_pair_out out, none_out;
static struct vrnic_pair_in in, none_in;
static char *dir;
static uint32_t times, bad, changes;
static _Atomic uint32_t over, posted, by_daemon[DEPTH];

static _Atomic uint32_t *word(uint32_t off)
{
	return vrnic_word(dir, off);
}

static uint32_t slots_at(void)
{
	return (VRNIC_DIR_ROOMS + DEPTH * VRNIC_ROOM_LEN + 63) & ~63u;
}

static bool make(void)
{
	uint32_t i, len = slots_at() + DEPTH * VRNIC_SLOT_LEN + SLAB;

	map.len = VRNIC_PAIR_HEADER_LEN + 2 * len;
	map.mem = aligned_alloc(64, (map.len + 63) & ~63ul);
	if (!map.mem)
		return false;
	memset(map.mem, 0, map.len);
	atomic_store(vrnic_word(map.mem, VRNIC_PAIR_MAGIC), VRNIC_MAGIC_PAIR);
	for (i = 0; i < 2; i++) {
		atomic_store(vrnic_word(map.mem, VRNIC_PAIR_OFF + 4 * i), VRNIC_PAIR_HEADER_LEN + i * len);
		atomic_store(vrnic_word(map.mem, VRNIC_PAIR_SLOTS + 4 * i), DEPTH);
		atomic_store(vrnic_word(map.mem, VRNIC_PAIR_SLAB + 4 * i), SLAB);
	}
	dir = (char *)map.mem + VRNIC_PAIR_HEADER_LEN;
	for (i = 0; i < DEPTH; i++) { /* of no receive */
		atomic_store(word(VRNIC_DIR_ROOMS + i * VRNIC_ROOM_LEN + VRNIC_ROOM_STAMP), -DEPTH);
		atomic_store(word(slots_at() + i * VRNIC_SLOT_LEN + VRNIC_SLOT_STAMP), -DEPTH);
	}
	return vrnic_pair_open(&map, 0, DEPTH, &out, &none_in) &&
	       vrnic_pair_open(&map, 1, DEPTH, &none_out, &in);
}

/* There may be one processor. */
static void relax(uint32_t *idle)
{
	if (++*idle % 1024 == 0)
		sched_yield();
}

/* Words of message n: some go into a slot, some into the slab. */
static uint32_t words(uint32_t n)
{
	return 1 + n * 7 % 60;
}

/* Some messages have immediate data, and some of these tell of a Write. */
static struct vrnic_pair_head head(uint32_t n)
{
	struct vrnic_pair_head h = { .length = 4 * words(n) };

	if (n % 3)
		h.flags = VRNIC_SLOT_IMM;
	if (n % 3 == 2)
		h.flags |= VRNIC_SLOT_WRITE;
	if (h.flags)
		h.imm[0] = n, h.imm[1] = ~n;
	return h;
}

/* What Writes go to: no more than DEPTH of them have not been looked at. */
static uint32_t written[2 * DEPTH][64];

static void *sends(void *arg)
{
	uint32_t n = 0, idle = 0, k, *to;
	struct vrnic_pair_head h;

	while (!load_acquire(&over)) {
		h = head(n);
		to = (uint32_t *)vrnic_pair_begin(&out, &h);
		if (!to) {
			relax(&idle);
			continue;
		}
		if (h.flags & VRNIC_SLOT_WRITE)
			to = written[n % (2 * DEPTH)];
		for (k = 0; k < words(n); k++)
			to[k] = n + k;
		vrnic_pair_end(&out, &h);
		n++;
	}
	return arg;
}

static void *receive(void *arg)
{
	struct vrnic_pair_message m;
	uint32_t i = 0, n = 0, idle = 0, k, prod = 0;
	struct vrnic_pair_head h;
	const uint32_t *from;

	while (n < times) {
		while (prod - i < DEPTH) {
			store_release(&posted, ++prod);
			vrnic_pair_room(&in, prod - 1, 4 * 64);
		}
		if (load_acquire(&by_daemon[i % DEPTH]) == i + 1) {
			bad += vrnic_pair_stamped(&in, i++);
			continue;
		}
		if (!vrnic_pair_stamped(&in, i)) {
			relax(&idle);
			continue;
		}
		bad += load_acquire(&by_daemon[i % DEPTH]) == i + 1;
		if (!vrnic_pair_message(&in, i, &m)) {
			bad++;
			break;
		}
		h = head(n);
		bad += !!memcmp(&h, &m.head, h.flags ? sizeof(h) : offsetof(struct vrnic_pair_head, imm));
		from = h.flags & VRNIC_SLOT_WRITE ? written[n % (2 * DEPTH)] : (const uint32_t *)m.from;
		bad += m.octets != (h.flags & VRNIC_SLOT_WRITE ? 0 : h.length);
		for (k = 0; k < words(n); k++)
			bad += from[k] != n + k;
		vrnic_pair_taken(&in, &m);
		i++;
		n++;
	}
	store_release(&over, 1);
	return arg;
}

/* docs/direct.md#owner */
static void daemon_does(void)
{
	uint32_t head = 0, idle = 0, seq, k;

	for (changes = 0; !load_acquire(&over); changes++) {
		store_release(word(VRNIC_DIR_RECV_BASE), head);
		store_release(word(VRNIC_DIR_OPEN), 1);
		for (k = 0; k < changes % 64; k++)
			relax(&idle);
		atomic_exchange(word(VRNIC_DIR_OPEN), 0);
		atomic_thread_fence(memory_order_seq_cst);
		seq = load_acquire(word(VRNIC_DIR_SEQ));
		while (seq & 1 && load_acquire(word(VRNIC_DIR_SEQ)) == seq && !load_acquire(&over))
			relax(&idle);
		if ((int32_t)(load_acquire(word(VRNIC_DIR_RECV_DONE)) - head) > 0)
			head = load_acquire(word(VRNIC_DIR_RECV_DONE));
		for (k = changes % 3; k && head != load_acquire(&posted); k--, head++)
			store_release(&by_daemon[head % DEPTH], head + 1);
	}
}

int main(int argc, char **argv)
{
	pthread_t threads[2];

	times = argc == 2 ? (uint32_t)atoi(argv[1]) : 0;
	if (!times || !make())
		return 2;
	alarm(300 + times / 10000); /* a message that is lost is waited for */
	if (pthread_create(&threads[0], NULL, receive, NULL) ||
	    pthread_create(&threads[1], NULL, sends, NULL))
		return 2;
	daemon_does();
	pthread_join(threads[0], NULL);
	pthread_join(threads[1], NULL);
	printf("%u %u\n", bad, changes);
	free(map.mem);
	return 0;
}
