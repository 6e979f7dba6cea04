/* One descriptor in the place of another. */
#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/time.h>
#include <unistd.h>

#include "rspreload.h"

/* A registration of a descriptor with an epoll instance, which is one of the file behind it. */
struct watch {
	struct watch *next;
	int epoll;
	struct epoll_event event;
};

/* Those of fd with an epoll instance, in front of list. */
static struct watch *watches_of(int epoll, int fd, struct watch *list)
{
	char path[64], line[256];
	FILE *f;

	snprintf(path, sizeof(path), "/proc/self/fdinfo/%d", epoll);
	f = fopen(path, "re");
	while (f && fgets(line, sizeof(line), f)) {
		unsigned long long data;
		unsigned int events;
		struct watch *w;
		int target;

		if (sscanf(line, "tfd: %d events: %x data: %llx", &target, &events, &data) != 3 ||
		    target != fd || !(w = malloc(sizeof(*w))))
			continue;
		*w = (struct watch){ list, epoll, { .events = events, .data.u64 = data } };
		list = w;
	}
	if (f)
		fclose(f);
	return list;
}

/* Programs register a socket before they connect it, too. The kernel lists what is registered. */
static struct watch *watches(int fd)
{
	static const char is[] = "anon_inode:[eventpoll]";
	DIR *d = opendir("/proc/self/fd");
	struct watch *list = NULL;
	struct dirent *e;
	char link[sizeof(is)];

	while (d && (e = readdir(d)))
		if (readlinkat(dirfd(d), e->d_name, link, sizeof(link)) == sizeof(is) - 1 &&
		    !memcmp(link, is, sizeof(is) - 1))
			list = watches_of(atoi(e->d_name), fd, list);
	if (d)
		closedir(d);
	return list;
}

static void copy_timeout(int from, int to, int name)
{
	struct timeval t;
	socklen_t len = sizeof(t);

	if (!rs_next()->getsockopt(from, SOL_SOCKET, name, &t, &len))
		rs_next()->setsockopt(to, SOL_SOCKET, name, &t, len);
}

int rs_swap(int fd, int end, int status)
{
	int flags = fcntl(fd, F_GETFD), r, err;
	struct watch *list, *w;

	if (status < 0 || flags < 0) {
		close(end);
		return -1;
	}
	list = watches(fd);
	copy_timeout(fd, end, SO_RCVTIMEO);
	copy_timeout(fd, end, SO_SNDTIMEO);
	r = fcntl(end, F_SETFL, status);
	/* rsocketd may have the same file, and then it would stay registered */
	for (w = list; w && !r; w = w->next)
		epoll_ctl(w->epoll, EPOLL_CTL_DEL, fd, NULL);
	if (!r)
		r = dup3(end, fd, flags & FD_CLOEXEC ? O_CLOEXEC : 0) < 0 ? -1 : 0;
	err = errno;
	close(end);
	while ((w = list)) {
		list = w->next;
		if (!r)
			epoll_ctl(w->epoll, EPOLL_CTL_ADD, fd, &w->event);
		free(w);
	}
	errno = err;
	return r;
}
