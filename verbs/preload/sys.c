/*
 * Functions in front of the C library's that take paths: those that are ours lead into the
 * directory that `vrnic exec` keeps. A program that makes its system calls itself, as those in Go
 * do, or has no C library, sees what the kernel has; for these there are mounts.
 */
#undef _FORTIFY_SOURCE
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <sys/types.h>
#include <sys/xattr.h>
#include <unistd.h>

#include "setting/setting.h"
#include "sys_mount.h"

#define EXPORT __attribute__((visibility("default")))

/*
 * The next definition of a function, which may be NULL: C libraries differ. All are looked up in
 * the beginning. dlsym(3) takes a lock of the loader's, which a thread may have for ever: a child
 * of fork(2) and a handler of a signal, who may call our functions, cannot wait for it.
 */
struct next {
	const char *name;
	_Atomic(void *) function;
} __attribute__((aligned(2 * sizeof(void *))));

extern struct next __start_vrnic_next[] __attribute__((visibility("hidden")));
extern struct next __stop_vrnic_next[] __attribute__((visibility("hidden")));

static atomic_bool looked_up;

/* Constructors of other libraries come before ours. */
static void *next_function(struct next *n)
{
	if (!looked_up)
		n->function = dlsym(RTLD_NEXT, n->name);
	return n->function;
}

#define NEXT(type, symbol)								\
	({										\
		static struct next next_ __attribute__((section("vrnic_next"))) = {	\
			.name = symbol,							\
		};									\
		(type)next_function(&next_);						\
	})

/* Numbers of the device files: the kernel gives no driver 10:255, and 231 is that of uverbs. */
enum { MAJOR_UVERBS = 231, FIRST_UVERBS = 192, MAJOR_MISC = 10, MINOR_CM = 255 };

static char dir[PATH_MAX / 2]; /* "" is none */
static size_t dir_len;

/* What is mounted for $VRNIC_SYS_DIR if mode says so; the rest is done by functions. */
static void use(const char *d, const char *mode)
{
	char *env = secure_getenv("VRNIC_SYS");

	if (strcmp(mode, "preload") && !vrnic_sys_mounted(d, &vrnic_faces[FACE_CLASS])) {
		vrnic_sys_mount(d, !strcmp(mode, "mount"));
		if (env && !strcmp(env, "mount"))
			memcpy(env, "auto", sizeof("auto")); /* of what it starts nothing is asked twice */
	}
	for (int i = 0; i < FACES; i++)
		vrnic_faces[i].mounted = i > FACE_CLASS && i < FACE_DEV ? vrnic_faces[FACE_CLASS].mounted :
									  vrnic_sys_mounted(d, &vrnic_faces[i]);
	dir_len = strlen(d);
	memcpy(dir, d, dir_len + 1);
}

__attribute__((constructor)) static void begin(void)
{
	char *d, *mode;

	for (struct next *n = __start_vrnic_next; n < __stop_vrnic_next; n++)
		next_function(n);
	looked_up = true;
	d = vrnic_setting("VRNIC_SYS_DIR");
	mode = vrnic_setting("VRNIC_SYS");
	if (d && *d == '/' && strlen(d) < sizeof(dir) && mode && strcmp(mode, "off"))
		use(d, mode);
	free(d);
	free(mode);
}

/*
 * Whether path may be one of ours. Most are not, and of those no more is made: programs open files
 * on stacks that are hardly longer than a path may be, as handlers of signals have them.
 */
static bool likely(const char *path)
{
	if (!dir_len || !path || path[0] != '/')
		return false;
	if (!strncmp(path, "/sys/", 5))
		return strchr("c/.", path[5]);
	if (!strncmp(path, "/dev/", 5))
		return strchr("i/.", path[5]);
	return path[1] == '/' || path[1] == '.';
}

/* What a place takes, in octets. */
#define ROOM(path) (likely(path) ? PATH_MAX : 1)

/* path without empty parts and those that are ".": false if it is too long. */
static bool tidy(const char *path, char *out, size_t size)
{
	size_t n = 0;

	while (*path) {
		size_t len;

		while (*path == '/')
			path++;
		len = strcspn(path, "/");
		if (!len || (len == 1 && *path == '.')) {
			path += len;
			continue;
		}
		if (n + len + 2 > size)
			return false;
		out[n++] = '/';
		memcpy(out + n, path, len);
		n += len;
		path += len;
	}
	out[n] = 0;
	return true;
}

