/* What else a process does: programs, descriptors, limits. */
#include <fcntl.h>
#include <malloc.h>
#include <spawn.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "heaptest.h"

void spawned(void)
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

/*
 * A program that closes all that it has not opened, and then has descriptors of its own with those
 * numbers.
 */
void closes_all(void)
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

/*
 * Where the limits of a process leave no descriptors, no files and hardly an address space, there
 * is memory all the same.
 */
void limits(void)
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

/* A limit of the process's data holds for what is allocated after it has been set. */
void data_limit(void)
{
	struct rlimit lim;
	pid_t pid = fork();
	int got = 0;

	CHECK(pid >= 0);
	if (!pid) {
		CHECK(!getrlimit(RLIMIT_DATA, &lim));
		lim.rlim_cur = 64 * MIB;
		CHECK(!setrlimit(RLIMIT_DATA, &lim));
		errno = 0;
		CHECK(!malloc(100 * MIB) && errno == ENOMEM);
		while (malloc(MIB))
			CHECK(++got < 64);
		CHECK(got > 16);
		pid = fork();
		CHECK(pid >= 0);
		if (pid)
			reap(pid);
		_exit(0);
	}
	reap(pid);
}

/*
 * Memory that the program has locked and freed does not stay locked for who has it next, and is
 * zero.
 */
void locked(void)
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
