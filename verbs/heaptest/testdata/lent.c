/* What is so of memory that is lent. */
#include <fcntl.h>
#include <malloc.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "heaptest.h"

void where(void)
{
	char *p;

	p = malloc(64 * KIB);
	CHECK(p && lent(p));
	p = malloc(64 * KIB - 1);
	CHECK(p && !lent(p));
	p = calloc(64, KIB);
	CHECK(p && lent(p));
	p = realloc(NULL, 64 * KIB);
	CHECK(p && lent(p));
	p = realloc(p, 100);
	CHECK(p && !lent(p));
	p = realloc(p, 64 * KIB);
	CHECK(p && lent(p));
	p = memalign(4096, 1);
	CHECK(p && lent(p));
	p = memalign(2048, 1);
	CHECK(p && !lent(p));
	p = memalign(64, 64 * KIB);
	CHECK(p && lent(p));
	p = aligned_alloc(8192, 8192);
	CHECK(p && lent(p));
	p = valloc(1);
	CHECK(p && lent(p));
	p = pvalloc(1);
	CHECK(p && lent(p));
	p = malloc(200 * MIB);
	CHECK(p && lent(p) && lent(p + 200 * MIB - 1));
	free(p);
	CHECK(!*mapping(p));
	pid_t pid = fork();

	CHECK(pid >= 0);
	if (!pid) { /* which can lend memory too, its own */
		int fds;

		CHECK(held(&fds) == 0 && fds == 0);
		p = malloc(64 * KIB);
		CHECK(p && lent(p) && held(&fds) == 0 && fds == 1);
		_exit(0);
	}
	reap(pid);
}

/* What is freed does not stay. */
void given_back(void)
{
	enum { N = 200 };
	static char *p[N];
	int fds, start;
	size_t most;

	for (int round = 0; round < 3; round++) {
		for (int i = 0; i < N; i++) {
			p[i] = malloc(MIB);
			CHECK(p[i] && lent(p[i]));
			memset(p[i], 1, MIB);
		}
		most = held(&fds);
		CHECK(most >= N * MIB && most < N * MIB + 16 * MIB && fds >= 4);
		start = fds;
		for (int i = 0; i < N; i += 2)
			free(p[i]);
		CHECK(held(&fds) < N / 2 * MIB + 16 * MIB && fds == start);
		for (int i = 1; i < N; i += 2) {
			CHECK(p[i][0] == 1 && p[i][MIB - 1] == 1);
			free(p[i]);
		}
		CHECK(held(&fds) < 16 * MIB && fds == 1);
	}
	for (int i = 0; i < 1000; i++) { /* nor does it take more and more of the address space */
		char *q = malloc(40 * MIB);

		CHECK(q && lent(q));
		q[0] = 1;
		free(q);
	}
	CHECK(held(&fds) < 16 * MIB && fds == 1);
}

void off(void)
{
	void *p = malloc(MIB), *q = memalign(4096, MIB);

	CHECK(p && q && !lent(p) && !lent(q));
}

/*
 * The descriptors are as the daemon wants them, out of the way, and not for programs that are
 * executed.
 */
void descriptors(void)
{
	char *p = malloc(MIB);
	int fd = lent_fd(0);

	CHECK(p && lent(p));
	CHECK(fd >= 100 && lent_fd(fd + 1) < 0 && fcntl(fd, F_GETFD) == FD_CLOEXEC);
	CHECK((fcntl(fd, F_GET_SEALS) & (F_SEAL_SHRINK | F_SEAL_GROW)) == (F_SEAL_SHRINK | F_SEAL_GROW));
	CHECK(open("/dev/null", O_RDONLY) < 100);
}

/*
 * Where something foreign leaves no room, memory comes from libc, and attempts leave nothing
 * behind.
 */
void in_the_way(void)
{
	enum { SLOTS = 200 };
	static char *foreign[SLOTS];
	char *p = malloc(MIB), *q;
	int fds;

	CHECK(p && lent(p));
	for (size_t i = 0; i < SLOTS; i++) { /* 8 MiB into each of those that come next */
		char *at = (char *)(((uintptr_t)p & ~(64 * MIB - 1)) + (i + 1) * 64 * MIB + 8 * MIB);

		foreign[i] = mmap(at, 4096, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);
		CHECK(foreign[i] == at);
	}
	for (int i = 0; i < 500; i++) {
		q = malloc(40 * MIB);
		CHECK(q && !lent(q));
		free(q);
	}
	held(&fds);
	CHECK(fds == 1);
	for (int i = 0; i < SLOTS; i++)
		munmap(foreign[i], 4096);
	for (int i = 0; i < 100; i++) { /* it does not try again at once */
		q = malloc(40 * MIB);
		CHECK(q);
		if (lent(q))
			break;
		free(q);
	}
	CHECK(lent(q));
	free(q);
	free(p);
}

/* How long it takes, for the eye: with and without the library. */
void speed(void)
{
	static const size_t sizes[] = { 64 * KIB, 256 * KIB, MIB, 20 * MIB };

	for (size_t k = 0; k < 4; k++) {
		struct timespec a, b;
		int n = 20000;

		clock_gettime(CLOCK_MONOTONIC, &a);
		for (int i = 0; i < n; i++) {
			char *p = malloc(sizes[k]);

			CHECK(p);
			*(volatile char *)p = 1;
			free(p);
		}
		clock_gettime(CLOCK_MONOTONIC, &b);
		printf("malloc and free of %zu: %.0f ns\n", sizes[k],
		       ((b.tv_sec - a.tv_sec) * 1e9 + (b.tv_nsec - a.tv_nsec)) / n);
	}
}
