/*
 * libvrnic-sys.so: what programs see of RDMA devices in /sys and /dev. A process of `vrnic exec`
 * keeps a directory, $VRNIC_SYS_DIR, that is laid out as / is; here it takes the place of what the
 * kernel has at some paths: by mounts, where the host lets this process make them, or else by
 * functions in front of the C library's.
 */
#ifndef VRNIC_SYS_MOUNT_H
#define VRNIC_SYS_MOUNT_H

#include <stdbool.h>
#include <stddef.h>

/* A path that is ours. */
struct vrnic_face {
	const char *path;
	bool whole;   /* what is below it, too */
	bool merged;  /* with the kernel's: what is not in our directory may still be there */
	bool device;  /* what is in it are device files, which no process can open */
	bool mounted; /* the kernel shows it: nothing is left to do here */
};

enum { FACE_CLASS, FACE_DEV = 6, FACES };

extern struct vrnic_face vrnic_faces[FACES];

/* Mounts what it can of them from dir. strict: it is done, or the program ends. */
void vrnic_sys_mount(const char *dir, bool strict);

/* Whether what the kernel shows at face is ours already. */
bool vrnic_sys_mounted(const char *dir, const struct vrnic_face *face);

#endif
