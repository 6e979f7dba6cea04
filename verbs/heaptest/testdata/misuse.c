/* What ends the program. */
#include "heaptest.h"

void double_free(void)
{
	char *p = malloc(MIB), *q = malloc(MIB);

	CHECK(p && q);
	free(p);
	free(p);
}

void free_inside(void)
{
	char *p = malloc(MIB);

	CHECK(p);
	free(p + 8192);
}
