/* A libc that has no memory for one more handler of forks: pthread_atfork(3) calls this. */
#include <errno.h>

int __register_atfork(void);

int __register_atfork(void) { return ENOMEM; }
