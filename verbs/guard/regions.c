/* Memory that is registered: whether its pages can be taken from the program. */
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <sys/mman.h>
#include <unistd.h>

#include "guard.h"

/* Whether /proc/self/mem writes what the program cannot: some kernels forbid it. */
static bool writes_all(size_t page)
{
	static int known; /* 1: yes, 2: no */
	char *p, octet = 1;
	int fd;

	if (known)
		return known == 1;
	known = 2;
	p = mmap(NULL, page, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	fd = open("/proc/thread-self/mem", O_RDWR | O_CLOEXEC);
	if (p != MAP_FAILED && fd >= 0 && pwrite(fd, &octet, 1, (off_t)(uintptr_t)p) == 1)
		known = 1;
	if (fd >= 0)
		close(fd);
	if (p != MAP_FAILED)
		munmap(p, page);
	return known == 1;
}

/*
 * Whether all of [lo, hi) is memory to read and write as malloc has it, or, if it is lent, a
 * mapping that is shared. Not a stack, as far as that is known: calls need what is below it.
 */
static bool ordinary(uintptr_t lo, uintptr_t hi, bool lent)
{
	FILE *maps = fopen("/proc/thread-self/maps", "re");
	uintptr_t begin, end, here = (uintptr_t)__builtin_frame_address(0);
	char text[512], mode[5];
	uint64_t ino;

	while (maps && lo < hi && fgets(text, sizeof(text), maps)) {
		if (sscanf(text, "%" SCNxPTR "-%" SCNxPTR " %4s %*s %*s %" SCNu64, &begin, &end, mode,
			   &ino) != 4 || end <= lo)
			continue;
		if (begin > lo || mode[0] != 'r' || mode[1] != 'w' || (here >= begin && here < end))
			break;
		if (lent ? mode[3] != 's' : mode[3] != 'p' || ino)
			break;
		lo = end;
	}
	if (maps)
		fclose(maps);
	return lo >= hi;
}

void guard_region(const void *p, size_t n, bool lent, bool peers)
{
	uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE), lo = (uintptr_t)p & ~(page - 1);
	uintptr_t hi = ((uintptr_t)p + n + page - 1) & ~(page - 1);
	bool may = (lent || writes_all(page)) && ordinary(lo, hi, lent);

	guard_mark(p, n, (may ? GUARD_MAY : GUARD_NEVER) | (peers ? GUARD_PEERS : 0));
}
