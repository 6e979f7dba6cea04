/* What the files of this room have of each other, and nobody else. */
#ifndef VRNIC_PRIVATE_H
#define VRNIC_PRIVATE_H

#include <stdio.h>

#include "core.h"

extern atomic_uint vrnic_forks; /* between the first process of this program and this one */

void vrnic_areas_forked(void); /* for the child of a fork */

/*
 * maps.c
 */
struct vrnic_maps {
	FILE *f;
	char line[128]; /* what stands in front of a file's name, or a part of the name */
	bool in_line;
};

struct vrnic_mapping {
	uintptr_t lo, hi;
	bool readable, writable, shared;
	uint64_t offset; /* in a file, which dev and ino are of; ino 0: there is none */
	dev_t dev;
	uint64_t ino;
};

/* Whether the list is there; it is to be closed in any case. It goes by addresses. */
bool vrnic_maps_open(struct vrnic_maps *m);
bool vrnic_maps_next(struct vrnic_maps *m, struct vrnic_mapping *map);
void vrnic_maps_close(struct vrnic_maps *m);

#endif
