/* Memory of the program that the daemon has mapped too: what area.c has. */
#ifndef VRNIC_SHARE_H
#define VRNIC_SHARE_H

#include "vrnic.h"

struct vrnic_area;

/*
 * The area that holds length octets at addr, shared with the daemon of s now at the latest: as its mem, from offset on. It
 * is held until vrnic_area_put. NULL: there is none, and the daemon has to reach into this process.
 */
struct vrnic_area *vrnic_area_find(struct vrnic_session *s, void *addr, size_t length, uint32_t *mem, uint64_t *offset);
void vrnic_area_put(struct vrnic_area *a); /* NULL is none */

void vrnic_share_forked(void); /* for the child of a fork */

#endif
