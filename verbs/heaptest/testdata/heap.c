/*
 * A program that allocates, and checks what it gets. Each argument is the name of a case. Those of `same` hold for any malloc, those of
 * `lent` for libvrnic-heap.so.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <malloc.h>
#include <pthread.h>
#include <spawn.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#define KIB ((size_t)1024)
#define MIB (KIB * KIB)

#define CHECK(c)                                                                                   \
	do {                                                                                       \
		if (!(c)) {                                                                        \
			fprintf(stderr, "%s:%d: not so: %s (errno %d)\n", __func__, __LINE__, #c, errno); \
			abort();                                                                   \
		}                                                                                  \
	} while (0)

extern char **environ;

/* The mapping that has p: its line of /proc/self/maps. */
static const char *mapping(const void *p)
{
	static char line[512];
	FILE *f = fopen("/proc/self/maps", "re");
	uintptr_t lo, hi;

	CHECK(f);
	while (fgets(line, sizeof(line), f)) {
		CHECK(sscanf(line, "%" SCNxPTR "-%" SCNxPTR, &lo, &hi) == 2);
		if ((uintptr_t)p >= lo && (uintptr_t)p < hi) {
			fclose(f);
			return line;
		}
	}
	fclose(f);
	return "";
}

static bool lent(const void *p) { return strstr(mapping(p), "rw-s") && strstr(mapping(p), "/memfd:vrnic-heap"); }

/* How many octets of memory the descriptors of lent memory have, and how many descriptors there are. */
static size_t held(int *fds)
{
	size_t sum = 0;
	char name[64], to[64];
	struct stat st;

	*fds = 0;
	for (int fd = 0; fd < 1024; fd++) {
		snprintf(name, sizeof(name), "/proc/self/fd/%d", fd);
		ssize_t n = readlink(name, to, sizeof(to) - 1);

		if (n < 0)
			continue;
		to[n] = 0;
		if (!strstr(to, "memfd:vrnic-heap") || fstat(fd, &st))
			continue;
		sum += st.st_blocks * 512;
		++*fds;
	}
	return sum;
}

/* Fills memory with a pattern of its own, and looks whether it is there. */
static void fill(void *p, size_t n, unsigned int key)
{
	for (size_t i = 0; i < n; i += 509)
		((unsigned char *)p)[i] = key + i / 509;
	if (n)
		((unsigned char *)p)[n - 1] = key ^ 0x55;
}

static bool filled(const void *p, size_t n, size_t of, unsigned int key)
{
	const unsigned char *s = p;

	for (size_t i = 0; i < n; i += 509)
		if (i != of - 1 && s[i] != (unsigned char)(key + i / 509))
			return false;
	return n < of || !n || s[n - 1] == (unsigned char)(key ^ 0x55);
}

static bool zero(const char *p, size_t n)
{
	for (size_t i = 0; i < n; i++)
		if (p[i])
			return false;
	return true;
}

