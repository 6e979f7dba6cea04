/* Random calls against a model, in one thread and in several. */
#include <malloc.h>
#include <pthread.h>

#include "heaptest.h"

static uint64_t pick(struct model *m, uint64_t n)
{
	m->seed = m->seed * 6364136223846793005u + 1442695040888963407u;
	return (m->seed >> 33) % n;
}

static size_t pick_size(struct model *m)
{
	switch (pick(m, 8)) {
	case 0:
		return pick(m, 200) + 1;
	case 1:
		return pick(m, 8 * MIB) + 1;
	case 2:
		return 65536 - 10 + pick(m, 20);
	default:
		return pick(m, 300 * KIB) + 1;
	}
}

static void check_block(const struct block *b)
{
	CHECK(!b->p || (filled(b->p, b->n, b->n, b->key) && malloc_usable_size(b->p) >= b->n));
}

void check_all(const struct model *m)
{
	for (int i = 0; i < BLOCKS; i++)
		check_block(&m->block[i]);
}

void step(struct model *m)
{
	struct block *b = &m->block[pick(m, BLOCKS)];
	size_t n = pick_size(m);
	void *p = NULL;

	check_block(b);
	if (b->p && pick(m, 3)) {
		p = realloc(b->p, n);
		CHECK(p && filled(p, n < b->n ? n : b->n, b->n, b->key));
	} else {
		free(b->p);
		*b = (struct block){ 0 };
		switch (pick(m, 5)) {
		case 0:
			return;
		case 1:
			p = malloc(n);
			break;
		case 2:
			p = calloc(1, n);
			CHECK(p && zero(p, n));
			break;
		case 3:
			CHECK(!posix_memalign(&p, (size_t)4096 << pick(m, 6), n));
			break;
		default:
			p = memalign(64, n);
		}
	}
	CHECK(p);
	*b = (struct block){ p, n, ++m->key };
	fill(p, n, b->key);
}

void free_all(struct model *m)
{
	for (int i = 0; i < BLOCKS; i++)
		free(m->block[i].p);
	memset(m->block, 0, sizeof(m->block));
}

void random_calls(void)
{
	static struct model m;

	for (m.seed = 1; m.seed < 4; m.seed++) {
		uint64_t seed = m.seed;

		for (int i = 0; i < 1500; i++)
			step(&m);
		check_all(&m);
		free_all(&m);
		m.seed = seed;
	}
}

static void *many_steps(void *arg)
{
	struct model m = { .seed = (uintptr_t)arg };

	for (int i = 0; i < 800; i++)
		step(&m);
	check_all(&m);
	free_all(&m);
	return NULL;
}

/* Several threads, and blocks that another thread frees. */
void threads(void)
{
	pthread_t t[4];

	for (uintptr_t i = 0; i < 4; i++)
		CHECK(!pthread_create(&t[i], NULL, many_steps, (void *)(i + 10)));
	for (int i = 0; i < 4; i++)
		CHECK(!pthread_join(t[i], NULL));
}