static bool below(const struct vrnic_face *f, const char *path)
{
	size_t len = strlen(f->path);

	return !strncmp(path, f->path, len) && (!path[len] || (f->whole && path[len] == '/'));
}

/* face_of for a likely path. */
__attribute__((noinline)) static const struct vrnic_face *find(const char *path, char *place)
{
	char clean[PATH_MAX];

	if (!tidy(path, clean, PATH_MAX - dir_len))
		return NULL;
	for (int i = 0; i < FACES; i++) {
		const struct vrnic_face *f = &vrnic_faces[i];

		if (f->mounted || !below(f, clean))
			continue;
		memcpy(place, dir, dir_len);
		strcpy(place + dir_len, clean);
		if (f->merged && syscall(SYS_faccessat, AT_FDCWD, place, F_OK))
			return NULL;
		return f;
	}
	return NULL;
}

/*
 * The face that an absolute path is of, or NULL. place, with ROOM(path), gets where it is in our
 * directory.
 */
static const struct vrnic_face *face_of(const char *path, char *place)
{
	int err = errno;
	const struct vrnic_face *f = likely(path) ? find(path, place) : NULL;

	errno = err;
	return f;
}

/* The path to use, which is in place if it is one of ours. */
static const char *lead(const char *path, char *place)
{
	return face_of(path, place) ? place : path;
}

/*
 * Opening.
 */

/* The path to open with flags, or NULL with errno: ours are for reading, and no devices. */
static const char *lead_open(const char *path, int flags, char *place)
{
	const struct vrnic_face *f = face_of(path, place);
	int err = errno;
	struct stat st;

	if (!f)
		return path;
	if (f->device && !(flags & O_PATH) && !syscall(SYS_newfstatat, AT_FDCWD, place, &st, 0) &&
	    !S_ISDIR(st.st_mode)) {
		errno = EACCES;
		return NULL;
	}
	errno = err;
	if (!f->merged && (flags & O_ACCMODE) != O_RDONLY) {
		errno = EROFS;
		return NULL;
	}
	return place;
}

static mode_t mode_of(int flags, va_list ap)
{
	return flags & (O_CREAT | (O_TMPFILE & ~O_DIRECTORY)) ? va_arg(ap, mode_t) : 0;
}

