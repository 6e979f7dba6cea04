/* What this process has mapped, and how, as the kernel lists it. */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include "private.h"

#ifndef MADV_POPULATE_READ /* Linux 5.14 */
#define MADV_POPULATE_READ 22
#define MADV_POPULATE_WRITE 23
#endif

/* So many pages are found out about by touching them, in one call; more are not taken for that. */
#define MAX_TOUCHED 16

bool vrnic_maps_open(struct vrnic_maps *m)
{
	/* Not /proc/self: after the end of the main thread that has none. */
	*m = (struct vrnic_maps){ .f = fopen("/proc/thread-self/maps", "re") };
	return m->f;
}

bool vrnic_maps_next(struct vrnic_maps *m, struct vrnic_mapping *map)
{
	unsigned int major, minor;
	char mode[5];
	bool behind;

	/* Nothing is allocated: a name may be long, and memory may be what the program is short of. */
	while (fgets(m->line, sizeof(m->line), m->f)) {
		behind = m->in_line;
		m->in_line = !strchr(m->line, '\n');
		if (behind)
			continue;
		if (sscanf(m->line, "%" SCNxPTR "-%" SCNxPTR " %4s %" SCNx64 " %x:%x %" SCNu64, &map->lo,
			   &map->hi, mode, &map->offset, &major, &minor, &map->ino) != 7)
			continue;
		map->readable = mode[0] == 'r';
		map->writable = mode[1] == 'w';
		map->shared = mode[3] == 's';
		map->dev = makedev(major, minor);
		return true;
	}
	return false;
}

void vrnic_maps_close(struct vrnic_maps *m)
{
	if (m->f)
		fclose(m->f);
}

/* Whether what is mapped from lo to hi is without a gap, and all of it readable, or writable. */
static bool mapped(struct vrnic_maps *m, uintptr_t lo, uintptr_t hi, bool write)
{
	struct vrnic_mapping map;

	while (lo < hi && vrnic_maps_next(m, &map)) {
		if (map.hi <= lo)
			continue;
		if (map.lo > lo || !(write ? map.writable : map.readable))
			return false;
		lo = map.hi;
	}
	return lo >= hi;
}

int vrnic_check_mapped(const void *addr, size_t length, bool write)
{
	uintptr_t page = sysconf(_SC_PAGESIZE), lo = (uintptr_t)addr & ~(page - 1), hi;
	struct vrnic_maps m;
	int old, err = 0;

	if (!length || length > UINTPTR_MAX - page || (uintptr_t)addr > UINTPTR_MAX - page - length)
		return EINVAL;
	hi = (uintptr_t)addr + length;
	if (hi - lo <= MAX_TOUCHED * page &&
	    !madvise((void *)lo, hi - lo, write ? MADV_POPULATE_WRITE : MADV_POPULATE_READ))
		return 0;
	pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &old);
	/* Where it cannot be known, without /proc, the first message finds out. */
	if (vrnic_maps_open(&m) && !mapped(&m, lo, hi, write))
		err = EFAULT;
	vrnic_maps_close(&m);
	pthread_setcancelstate(old, NULL);
	return err;
}
