/* The functions that ours stand in front of. */
#include <pthread.h>

#include "rspreload.h"

static struct rs_next next;
static pthread_once_t once = PTHREAD_ONCE_INIT;

#define LOOK_UP(field) next field = (__typeof__(next field))dlsym(RTLD_NEXT, #field + 1)

static void look_up(void)
{
	LOOK_UP(.bind);
	LOOK_UP(.listen);
	LOOK_UP(.connect);
	LOOK_UP(.accept4);
	LOOK_UP(.getsockname);
	LOOK_UP(.getpeername);
	LOOK_UP(.getsockopt);
	LOOK_UP(.setsockopt);
	LOOK_UP(.read);
	LOOK_UP(.readv);
	LOOK_UP(.recv);
	LOOK_UP(.recvfrom);
	LOOK_UP(.recvmsg);
}

/* Constructors of other libraries, which may read files, come before ours. */
const struct rs_next *rs_next(void)
{
	pthread_once(&once, look_up);
	return &next;
}

/* So that no child of a fork and no handler of a signal is the first. */
__attribute__((constructor)) static void begin(void) { rs_next(); }