/* Waits for a child, which must exit with 0. */
static void reap(pid_t pid)
{
	int status;

	CHECK(waitpid(pid, &status, 0) == pid);
	CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

/*
 * What is so of any malloc.
 */

static void alignment(void)
{
	for (size_t align = 8; align <= 16 * MIB; align *= 2) {
		for (size_t size = 1; size < 10 * MIB; size = size * 7 + 3) {
			void *p, *q, *r;

			CHECK(!posix_memalign(&p, align, size));
			q = aligned_alloc(align, size);
			r = memalign(align, size);
			CHECK(q && r);
			CHECK(!((uintptr_t)p % align) && !((uintptr_t)q % align) && !((uintptr_t)r % align));
			CHECK(malloc_usable_size(p) >= size && malloc_usable_size(q) >= size && malloc_usable_size(r) >= size);
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

static void failure(void)
{
	static const size_t sizes[] = { SIZE_MAX, SIZE_MAX - 4096, PTRDIFF_MAX, (size_t)PTRDIFF_MAX + 1, (size_t)1 << 46 };
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
static void zeros(void)
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
static void reallocation(void)
{
	static const size_t sizes[] = { 1,	  100,	   65535,   65536,    65537,	100000, 69632, 69633,	 4096, 70000, 200000,
					300000,	  10 * MIB, 9 * MIB, 40 * MIB, 90 * MIB, 65536, 33 * MIB, 100,  32 * MIB, 1, 150 * MIB, 70 * MIB, 10 };
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

/*
 * Random calls against a model: what is in use keeps its octets, and no two overlap.
 */

#define BLOCKS 64

struct block {
	char *p;
	size_t n;
	unsigned int key;
};

struct model {
	struct block block[BLOCKS];
	uint64_t seed;
	unsigned int key;
};

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

static void check_all(const struct model *m)
{
	for (int i = 0; i < BLOCKS; i++)
		check_block(&m->block[i]);
}

static void step(struct model *m)
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

static void free_all(struct model *m)
{
	for (int i = 0; i < BLOCKS; i++)
		free(m->block[i].p);
	memset(m->block, 0, sizeof(m->block));
}

static void random_calls(void)
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
static void threads(void)
{
	pthread_t t[4];

	for (uintptr_t i = 0; i < 4; i++)
		CHECK(!pthread_create(&t[i], NULL, many_steps, (void *)(i + 10)));
	for (int i = 0; i < 4; i++)
		CHECK(!pthread_join(t[i], NULL));
}

/*
 * Forks.
 */

/* Parent and child have what was there, and what each does from then on the other does not see. */
static void forks(void)
{
	static struct model m = { .seed = 5 };
	int go[2], done[2];
	char c;

	for (int round = 0; round < 5; round++) {
		for (int i = 0; i < 100; i++)
			step(&m);
		CHECK(!pipe(go) && !pipe(done));
		pid_t pid = fork();

		CHECK(pid >= 0);
		if (!pid) {
			check_all(&m);
			CHECK(read(go[0], &c, 1) == 1); /* the parent has changed its own */
			check_all(&m);
			for (int i = 0; i < 100; i++) /* frees, changes, allocates */
				step(&m);
			check_all(&m);
			CHECK(write(done[1], "x", 1) == 1);
			pid = fork();
			CHECK(pid >= 0);
			if (pid)
				reap(pid);
			check_all(&m);
			free_all(&m);
			_exit(0);
		}
		for (int i = 0; i < BLOCKS; i++) {
			struct block *b = &m.block[i];

			if (b->p)
				fill(b->p, b->n, b->key = ++m.key);
		}
		CHECK(write(go[1], "x", 1) == 1 && read(done[0], &c, 1) == 1); /* the child has changed its own */
		check_all(&m);
		reap(pid);
		check_all(&m);
		close(go[0]);
		close(go[1]);
		close(done[0]);
		close(done[1]);
	}
	free_all(&m);
}

/* Allocates until it is told to stop. */
static volatile bool stop;

static void *steps_until(void *arg)
{
	struct model m = { .seed = (uintptr_t)arg };

	while (!stop)
		step(&m);
	check_all(&m);
	free_all(&m);
	return NULL;
}

static void forks_with_threads(void)
{
	static struct model m = { .seed = 6 };
	pthread_t t[3];

	stop = false;
	for (uintptr_t i = 0; i < 3; i++)
		CHECK(!pthread_create(&t[i], NULL, steps_until, (void *)(i + 20)));
	for (int round = 0; round < 12; round++) {
		for (int i = 0; i < 10; i++)
			step(&m);
		pid_t pid = fork();

		CHECK(pid >= 0);
		if (!pid) {
			check_all(&m);
			for (int i = 0; i < 10; i++)
				step(&m);
			check_all(&m);
			_exit(0);
		}
		reap(pid);
	}
	stop = true;
	for (int i = 0; i < 3; i++)
		CHECK(!pthread_join(t[i], NULL));
	free_all(&m);
}

/* Halves that are equal whenever the lock is free, as a fork finds it. */
static pthread_mutex_t halves_lock = PTHREAD_MUTEX_INITIALIZER;
static uint32_t *halves;
#define HALF (512 * KIB / sizeof(uint32_t))

static void lock_halves(void) { pthread_mutex_lock(&halves_lock); }
static void unlock_halves(void) { pthread_mutex_unlock(&halves_lock); }

static void *change_halves(void *arg)
{
	(void)arg;
	for (uint32_t n = 1; !stop; n++) {
		lock_halves();
		for (size_t i = 0; i < HALF; i += 64)
			halves[i] = n;
		for (size_t i = 0; i < HALF; i += 64)
			halves[HALF + i] = n;
		unlock_halves();
	}
	return NULL;
}

static void forks_with_locks(void)
{
	pthread_t t;

	halves = calloc(2 * HALF, sizeof(*halves));
	CHECK(halves);
	CHECK(!pthread_atfork(lock_halves, unlock_halves, unlock_halves));
	stop = false;
	CHECK(!pthread_create(&t, NULL, change_halves, NULL));
	for (int round = 0; round < 50; round++) {
		pid_t pid = fork();

		CHECK(pid >= 0);
		if (!pid) {
			for (size_t i = 0; i < 2 * HALF; i += 64)
				CHECK(halves[i] == halves[0]);
			_exit(0);
		}
		reap(pid);
	}
	stop = true;
	CHECK(!pthread_join(t, NULL));
	free(halves);
}

/* A child that is killed, and a fork that fails, are nothing to the parent. */
static void killed_children(void)
{
	static struct model m = { .seed = 7 };
	struct rlimit lim, none = { 0, 0 };

	for (int round = 0; round < 30; round++) {
		step(&m);
		pid_t pid = fork();
		int status;

		CHECK(pid >= 0);
		if (!pid) {
			for (;;)
				step(&m);
		}
		if (round % 2)
			usleep(round * 200);
		CHECK(!kill(pid, SIGKILL) && waitpid(pid, &status, 0) == pid && WIFSIGNALED(status));
		check_all(&m);
	}
	CHECK(!getrlimit(RLIMIT_NPROC, &lim));
	none.rlim_max = lim.rlim_max;
	if (geteuid() && !setrlimit(RLIMIT_NPROC, &none)) {
		CHECK(fork() < 0 && errno == EAGAIN);
		CHECK(!setrlimit(RLIMIT_NPROC, &lim));
	}
	step(&m);
	check_all(&m);
	free_all(&m);
}

/* What the program has done to a part of its memory is so in the child. */
static void protected_parts(void)
{
	char *p;
	int status;
	pid_t pid;

	CHECK(!posix_memalign((void **)&p, 4096, 64 * KIB));
	fill(p, 64 * KIB, 3);
	CHECK(!mprotect(p + 4096, 4096, PROT_NONE) && !mprotect(p + 8192, 4096, PROT_READ) && !madvise(p + 16384, 4096, MADV_DONTFORK));
	for (int i = 0; i < 4; i++) {
		pid = fork();
		CHECK(pid >= 0);
		if (!pid) {
			if (i == 0)
				*(volatile char *)(p + 4096); /* SIGSEGV */
			if (i == 1)
				*(volatile char *)(p + 8192) = 1;
			if (i == 2)
				*(volatile char *)(p + 16384);
			CHECK(!mprotect(p + 4096, 8192, PROT_READ | PROT_WRITE));
			CHECK(filled(p, 16384, 64 * KIB, 3));
			p[8192] = 1;
			_exit(0);
		}
		CHECK(waitpid(pid, &status, 0) == pid);
		if (i < 3)
			CHECK(WIFSIGNALED(status) && WTERMSIG(status) == SIGSEGV);
		else
			CHECK(WIFEXITED(status) && !WEXITSTATUS(status));
	}
	CHECK(!mprotect(p, 64 * KIB, PROT_READ | PROT_WRITE) && filled(p, 64 * KIB, 64 * KIB, 3));
	free(p);
}

static void spawned(void)
{
	char *p = malloc(10 * MIB);
	pid_t pid;

	CHECK(p);
	fill(p, 10 * MIB, 8);
	for (int i = 0; i < 10; i++) {
		char *args[] = { "true", NULL };

		CHECK(!posix_spawnp(&pid, "true", NULL, NULL, args, environ));
		reap(pid);
		pid = vfork();
		if (!pid)
			_exit(0);
		reap(pid);
		CHECK(!system("true"));
	}
	CHECK(filled(p, 10 * MIB, 10 * MIB, 8));
	free(p);
}

/* A program that closes all that it has not opened, and then has descriptors of its own with those numbers. */
static void closes_all(void)
{
	static struct model m = { .seed = 8 };
	char name[] = "/tmp/vrnic-heap-XXXXXX";
	struct stat st;
	int fd, n;

	for (int i = 0; i < 100; i++)
		step(&m);
	fd = mkstemp(name);
	CHECK(fd >= 0 && !unlink(name));
	char *content = malloc(MIB), *back = malloc(MIB);

	CHECK(content && back);
	fill(content, MIB, 5);
	CHECK(write(fd, content, MIB) == (ssize_t)MIB);
	for (n = 3; n < 1024; n++)
		if (n != fd)
			dup2(fd, n);
	for (int i = 0; i < 1000; i++)
		step(&m);
	for (int i = 0; i < 3; i++) {
		pid_t pid = fork();

		CHECK(pid >= 0);
		if (!pid) {
			check_all(&m);
			for (int k = 0; k < 100; k++)
				step(&m);
			check_all(&m);
			_exit(0);
		}
		step(&m);
		reap(pid);
		check_all(&m);
	}
	free_all(&m);
	for (n = 3; n < 1024; n++)
		CHECK(!fstat(n, &st) && st.st_size == (off_t)MIB);
	CHECK(pread(fd, back, MIB, 0) == (ssize_t)MIB && !memcmp(content, back, MIB));
	free(content);
	free(back);
}

/* Where the limits of a process leave no descriptors, no files and hardly an address space, there is memory all the same. */
static void limits(void)
{
	static struct model m = { .seed = 9 };
	struct rlimit lim;
	static const int what[] = { RLIMIT_NOFILE, RLIMIT_FSIZE, RLIMIT_AS };
	static const rlim_t value[] = { 3, 0, 2048 * MIB };

	for (int i = 0; i < 3; i++) {
		pid_t pid = fork();

		CHECK(pid >= 0);
		if (!pid) {
			CHECK(!getrlimit(what[i], &lim));
			lim.rlim_cur = value[i];
			CHECK(!setrlimit(what[i], &lim));
			for (int k = 0; k < 500; k++)
				step(&m);
			check_all(&m);
			free_all(&m);
			_exit(0);
		}
		reap(pid);
	}
}

/* Memory that the program has locked and freed does not stay locked for who has it next, and is zero. */
static void locked(void)
{
	for (int i = 0; i < 20; i++) {
		char *p = memalign(4096, 1 * MIB);

		CHECK(p && zero(memset(p, 0, MIB), MIB));
		memset(p, 1, MIB);
		CHECK(!mlock(p, 100 * KIB) || errno == ENOMEM || errno == EPERM);
		free(p);
		p = calloc(1, 2 * MIB);
		CHECK(p && zero(p, 2 * MIB));
		free(p);
	}
}

/*
 * What is so of memory that is lent.
 */

static void where(void)
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
static void given_back(void)
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

static void off(void)
{
	void *p = malloc(MIB), *q = memalign(4096, MIB);

	CHECK(p && q && !lent(p) && !lent(q));
}

/* The descriptors are as the daemon wants them, out of the way, and not for programs that are executed. */
static void descriptors(void)
{
	char *p = malloc(MIB);
	char name[64], to[64];
	int found = 0;

	CHECK(p && lent(p));
	for (int fd = 0; fd < 1024; fd++) {
		snprintf(name, sizeof(name), "/proc/self/fd/%d", fd);
		ssize_t n = readlink(name, to, sizeof(to) - 1);

		if (n < 0)
			continue;
		to[n] = 0;
		if (!strstr(to, "memfd:vrnic-heap"))
			continue;
		found++;
		CHECK(fd >= 100 && fcntl(fd, F_GETFD) == FD_CLOEXEC);
		CHECK((fcntl(fd, F_GET_SEALS) & (F_SEAL_SHRINK | F_SEAL_GROW)) == (F_SEAL_SHRINK | F_SEAL_GROW));
	}
	CHECK(found == 1);
	CHECK(open("/dev/null", O_RDONLY) < 100);
}

/* How long it takes, for the eye: with and without the library. */
static void speed(void)
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
		printf("malloc and free of %zu: %.0f ns\n", sizes[k], ((b.tv_sec - a.tv_sec) * 1e9 + (b.tv_nsec - a.tv_nsec)) / n);
	}
}

static void double_free(void)
{
	char *p = malloc(MIB), *q = malloc(MIB);

	CHECK(p && q);
	free(p);
	free(p);
}

static void free_inside(void)
{
	char *p = malloc(MIB);

	CHECK(p);
	free(p + 8192);
}

int main(int argc, char **argv)
{
	static const struct {
		const char *name;
		void (*run)(void);
	} cases[] = {
#define CASE(f) { #f, f }
		CASE(alignment), CASE(failure), CASE(zeros), CASE(reallocation), CASE(random_calls), CASE(threads), CASE(forks),
		CASE(forks_with_threads), CASE(forks_with_locks), CASE(killed_children), CASE(protected_parts), CASE(spawned),
		CASE(closes_all), CASE(limits), CASE(locked), CASE(where), CASE(given_back), CASE(off), CASE(descriptors), CASE(speed),
		CASE(double_free), CASE(free_inside),
	};

	setvbuf(stderr, NULL, _IONBF, 0);
	for (int i = 1; i < argc; i++) {
		size_t k = 0;

		while (k < sizeof(cases) / sizeof(*cases) && strcmp(cases[k].name, argv[i]))
			k++;
		CHECK(k < sizeof(cases) / sizeof(*cases));
		cases[k].run();
	}
	return 0;
}
