/*
 * The handler of a signal may call exit(3) wherever the program is. Here it is where the checker
 * tells of something: of a device that is closed with a protection domain left.
 */
#include <infiniband/verbs.h>
#include <stdlib.h>
#include <sys/socket.h>

ssize_t sendto(int fd, const void *buf, size_t len, int flags, const struct sockaddr *to,
	       socklen_t tolen)
{
	(void)fd, (void)buf, (void)len, (void)flags, (void)to, (void)tolen;
	exit(3);
}

int main(void)
{
	struct ibv_device **list = ibv_get_device_list(NULL);
	struct ibv_context *c = list && list[0] ? ibv_open_device(list[0]) : NULL;

	if (!c || !ibv_alloc_pd(c))
		return 1;
	ibv_close_device(c);
	return 0;
}
