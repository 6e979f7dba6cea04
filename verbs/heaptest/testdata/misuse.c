/* What ends the program. */
#include <signal.h>
#include <unistd.h>

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

static void on_abort(int sig)
{
	(void)sig;
	_exit(malloc(MIB) ? 3 : 4);
}

/* A program that reports its own end may allocate for that. */
void double_free_handled(void)
{
	signal(SIGABRT, on_abort);
	double_free();
}
