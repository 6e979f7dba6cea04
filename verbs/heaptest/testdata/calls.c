/* The functions of malloc(3), call by call. */
#include <malloc.h>

#include "heaptest.h"

void alignment(void)
{
	for (size_t align = 8; align <= 16 * MIB; align *= 2) {
		for (size_t size = 1; size < 10 * MIB; size = size * 7 + 3) {
			void *p, *q, *r;

			CHECK(!posix_memalign(&p, align, size));
			q = aligned_alloc(align, size);
			r = memalign(align, size);
			CHECK(q && r);
			CHECK(!((uintptr_t)p % align) && !((uintptr_t)q % align) && !((uintptr_t)r % align));
			CHECK(malloc_usable_size(p) >= size && malloc_usable_size(q) >= size &&
			      malloc_usable_size(r) >= size);
			memset(p, 1, malloc_usable_size(p));
			memset(q, 2, malloc_usable_size(q));
			memset(r, 3, malloc_usable_size(r));
			CHECK(*(char *)p == 1 && *(char *)q == 2 && *(char *)r == 3);
			free(p);
			free(q);
			free(r);
		}
	}
	void *v = valloc(10), *w = pvalloc(10);

	CHECK(v && w && !((uintptr_t)v % 4096) && !((uintptr_t)w % 4096) && malloc_usable_size(w) >= 4096);
	free(v);
	free(w);
	free(NULL);
	CHECK(!malloc_usable_size(NULL));
	void *untouched = &w;
	void *p = untouched;

	CHECK(posix_memalign(&p, 4097, 100000) == EINVAL && p == untouched);
	CHECK(posix_memalign(&p, 2, 100000) == EINVAL && p == untouched);
	CHECK(posix_memalign(&p, 0, 100000) == EINVAL && p == untouched);
}

void failure(void)
{
	static const size_t sizes[] = { SIZE_MAX, SIZE_MAX - 4096, PTRDIFF_MAX, (size_t)PTRDIFF_MAX + 1,
				       (size_t)1 << 46 };
	char *kept = malloc(100 * KIB);
	void *p;

	CHECK(kept);
	fill(kept, 100 * KIB, 9);
	for (size_t i = 0; i < sizeof(sizes) / sizeof(*sizes); i++) {
		volatile size_t n = sizes[i];

		errno = 0;
		CHECK(!malloc(n) && errno == ENOMEM);
		errno = 0;
		CHECK(!calloc(n, 1) && errno == ENOMEM);
		errno = 0;
		CHECK(!calloc(n / 2 + 1, 2) && errno == ENOMEM);
		errno = 0;
		CHECK(!realloc(kept, n) && errno == ENOMEM);
		errno = 0;
		CHECK(!memalign(4096, n) && errno == ENOMEM);
		CHECK(posix_memalign(&p, 4096, n) == ENOMEM);
	}
	CHECK(filled(kept, 100 * KIB, 100 * KIB, 9));
	errno = 77;
	free(kept);
	CHECK(errno == 77);
	kept = malloc(40 * MIB);
	CHECK(kept);
	errno = 78;
	free(kept);
	CHECK(errno == 78);
}

/* Memory that was in use is zero when calloc gives it out, whatever has become of it between. */
void zeros(void)
{
	for (int round = 0; round < 40; round++) {
		size_t n = (size_t)(round % 10 + 1) * (round % 3 ? 70 * KIB : 1500 * KIB);
		char *p = malloc(n), *q;

		CHECK(p);
		memset(p, 0xaa, n);
		free(p);
		q = calloc(n / 7, 7);
		CHECK(q && zero(q, n / 7 * 7));
		memset(q, 0xbb, n / 7 * 7);
		free(q);
	}
}

/* Longer and shorter, through every size at which something changes. */
void reallocation(void)
{
	static const size_t sizes[] = { 1,	  100,	   65535,   65536,    65537,	100000, 69632,
				       69633,	 4096, 70000, 200000,
					300000,	  10 * MIB, 9 * MIB, 40 * MIB, 90 * MIB, 65536, 33 * MIB, 100,  32 * MIB, 1,
						150 * MIB, 70 * MIB, 10 };
	size_t old = 0;
	char *p = NULL, *wall = NULL;

	for (int walls = 0; walls < 2; walls++) {
		for (size_t i = 0; i < sizeof(sizes) / sizeof(*sizes); i++) {
			size_t n = sizes[i];

			p = realloc(p, n);
			CHECK(p && malloc_usable_size(p) >= n);
			CHECK(filled(p, n < old ? n : old, old, i + 6));
			fill(p, n, i + 7);
			old = n;
			if (walls) { /* so that it cannot grow where it is */
				free(wall);
				wall = malloc(70000);
				CHECK(wall);
			}
		}
		free(p);
		p = NULL;
		old = 0;
	}
	free(wall);
	p = malloc(100 * KIB);
	CHECK(p && !realloc(p, 0)); /* as glibc: it is freed */
	p = reallocarray(NULL, 1000, 100);
	CHECK(p);
	fill(p, 100000, 1);
	p = reallocarray(p, 1000, 1000);
	CHECK(p && filled(p, 100000, 100000, 1));
	free(p);
}
