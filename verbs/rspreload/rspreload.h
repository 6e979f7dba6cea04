/*
 * libvrnic-rsockets.so: the C library's functions of sockets, for which sockets of streams at the
 * addresses of devices are sockets over RDMA. What rsockets.h says of them is all there is: this
 * library keeps nothing, and has no descriptor open between calls, so programs may fork, execute
 * others and close what they like.
 */
#ifndef VRNIC_RSPRELOAD_H
#define VRNIC_RSPRELOAD_H

#include <dlfcn.h>
#include <errno.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/socket.h>
#include <sys/types.h>
#include <sys/uio.h>

#include "rsockets.h"

#define EXPORT __attribute__((visibility("default")))

/* The C library's own. */
struct rs_next {
	int (*bind)(int, const struct sockaddr *, socklen_t);
	int (*listen)(int, int);
	int (*connect)(int, const struct sockaddr *, socklen_t);
	int (*accept4)(int, struct sockaddr *, socklen_t *, int);
	int (*getsockname)(int, struct sockaddr *, socklen_t *);
	int (*getpeername)(int, struct sockaddr *, socklen_t *);
	int (*getsockopt)(int, int, int, void *, socklen_t *);
	int (*setsockopt)(int, int, int, const void *, socklen_t);
	ssize_t (*read)(int, void *, size_t);
	ssize_t (*readv)(int, const struct iovec *, int);
	ssize_t (*recv)(int, void *, size_t, int);
	ssize_t (*recvfrom)(int, void *, size_t, int, struct sockaddr *, socklen_t *);
	ssize_t (*recvmsg)(int, struct msghdr *, int);
};

const struct rs_next *rs_next(void); /* next.c */

/* env.c: what was in the environment when the program began; NULL: nothing */
const char *rs_kept(const char *name);
char **rs_kept_env(void); /* what rsocketd wants of it */

/* identity.c: whether fd is one of ours; errno stays as it is */
bool rs_is_ours(int fd, struct rs_name *n);
/* How the other end of one of ours has ended: errno, 0 if well, -1 if that is not said. */
int rs_verdict(int fd);
/* The same of one from which nothing more comes, perhaps by shutdown(2): 0, or errno */
int rs_end_said(int fd, uint64_t id);
/* Whether fd is the kernel's socket of a TCP stream; family is AF_INET or AF_INET6. */
bool rs_is_stream(int fd, int *family);

/* devices.c: of $VRNIC_IFADDRS */
bool rs_have_devices(void);
bool rs_is_device(const struct rs_end *e);	 /* an address of a device */
bool rs_is_any(const struct rs_end *e);		 /* all addresses */
/* The address, with no port, of a device that reaches e without a router. */
bool rs_device_for(const struct rs_end *e, struct rs_end *local);

/* ask.c: 0, or -1 with errno. send is a descriptor to pass along, or -1; got, if any, is new. */
int rs_ask(struct rs_ask *q, int send, struct rs_answer *a, int *got);
bool rs_is_known(uint64_t id); /* whether rsocketd has such a socket */
void rs_complain(const char *what, int err); /* on stderr; errno stays */

/*
 * swap.c: fd becomes what end is, which is closed; 0, or -1 with errno. status is what fcntl(2) has
 * said of it, before rsocketd got it, too.
 */
int rs_swap(int fd, int end, int status);

#endif
