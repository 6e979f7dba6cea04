/* Forks. */
#include <pthread.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "heaptest.h"

/* Parent and child have what was there, and what each does from then on the other does not see. */
void forks(void)
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

void forks_with_threads(void)
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

void forks_with_locks(void)
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
void killed_children(void)
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
void protected_parts(void)
{
	char *p;
	int status;
	pid_t pid;

	CHECK(!posix_memalign((void **)&p, 4096, 64 * KIB));
	fill(p, 64 * KIB, 3);
	CHECK(!mprotect(p + 4096, 4096, PROT_NONE) && !mprotect(p + 8192, 4096, PROT_READ) &&
	      !madvise(p + 16384, 4096, MADV_DONTFORK));
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

/* The same of a program that has closed all that it has not opened. */
void protected_and_closed(void)
{
	free(malloc(100 * KIB));
	for (int fd = 3; fd < 1024; fd++)
		close(fd);
	protected_parts();
}

/*
 * A thread reads a stream, and allocates while it has the stream's lock. Another flushes all
 * streams: it has their list's lock and waits for the first. A third forks, for which libc takes
 * the lock of the list. With malloc locked for the fork at that point each of them waits for the
 * next.
 */
static pthread_barrier_t reading;
static volatile bool forking;

static void begin_fork(void) { forking = true; }

static ssize_t read_slowly(void *cookie, char *b, size_t n)
{
	char *p;

	(void)cookie, (void)n;
	pthread_barrier_wait(&reading);
	while (!forking)
		usleep(1000);
	usleep(100000); /* the fork has come to libc's locks */
	for (int i = 0; i < 100; i++) {
		p = malloc(MIB);
		CHECK(p);
		fill(p, MIB, i);
		CHECK(filled(p, MIB, MIB, i));
		free(p);
	}
	b[0] = '\n';
	return 1;
}

static void *read_stream(void *f)
{
	CHECK(fgetc(f) == '\n');
	return NULL;
}

static void *flush_all(void *arg)
{
	(void)arg;
	fflush(NULL);
	return NULL;
}

void forks_beside_streams(void)
{
	FILE *f = fopencookie(NULL, "r+", (cookie_io_functions_t){ .read = read_slowly });
	char *p = malloc(MIB), *q = malloc(MIB);
	pthread_t reader, flusher;

	CHECK(f && p && q && !pthread_barrier_init(&reading, NULL, 2));
	CHECK(!pthread_atfork(begin_fork, NULL, NULL));
	fill(p, MIB, 1);
	CHECK(!pthread_create(&reader, NULL, read_stream, f));
	pthread_barrier_wait(&reading);
	CHECK(!pthread_create(&flusher, NULL, flush_all, NULL));
	usleep(100000); /* it has come to the stream that is being read */
	pid_t pid = fork();

	CHECK(pid >= 0);
	if (!pid) {
		CHECK(filled(p, MIB, MIB, 1));
		free(p);
		free(q);
		p = malloc(MIB);
		CHECK(p);
		_exit(0);
	}
	CHECK(!pthread_join(reader, NULL) && !pthread_join(flusher, NULL));
	reap(pid);
	CHECK(filled(p, MIB, MIB, 1));
	free(p);
	free(q);
	fclose(f);
}

/*
 * What other threads free and make longer or shorter while a fork is under way is so afterwards,
 * here and in the child.
 */
static void *free_all_later(void *m)
{
	while (!forking)
		;
	free_all(m);
	return NULL;
}

void forks_beside_frees(void)
{
	static struct model m = { .seed = 8 };
	pthread_t t;

	CHECK(!pthread_atfork(begin_fork, NULL, NULL));
	for (int round = 0; round < 20; round++) {
		for (int i = 0; i < 200; i++)
			step(&m);
		char *p = malloc(64 * MIB);

		CHECK(p);
		fill(p, 64 * MIB, round);
		forking = false;
		CHECK(!pthread_create(&t, NULL, free_all_later, &m));
		pid_t pid = fork();

		CHECK(pid >= 0);
		if (!pid) {
			CHECK(filled(p, 64 * MIB, 64 * MIB, round));
			free(p);
			p = malloc(MIB);
			CHECK(p);
			free(p);
			_exit(0);
		}
		CHECK(!pthread_join(t, NULL));
		CHECK(filled(p, 64 * MIB, 64 * MIB, round));
		free(p);
		reap(pid);
	}
}
