/*
 * /sys and /dev by mounts, in a mount namespace of the process's own: programs see them whichever
 * way they look, also without a C library. A process with CAP_SYS_ADMIN needs nothing else; any
 * other takes a user namespace for it, which changes what the program can do, and is made only when
 * it is asked for: docs/decisions.md#V26.
 *
 * What is mounted elsewhere, here or outside, is seen on both sides as before: /sys and /dev alone
 * stop to tell the outside.
 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <sched.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "sys_mount.h"

struct vrnic_face vrnic_faces[FACES] = {
	{ .path = "/sys/class", .merged = true },
	{ .path = "/sys/class/infiniband", .whole = true },
	{ .path = "/sys/class/infiniband_verbs", .whole = true },
	{ .path = "/sys/class/infiniband_cm", .whole = true },
	{ .path = "/sys/class/net", .whole = true, .merged = true },
	{ .path = "/sys/class/misc", .whole = true, .merged = true },
	{ .path = "/dev/infiniband", .whole = true, .device = true },
};

/* Not by functions that this library stands in front of. */
static int raw_stat(const char *path, struct stat *st)
{
	return (int)syscall(SYS_newfstatat, AT_FDCWD, path, st, 0);
}

static int raw_open(const char *path, int flags)
{
	return (int)syscall(SYS_openat, AT_FDCWD, path, flags | O_CLOEXEC, 0);
}

static bool join(char *out, size_t size, const char *a, const char *b)
{
	return snprintf(out, size, "%s%s", a, b) < (int)size;
}

bool vrnic_sys_mounted(const char *dir, const struct vrnic_face *face)
{
	char path[PATH_MAX];
	struct stat ours, theirs;

	return join(path, sizeof(path), dir, face->path) && !raw_stat(path, &ours) &&
	       !raw_stat(face->path, &theirs) && ours.st_dev == theirs.st_dev &&
	       ours.st_ino == theirs.st_ino;
}

static bool write_file(const char *path, const char *text)
{
	int fd = raw_open(path, O_WRONLY);
	bool ok = fd >= 0 && write(fd, text, strlen(text)) == (ssize_t)strlen(text);

	if (fd >= 0)
		close(fd);
	return ok;
}

/* A user namespace in which this process is who it was. */
static bool become_self(void)
{
	unsigned int uid = geteuid(), gid = getegid();
	char map[64];

	if (unshare(CLONE_NEWUSER | CLONE_NEWNS))
		return false;
	snprintf(map, sizeof(map), "%u %u 1", uid, uid);
	if (!write_file("/proc/self/uid_map", map) || !write_file("/proc/self/setgroups", "deny"))
		return false;
	snprintf(map, sizeof(map), "%u %u 1", gid, gid);
	return write_file("/proc/self/gid_map", map);
}

/* What a user namespace gives its maker, and a program does not expect to have. */
static void drop_capabilities(void)
{
	/* As in linux/capability.h, which not every compiler for musl has: version 3, two sets. */
	struct {
		uint32_t version;
		int pid;
	} head = { .version = 0x20080522 };
	struct {
		uint32_t effective, permitted, inheritable;
	} none[2] = { { 0 } };

	syscall(SYS_capset, &head, none);
}

/* Mounts from at to, for this namespace alone, to be read only. */
static bool bind(const char *from, const char *to)
{
	unsigned long flags = MS_REMOUNT | MS_BIND | MS_RDONLY | MS_NOSUID | MS_NODEV | MS_NOEXEC;
	struct statvfs st;
	int err;

	if (mount(from, to, NULL, MS_BIND, NULL))
		return false;
	/* What the file system's owner has locked must stay. */
	if (!statvfs(to, &st) && (st.f_flag & ST_NOATIME))
		flags |= MS_NOATIME;
	else if (!statvfs(to, &st) && (st.f_flag & ST_RELATIME))
		flags |= MS_RELATIME;
	if (!mount(NULL, to, NULL, MS_PRIVATE, NULL) && !mount(NULL, to, NULL, flags, NULL))
		return true;
	err = errno;
	umount2(to, MNT_DETACH);
	errno = err;
	return false;
}

/* The other classes of the kernel, below ours: class is the kernel's /sys/class. */
static void bind_classes(int class)
{
	char from[PATH_MAX], to[PATH_MAX];
	int fd = (int)syscall(SYS_openat, class, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC, 0);
	DIR *d = fd < 0 ? NULL : fdopendir(fd);
	struct dirent *e;

	while (d && (e = readdir(d))) {
		bool ours = e->d_name[0] == '.';

		snprintf(to, sizeof(to), "/sys/class/%s", e->d_name);
		for (int i = FACE_CLASS + 1; i < FACE_DEV; i++)
			ours = ours || !strcmp(vrnic_faces[i].path, to);
		snprintf(from, sizeof(from), "/proc/self/fd/%d/%s", class, e->d_name);
		if (!ours)
			mount(from, to, NULL, MS_BIND | MS_REC, NULL);
	}
	if (d)
		closedir(d);
}

static bool mount_class(const char *dir)
{
	char from[PATH_MAX];
	int class = raw_open("/sys/class", O_PATH | O_DIRECTORY);
	struct stat st;
	bool ok = class >= 0 && snprintf(from, sizeof(from), "/proc/self/fd/%d", class) > 0 &&
		  !raw_stat(from, &st) && /* else the other classes could not be had */
		  !mount(NULL, "/sys", NULL, MS_SLAVE | MS_REC, NULL) &&
		  join(from, sizeof(from), dir, "/sys/class") && bind(from, "/sys/class");

	if (ok)
		bind_classes(class);
	if (class >= 0)
		close(class);
	return ok;
}

static void mount_dev(const char *dir)
{
	char from[PATH_MAX];
	struct stat st;

	/* Device files that only root can make; without them the other way is better. */
	if (!join(from, sizeof(from), dir, "/dev/infiniband/rdma_cm") || raw_stat(from, &st) ||
	    !S_ISCHR(st.st_mode))
		return;
	if (mkdir("/dev/infiniband", 0755) && errno != EEXIST)
		return;
	if (!mount(NULL, "/dev", NULL, MS_SLAVE | MS_REC, NULL) &&
	    join(from, sizeof(from), dir, "/dev/infiniband"))
		bind(from, "/dev/infiniband");
}

void vrnic_sys_mount(const char *dir, bool strict)
{
	const char *what = "a mount namespace";
	bool ok = !unshare(CLONE_NEWNS), nested = false;

	if (!ok && strict && errno == EPERM) {
		what = "a user namespace";
		ok = nested = become_self();
	}
	if (ok) {
		what = "/sys/class";
		ok = mount_class(dir);
		if (ok)
			mount_dev(dir);
	}
	if (nested)
		drop_capabilities();
	if (!ok && strict) {
		dprintf(2, "vrnic: --sys=mount: this host does not allow %s: %s; --sys=preload may do\n", what,
			strerror(errno));
		_exit(1);
	}
}
