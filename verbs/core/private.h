/* What the files of this room have of each other, and nobody else. */
#ifndef VRNIC_PRIVATE_H
#define VRNIC_PRIVATE_H

#include "core.h"

extern atomic_uint vrnic_forks; /* between the first process of this program and this one */

void vrnic_areas_forked(void); /* for the child of a fork */

#endif
