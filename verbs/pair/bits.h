/*
 * The bitmap of a CQ where many QPs complete that have a direct path: what is to be looked at of it
 * (docs/direct.md#many). Programs of one user write there, and a bit says no more than where to
 * look.
 */
#ifndef VRNIC_BITS_H
#define VRNIC_BITS_H

#include "core/core.h"

struct vrnic_bits {
	_Atomic uint32_t *words; /* of VRNIC_MAX_BITS bits */
	_Atomic uint32_t *want; /* what the CQ is armed for */
};

/*
 * Asks the daemon for that of QP's receive CQ, or its peer's, by op, and maps it: false if it
 * cannot be had.
 */
bool vrnic_bits_ask(struct vrnic_session *s, uint32_t qp, uint16_t op, struct vrnic_map *m,
		    struct vrnic_bits *bits);

#endif
