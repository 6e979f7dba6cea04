/* A program that allocates, and checks what it gets: each argument is the name of a case. */
#ifndef HEAPTEST_H
#define HEAPTEST_H

#include <errno.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/types.h>

#define KIB ((size_t)1024)
#define MIB (KIB * KIB)

#define CHECK(c)                                                                                   \
	do {                                                                                       \
		if (!(c)) {                                                                        \
			fprintf(stderr, "%s:%d: not so: %s (errno %d)\n", __func__, __LINE__, #c, errno); \
			abort();                                                                   \
		}                                                                                  \
	} while (0)

/* The cases of a file each. All but those of lent.c and misuse.c hold for any malloc. */
#define CASES(X)                                                                              \
	X(alignment) X(failure) X(zeros) X(reallocation) /* calls.c */                        \
	X(random_calls) X(threads)			 /* model.c */                        \
	X(forks) X(forks_with_threads) X(forks_with_locks) X(killed_children)                 \
	X(protected_parts) X(protected_and_closed) X(forks_beside_streams)                   \
	X(forks_beside_frees)				 /* forks.c */                        \
	X(spawned) X(closes_all) X(limits) X(data_limit) X(locked) /* process.c */            \
	X(where) X(given_back) X(off) X(descriptors) X(in_the_way) X(speed) /* lent.c */      \
	X(double_free) X(free_inside) X(double_free_handled) /* misuse.c */

#define DECLARE(name) void name(void);
CASES(DECLARE)

/*
 * A pattern of its own for memory, and whether it is there: of octets that were filled, in the
 * first n.
 */
void fill(void *p, size_t n, unsigned int key);
bool filled(const void *p, size_t n, size_t of, unsigned int key);
bool zero(const char *p, size_t n);

/* The mapping that has p: its line of /proc/self/maps. */
const char *mapping(const void *p);
bool lent(const void *p);

/* The first descriptor of lent memory that is not below from, or -1. */
int lent_fd(int from);

/*
 * How many octets of memory the descriptors of lent memory have, and how many descriptors there
 * are.
 */
size_t held(int *fds);

/* Waits for a child, which must exit with 0. */
void reap(pid_t pid);

/* Random calls against a model: what is in use keeps its octets, and no two overlap. */
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

void step(struct model *m);
void check_all(const struct model *m);
void free_all(struct model *m);

#endif