#define OPEN(name)									\
	EXPORT int name(const char *path, int flags, ...)				\
	{										\
		char place[ROOM(path)];							\
		va_list ap;								\
		mode_t mode;								\
											\
		va_start(ap, flags);							\
		mode = mode_of(flags, ap);						\
		va_end(ap);								\
		path = lead_open(path, flags, place);					\
		return !path ? -1 :							\
			       NEXT(int (*)(const char *, int, ...), #name)(path, flags, mode); \
	}

#define OPENAT(name)									\
	EXPORT int name(int at, const char *path, int flags, ...)			\
	{										\
		char place[ROOM(path)];							\
		va_list ap;								\
		mode_t mode;								\
											\
		va_start(ap, flags);							\
		mode = mode_of(flags, ap);						\
		va_end(ap);								\
		path = lead_open(path, flags, place);					\
		return !path ? -1 : NEXT(int (*)(int, const char *, int, ...),		\
					 #name)(at, path, flags, mode);			\
	}

OPEN(open)
OPENAT(openat)

#ifdef __GLIBC__
OPEN(open64)
OPENAT(openat64)

/* What the compiler makes of open where it checks arguments (_FORTIFY_SOURCE). */
#define OPEN_2(name)									\
	EXPORT int name(const char *path, int flags);					\
	EXPORT int name(const char *path, int flags)					\
	{										\
		char place[ROOM(path)];							\
											\
		path = lead_open(path, flags, place);					\
		return !path ? -1 : NEXT(int (*)(const char *, int), #name)(path, flags); \
	}

#define OPENAT_2(name)									\
	EXPORT int name(int at, const char *path, int flags);				\
	EXPORT int name(int at, const char *path, int flags)				\
	{										\
		char place[ROOM(path)];							\
											\
		path = lead_open(path, flags, place);					\
		return !path ? -1 : NEXT(int (*)(int, const char *, int),		\
					 #name)(at, path, flags);			\
	}

OPEN_2(__open_2)
OPEN_2(__open64_2)
OPENAT_2(__openat_2)
OPENAT_2(__openat64_2)
#endif

#define FOPEN(name)									\
	EXPORT FILE *name(const char *path, const char *mode)				\
	{										\
		char place[ROOM(path)];							\
		int flags = strpbrk(mode, "wa+") ? O_RDWR : O_RDONLY;			\
											\
		path = lead_open(path, flags, place);					\
		return !path ? NULL :							\
			       NEXT(FILE *(*)(const char *, const char *), #name)(path, mode); \
	}

FOPEN(fopen)
#ifdef __GLIBC__
FOPEN(fopen64)
#endif

EXPORT DIR *opendir(const char *path)
{
	char place[ROOM(path)];

	return NEXT(DIR *(*)(const char *), "opendir")(lead(path, place));
}

typedef int selector(const struct dirent *);
typedef int comparer(const struct dirent **, const struct dirent **);

EXPORT int scandir(const char *path, struct dirent ***list, selector *want, comparer *compare)
{
	char place[ROOM(path)];

	return NEXT(int (*)(const char *, struct dirent ***, selector *, comparer *),
		    "scandir")(lead(path, place), list, want, compare);
}

#ifdef __GLIBC__
/* The same structure in 64 bits. */
typedef int selector64(const struct dirent64 *);
typedef int comparer64(const struct dirent64 **, const struct dirent64 **);

EXPORT int scandir64(const char *path, struct dirent64 ***list, selector64 *want,
		     comparer64 *compare)
{
	char place[ROOM(path)];

	return NEXT(int (*)(const char *, struct dirent64 ***, selector64 *, comparer64 *),
		    "scandir64")(lead(path, place), list, want, compare);
}
#endif

EXPORT int chdir(const char *path)
{
	char place[ROOM(path)];

	return NEXT(int (*)(const char *), "chdir")(lead(path, place));
}

/*
 * What is there.
 */

/* The number of a device file by its name. */
static dev_t number(const char *path)
{
	const char *name = strrchr(path, '/') + 1;

	if (!strncmp(name, "uverbs", 6))
		return makedev(MAJOR_UVERBS, FIRST_UVERBS + (unsigned int)atoi(name + 6));
	return makedev(MAJOR_MISC, MINOR_CM);
}

/* stat(2) of any form. next is the C library's, or NULL: some have other names for it. */
static int stat_at(int at, const char *path, struct stat *st, int flags,
		   int (*next)(int, const char *, struct stat *, int))
{
	char place[ROOM(path)];
	const struct vrnic_face *f = face_of(path, place);
	int r;

	if (!f)
		return next ? next(at, path, st, flags) :
			      (int)syscall(SYS_newfstatat, at, path, st, flags);
	r = (int)syscall(SYS_newfstatat, at, place, st, flags);
	if (!r && f->device && !S_ISDIR(st->st_mode)) {
		st->st_mode = S_IFCHR | 0666;
		st->st_rdev = number(place);
		st->st_size = 0;
	}
	return r;
}

/* The structure of stat64 is that of stat, and so is the kernel's, in 64 bits. */
static int next_fstatat(int at, const char *path, struct stat *st, int flags)
{
	int (*next)(int, const char *, struct stat *, int) =
		NEXT(int (*)(int, const char *, struct stat *, int), "fstatat");

	return next ? next(at, path, st, flags) : (int)syscall(SYS_newfstatat, at, path, st, flags);
}

static int next_stat(int at, const char *path, struct stat *st, int flags)
{
	int (*next)(const char *, struct stat *) =
		flags ? NEXT(int (*)(const char *, struct stat *), "lstat") :
			NEXT(int (*)(const char *, struct stat *), "stat");

	(void)at;
	return next ? next(path, st) : (int)syscall(SYS_newfstatat, AT_FDCWD, path, st, flags);
}

#define STAT(name, type, flags)								\
	EXPORT int name(const char *path, type *st)					\
	{										\
		return stat_at(AT_FDCWD, path, (struct stat *)st, flags, next_stat);	\
	}

#define FSTATAT(name, type)								\
	EXPORT int name(int at, const char *path, type *st, int flags)			\
	{										\
		return stat_at(at, path, (struct stat *)st, flags, next_fstatat);	\
	}

STAT(stat, struct stat, 0)
STAT(lstat, struct stat, AT_SYMLINK_NOFOLLOW)
FSTATAT(fstatat, struct stat)

#ifdef __GLIBC__
STAT(stat64, struct stat64, 0)
STAT(lstat64, struct stat64, AT_SYMLINK_NOFOLLOW)
FSTATAT(fstatat64, struct stat64)

/* What programs of glibc before 2.33 call. */
#define XSTAT(name, flags)								\
	EXPORT int name(int version, const char *path, struct stat *st);		\
	EXPORT int name(int version, const char *path, struct stat *st)			\
	{										\
		(void)version;								\
		return stat_at(AT_FDCWD, path, st, flags, next_stat);			\
	}

XSTAT(__xstat, 0)
XSTAT(__xstat64, 0)
XSTAT(__lxstat, AT_SYMLINK_NOFOLLOW)
XSTAT(__lxstat64, AT_SYMLINK_NOFOLLOW)

#define FXSTATAT(name)									\
	EXPORT int name(int version, int at, const char *path, struct stat *st, int flags); \
	EXPORT int name(int version, int at, const char *path, struct stat *st, int flags) \
	{										\
		(void)version;								\
		return stat_at(at, path, st, flags, next_fstatat);			\
	}

FXSTATAT(__fxstatat)
FXSTATAT(__fxstatat64)

EXPORT int statx(int at, const char *path, int flags, unsigned int mask, struct statx *st)
{
	char place[ROOM(path)];
	const struct vrnic_face *f = face_of(path, place);
	dev_t n;
	int r;

	r = NEXT(int (*)(int, const char *, int, unsigned int, struct statx *),
		 "statx")(at, f ? place : path, flags, mask, st);
	if (!r && f && f->device && !S_ISDIR(st->stx_mode)) {
		n = number(place);
		st->stx_mode = S_IFCHR | 0666;
		st->stx_rdev_major = major(n);
		st->stx_rdev_minor = minor(n);
		st->stx_size = 0;
	}
	return r;
}
#endif

EXPORT int access(const char *path, int how)
{
	char place[ROOM(path)];

	return NEXT(int (*)(const char *, int), "access")(lead(path, place), how);
}

EXPORT int eaccess(const char *path, int how)
{
	char place[ROOM(path)];

	return NEXT(int (*)(const char *, int), "eaccess")(lead(path, place), how);
}

EXPORT int euidaccess(const char *path, int how)
{
	char place[ROOM(path)];

	return NEXT(int (*)(const char *, int), "euidaccess")(lead(path, place), how);
}

EXPORT int faccessat(int at, const char *path, int how, int flags)
{
	char place[ROOM(path)];

	return NEXT(int (*)(int, const char *, int, int), "faccessat")(at, lead(path, place), how, flags);
}

EXPORT ssize_t readlink(const char *path, char *buf, size_t size)
{
	char place[ROOM(path)];

	return NEXT(ssize_t (*)(const char *, char *, size_t), "readlink")(lead(path, place), buf, size);
}

EXPORT ssize_t readlinkat(int at, const char *path, char *buf, size_t size)
{
	char place[ROOM(path)];

	return NEXT(ssize_t (*)(int, const char *, char *, size_t),
		    "readlinkat")(at, lead(path, place), buf, size);
}

#define GETXATTR(name)									\
	EXPORT ssize_t name(const char *path, const char *attr, void *value, size_t size)	\
	{										\
		char place[ROOM(path)];							\
											\
		return NEXT(ssize_t (*)(const char *, const char *, void *, size_t),	\
			    #name)(lead(path, place), attr, value, size);			\
	}

#define LISTXATTR(name)									\
	EXPORT ssize_t name(const char *path, char *list, size_t size)			\
	{										\
		char place[ROOM(path)];							\
											\
		return NEXT(ssize_t (*)(const char *, char *, size_t),			\
			    #name)(lead(path, place), list, size);				\
	}

GETXATTR(getxattr)
GETXATTR(lgetxattr)
LISTXATTR(listxattr)
LISTXATTR(llistxattr)

/*
 * Names: what is in our directory has the name that it stands for.
 */

static char *renamed(char *name)
{
	if (name && dir_len && !strncmp(name, dir, dir_len) && name[dir_len] == '/')
		memmove(name, name + dir_len, strlen(name + dir_len) + 1);
	return name;
}

EXPORT char *realpath(const char *path, char *out)
{
	char place[ROOM(path)];

	return renamed(NEXT(char *(*)(const char *, char *), "realpath")(lead(path, place), out));
}

EXPORT char *canonicalize_file_name(const char *path)
{
	return realpath(path, NULL);
}

EXPORT char *__realpath_chk(const char *path, char *out, size_t size);
EXPORT char *__realpath_chk(const char *path, char *out, size_t size)
{
	if (size < PATH_MAX)
		abort(); /* as the C library's does: what is found may be longer */
	return realpath(path, out);
}

EXPORT char *getcwd(char *out, size_t size)
{
	return renamed(NEXT(char *(*)(char *, size_t), "getcwd")(out, size));
}
