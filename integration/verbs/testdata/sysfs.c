/*
 * What a program finds in /sys and /dev, by each of the functions that take a path: a line for
 * each. With the argument "calls" it makes the system calls itself, as one without libc would.
 */
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <sys/xattr.h>
#include <unistd.h>

#define IB "/sys/class/infiniband/"
#define DEV IB "roce0"

static bool calls;

static void say(const char *what, const char *format, ...)
{
	va_list ap;

	printf("%s: ", what);
	va_start(ap, format);
	vprintf(format, ap);
	va_end(ap);
	putchar('\n');
}

static void say_fd(const char *what, int fd)
{
	char buf[256];
	ssize_t n = fd < 0 ? -1 : read(fd, buf, sizeof(buf) - 1);

	if (fd < 0 || n < 0) {
		say(what, "%s", strerror(errno));
		return;
	}
	buf[n] = 0;
	buf[strcspn(buf, "\n")] = 0;
	say(what, "%s", buf);
	close(fd);
}

static int open_any(const char *path, int flags)
{
	return calls ? (int)syscall(SYS_openat, AT_FDCWD, path, flags) : open(path, flags);
}

static void say_file(const char *path)
{
	say_fd(path, open_any(path, O_RDONLY));
}

static void say_type(const char *what, int r, const struct stat *st)
{
	if (r)
		say(what, "%s", strerror(errno));
	else if (S_ISCHR(st->st_mode))
		say(what, "char %u:%u %o", major(st->st_rdev), minor(st->st_rdev), st->st_mode & 0777);
	else
		say(what, "%s %o", S_ISDIR(st->st_mode) ? "directory" :
		    S_ISLNK(st->st_mode) ? "link" : "file", st->st_mode & 0777);
}

static void say_stat(const char *path)
{
	struct stat st;

	int r = calls ? (int)syscall(SYS_newfstatat, AT_FDCWD, path, &st, 0) : stat(path, &st);

	say_type(path, r, &st);
}

static int named(const struct dirent *e) { return e->d_name[0] != '.'; }

/* Names of a folder that are ours, or that each kernel has. */
static void say_list(const char *what, struct dirent **list, int n)
{
	static const char *const known[] = { "infiniband", "infiniband_cm", "infiniband_verbs", "net",
					     "roce0", "vrnic0", "lo", "uverbs0", "uverbs1", "rdma_cm" };
	char text[256] = "";

	for (int i = 0; i < n; i++)
		for (size_t k = 0; k < sizeof(known) / sizeof(known[0]); k++)
			if (!strcmp(list[i]->d_name, known[k]))
				strcat(strcat(text, " "), known[k]);
	say(what, "%s", n < 0 ? strerror(errno) : text);
}

static void by_functions(void)
{
	static const char *const lists[] = { "/sys/class", "/sys/class/infiniband", "/sys/class/net",
					     "/dev/infiniband" };
	char path[PATH_MAX], *real;
	struct stat st;
	struct statx stx;
	ssize_t n;
	FILE *f;
	int fd;

	for (size_t i = 0; i < sizeof(lists) / sizeof(lists[0]); i++) {
		struct dirent **list;

		say_list(lists[i], list, scandir(lists[i], &list, named, alphasort));
	}
	say_fd("open64", open64(DEV "/node_type", O_RDONLY));
	say_fd("openat", openat(AT_FDCWD, DEV "/node_type", O_RDONLY));
	fd = open("/sys/class/infiniband", O_RDONLY | O_DIRECTORY);
	say_fd("openat of a folder", openat(fd, "roce0/node_type", O_RDONLY));
	say_type("fstatat", fstatat(fd, "roce0/ports/1", &st, 0), &st);
	f = fopen("/sys//class/./infiniband/roce0/node_type", "r");
	say_fd("fopen", f ? fileno(f) : -1);
	say("opendir", "%s", opendir("/dev/infiniband") ? "yes" : "no");
	say_type("lstat", lstat("/sys/class/net/roce0/device", &st), &st);
	if (statx(AT_FDCWD, "/dev/infiniband/uverbs1", 0, STATX_BASIC_STATS, &stx))
		perror("statx");
	say("statx", "%d:%d", stx.stx_rdev_major, stx.stx_rdev_minor);
	say("access", "%d %d", access(DEV, R_OK), access(IB "nobody", F_OK));
	say("faccessat", "%d", faccessat(AT_FDCWD, DEV "/fw_ver", R_OK, 0));
	n = readlink("/sys/class/net/roce0/device", path, sizeof(path));
	say("readlink", "%.*s", (int)n, path);
	say("getxattr", "%s", getxattr(DEV, "user.none", path, 1) < 0 && errno != ENOENT ? "none" : "?");
	real = realpath("/sys/class/infiniband_verbs/uverbs0/device/net/roce0", NULL);
	say("realpath", "%s", real ? real : strerror(errno));
	if (chdir(DEV "/ports"))
		perror("chdir");
	say("getcwd", "%s", getcwd(path, sizeof(path)));
	say_fd("in a folder", open("1/link_layer", O_RDONLY));
}

int main(int argc, char **argv)
{
	calls = argc > 1 && !strcmp(argv[1], "calls");
	say_file(DEV "/node_type");
	say_file(DEV "/node_guid");
	say_file(DEV "/ports/1/state");
	say_file(DEV "/ports/1/phys_state");
	say_file(DEV "/ports/1/rate");
	say_file(DEV "/ports/1/gids/1");
	say_file(DEV "/ports/1/gid_attrs/types/1");
	say_file(DEV "/ports/1/gid_attrs/types/9");
	say_file(DEV "/ports/1/gid_attrs/ndevs/1");
	say_file(DEV "/ports/1/pkeys/0");
	say_file(DEV "/device/numa_node");
	say_file(IB "vrnic0/node_type");
	say_file("/sys/class/infiniband_verbs/abi_version");
	say_file("/sys/class/infiniband_verbs/uverbs1/ibdev");
	say_file("/sys/class/infiniband_verbs/uverbs1/dev");
	say_file("/sys/class/misc/rdma_cm/abi_version");
	say_file("/sys/class/net/roce0/device/vendor");
	say_file("/sys/class/net/lo/address");
	say("to write", "%s", open_any(DEV "/fw_ver", O_WRONLY) < 0 &&
	    (errno == EROFS || errno == EACCES) ? "no" : "?");
	say_stat(DEV);
	say_stat(DEV "/fw_ver");
	say_stat("/sys/class/infiniband_cm");
	say_stat("/sys/class/tty");
	if (!calls)
		by_functions();
	/* Only root can make device files: the mounts of others have none. */
	if (!calls || argc == 2) {
		say_stat("/dev/infiniband/uverbs0");
		say_stat("/dev/infiniband/rdma_cm");
		say_file("/dev/infiniband/uverbs0");
	}
	return 0;
}
