/*
 * The keys that open memory of a peer's protection domain, as its daemon tells of them, in a table
 * that is mapped for reading: docs/direct.md#keys.
 */
#ifndef VRNIC_KEYS_H
#define VRNIC_KEYS_H

#include "core/core.h"

struct vrnic_keys {
	char *entries;
	uint32_t mask; /* entries - 1 */
	_Atomic uint32_t *gone; /* changes when memory has been taken back */
};

/* Finds the table in m: false if it makes no sense. */
bool vrnic_keys_open(const struct vrnic_map *m, struct vrnic_keys *k);

/* What is wanted of a key: a right of enum ibv_access_flags to length octets at addr. */
struct vrnic_want {
	uint32_t key, right;
	uint32_t qpn; /* of the peer's end of the connection */
	uint64_t addr, length;
};

/*
 * Which memory gives that, and from where on: false if none does. That holds between
 * vrnic_pair_enter and vrnic_pair_leave, and is a guess else.
 */
bool vrnic_keys_find(const struct vrnic_keys *k, const struct vrnic_want *w, uint32_t *mem,
		     uint64_t *offset);

#endif
