#include <errno.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "wake.h"

bool vrnic_wake_ask(struct vrnic_wake *w, struct vrnic_session *s, uint32_t qp, uint16_t op)
{
	struct vrnic_handle_request req = { .handle = qp };

	if (!w->asked) {
		w->asked = true;
		if (vrnic_rpc(s, op, &req, sizeof(req), NULL, 0, -1, &w->fd, 1))
			w->fd = -1;
	}
	return w->fd >= 0;
}

void vrnic_wake_close(struct vrnic_wake *w)
{
	vrnic_close(w->fd);
	w->fd = -1;
}

bool vrnic_wake_send(struct vrnic_wake *w)
{
	int err = errno;
	bool there;
	long n;

	do
		n = syscall(SYS_sendto, w->fd, "", 1, MSG_DONTWAIT | MSG_NOSIGNAL, NULL, 0);
	while (n < 0 && errno == EINTR);
	there = n == 1 || errno == EAGAIN; /* there are enough */
	errno = err;
	if (!there)
		vrnic_wake_close(w);
	return there;
}

bool vrnic_wake_drain(struct vrnic_wake *w)
{
	int err = errno;
	char buf[64];
	bool there;
	long n;

	n = syscall(SYS_recvfrom, w->fd, buf, sizeof(buf), MSG_DONTWAIT, NULL, NULL);
	there = n > 0 || (n < 0 && (errno == EAGAIN || errno == EINTR));
	errno = err;
	if (!there)
		vrnic_wake_close(w);
	return there;
}
