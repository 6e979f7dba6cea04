/*
 * The room of what both libraries stand on: the session with the daemon, requests to it, memory
 * that is shared with it, and tables. libibverbs.so.1 has it; librdmacm.so.1 calls what is
 * VRNIC_EXPORT here (symbol version VRNIC_1). It knows neither verbs nor rdma_cm, and calls
 * neither.
 *
 * A process has one session with the daemon: a control socket, a page of bells, and the shared
 * memory of its rings. It is opened when a program first asks for devices and closed by the end of
 * the process. It dies early when the daemon goes, when the daemon writes nonsense, or in the child
 * of a fork. A dead session is never freed and never comes back; a new one may be opened beside it.
 * Whoever notices a death calls vrnic_die(); from then on nothing waits, and what is posted is
 * flushed.
 *
 * Locks of the libraries, in the order in which they are taken; all but the last three are of the
 * rooms above:
 *   cm_lock, device_lock, vrnic_cq.lock, vrnic_qp.sq.lock, vrnic_rq.lock, vrnic_chan.lock,
 *   the lock of the regions, area_lock, vrnic_session.lend_lock, vrnic_session.rpc_lock.
 * Nothing is held in a wait that a program may cancel or that the network decides on. An rpc does
 * not wait for the network, and runs with cancellation off. The libraries have no thread of their
 * own (docs/decisions.md#V21).
 */
#ifndef VRNIC_CORE_H
#define VRNIC_CORE_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "abi.h"
#include "table.h"

#define VRNIC_EXPORT __attribute__((visibility("default")))
#define likely(x) __builtin_expect(!!(x), 1)
#define unlikely(x) __builtin_expect(!!(x), 0)
/*
 * For functions that a cancellation of their thread leaves, below one that then runs a handler: the
 * address sanitizer would not see that what it has marked in their frames is free again.
 */
#define VRNIC_CANCELLED __attribute__((no_sanitize_address))
#define container_of(ptr, type, member) ((type *)((char *)(ptr) - offsetof(type, member)))

/*
 * Shared words. The other side may write any of them at any time: load each once, check the copy.
 */
static inline _Atomic uint32_t *vrnic_word(void *mem, size_t off)
{
	return (_Atomic uint32_t *)((char *)mem + off);
}

static inline uint32_t load_acquire(_Atomic uint32_t *w)
{
	return atomic_load_explicit(w, memory_order_acquire);
}

static inline void store_release(_Atomic uint32_t *w, uint32_t v)
{
	atomic_store_explicit(w, v, memory_order_release);
}

/* A mapping of memory that the daemon made. It is not inherited by a fork. */
struct vrnic_map {
	void *mem;
	size_t len;
	/* of this process's ancestors when it was made: vrnic_unmap leaves others' alone */
	unsigned int forks;
};

/* Whether a ring of size slots, a power of two, lies in a memory of len octets. */
static inline bool vrnic_ring_fits(size_t len, uint32_t off, uint32_t size, uint32_t max_size,
				   uint32_t stride,
				   uint32_t min_stride, uint32_t max_stride)
{
	return size && !(size & (size - 1)) && size <= max_size && stride >= min_stride &&
		stride <= max_stride &&
	       off % 8 == 0 && stride % 8 == 0 && off <= len && (uint64_t)size * stride <= len - off;
}

/* Whether a slab, of no octets or a power of two, does. */
static inline bool vrnic_slab_fits(size_t len, uint32_t off, uint32_t size)
{
	return off <= len && size <= len - off &&
	       (!size || (!(size & (size - 1)) && size >= VRNIC_MIN_SLAB && size <= VRNIC_MAX_SLAB));
}

/*
 * session.c
 */
struct vrnic_session {
	struct vrnic_session *next; /* all that this process or its ancestors opened */
	atomic_bool dead; /* set once; checked before any shared memory is touched */
	int sock;
	dev_t sock_dev; /* and sock_ino: vrnic_sock_there */
	ino_t sock_ino;
	int doorbell;
	pid_t daemon; /* of the same user, or 0 */
	struct vrnic_map page;
	_Atomic uint32_t *bells;
	_Atomic uint32_t *sleeping;
	uint32_t nbells;
	atomic_bool direct; /* the daemon lets messages to programs of the same user go without it */
	bool spin;	     /* who waits for completions may look at the ring for a moment before it sleeps */
	uint32_t poll_yield; /* empty polls of a thread after which it yields the processor */
	pthread_mutex_t rpc_lock;
	uint32_t seq;
	bool told; /* of a refusal; rpc_lock */
	pthread_mutex_t lend_lock;
	bool mem_lent; /* SET_MEM was done; lend_lock */
	bool said_who; /* IDENTIFY was done, or cannot be; lend_lock */
	pthread_mutex_t names_lock; /* of who adds to them */
	_Atomic(uint32_t) ndevices;
	char (*names)[VRNIC_DEVICE_NAME_LEN]; /* of the devices: more come, and each stays the same */
	atomic_bool *gone; /* which of them are no more: numbers are not given again */
};

/*
 * The session of this process, opened if there is none that lives; NULL with errno, after one line
 * on stderr that says why and what to do (once for each cause). Programs that run with raised
 * privilege, and daemons of a third user, get none: a session gives the daemon this process's
 * memory.
 */
VRNIC_EXPORT struct vrnic_session *vrnic_session(void);

/*
 * What an errno cannot say, in one line on stderr: each cause once in a process, printf-like. errno
 * is left alone.
 */
enum vrnic_cause {
	VRNIC_CAUSE_PRIVILEGE = 1, /* of having no session */
	VRNIC_CAUSE_PATH = 2,
	VRNIC_CAUSE_SOCKET = 4,
	VRNIC_CAUSE_TRUST = 8,
	VRNIC_CAUSE_HELLO = 16,
	VRNIC_CAUSE_MEM = 32,
	VRNIC_CAUSE_CONNECT = 64, /* of what no device, or not this one, can do */
	VRNIC_CAUSE_DATAGRAMS = 128,
	VRNIC_CAUSE_XRC = 256,
};

VRNIC_EXPORT void vrnic_complain(enum vrnic_cause cause, const char *fmt,
				 ...) __attribute__((format(printf, 2, 3)));

/* What a program of InfiniBand's ways is told to run on. */
#define VRNIC_ROCE_DEVICE "`vrnic up --device NAME,addr=CIDR,transport=roce`"

/*
 * How many devices the daemon has had since the session began; and which of them VRNIC_DEVICE, if
 * it is set, leaves to this process, of those that are there. vrnic_look asks for those that were
 * added meanwhile, vrnic_query_device for one: ENODEV if it is not there, or not any more.
 */
VRNIC_EXPORT uint32_t vrnic_num_devices(struct vrnic_session *s);
VRNIC_EXPORT bool vrnic_device_allowed(struct vrnic_session *s, uint32_t index);
VRNIC_EXPORT bool vrnic_device_named(void);
VRNIC_EXPORT void vrnic_look(struct vrnic_session *s);
struct vrnic_query_device_reply;
VRNIC_EXPORT int vrnic_query_device(struct vrnic_session *s, uint32_t index,
				    struct vrnic_query_device_reply *rep);

static inline bool vrnic_dead(struct vrnic_session *s)
{
	return atomic_load_explicit(&s->dead, memory_order_acquire);
}

/*
 * Ends the session, if it lives: why is for the log, on stderr if VRNIC_DEBUG names shm,
 * printf-like. Any lock may be held. errno is left alone.
 */
VRNIC_EXPORT void vrnic_die(struct vrnic_session *s, const char *why,
			    ...) __attribute__((format(printf, 2, 3)));
VRNIC_EXPORT void vrnic_debug(const char *what, ...) __attribute__((format(printf, 1, 2)));

/*
 * Looks whether the daemon has closed the socket, and ends the session then. True: the session is
 * dead.
 */
VRNIC_EXPORT bool vrnic_peer_gone(struct vrnic_session *s);

/*
 * Whether the session's socket is open still: programs close all descriptors that they do not know,
 * and open files of their own that have the same numbers then.
 */
bool vrnic_sock_there(struct vrnic_session *s);

/*
 * What stands in shared memory makes no sense. A daemon that ends a session closes the socket first
 * and then empties the memory: that is told apart in the log. Ends the session.
 */
VRNIC_EXPORT void vrnic_corrupt(struct vrnic_session *s, const char *what);

/*
 * One request and its reply: 0, or an errno (positive), EIO if the session is dead. rep is filled
 * on success, what the daemon does not know of it with zeros; req and rep are structs of abi.h or
 * NULL with 0. send_fd -1: none. On success exactly nfds descriptors are in fds, close-on-exec, and
 * the caller's. What the daemon has to look for on the network is waited for; requests of other
 * threads have their turn meanwhile.
 */
VRNIC_EXPORT int vrnic_rpc(struct vrnic_session *s, uint16_t op, const void *req, size_t req_len,
			   void *rep, size_t rep_len,
	      int send_fd, int *fds, int nfds);

/* vrnic_rpc without descriptors, for a request that is a handle alone. */
VRNIC_EXPORT int vrnic_rpc_handle(struct vrnic_session *s, uint16_t op, uint32_t handle,
				  void *rep, size_t rep_len);

/* Lends the daemon this process's memory, if that has not been done: 0 or an errno. */
int vrnic_lend_mem(struct vrnic_session *s);

/*
 * Shows the daemon the namespaces of this process, if that has not been done: a direct path is for
 * programs that have the same. false: there can be none. For a session with s->direct alone: a
 * daemon of an earlier version ends one that sends descriptors with what it does not know.
 */
bool vrnic_say_who(struct vrnic_session *s);

/*
 * Maps what fd is, at least min octets, writable and sealed against shrinking, and closes fd: 0 or
 * an errno, and then the session is dead unless this process had no room. For the child of a fork
 * it is as unmapped.
 */
int vrnic_map_fd(struct vrnic_session *s, int fd, size_t min, struct vrnic_map *m);
/* The same, and fd stays open. */
int vrnic_map_open_fd(struct vrnic_session *s, int fd, size_t min, struct vrnic_map *m);
/*
 * The same for memory of another program's: of any length, for reading alone or, with write, for
 * both; and nothing about it ends the session.
 */
int vrnic_map_peers(int fd, size_t min, bool write, struct vrnic_map *m);
/*
 * Maps the first page of what fd is in place of the one at page, in one step: who reads there finds
 * one of the two. 0 or an errno, and then the session is dead.
 */
int vrnic_map_page(struct vrnic_session *s, int fd, void *page);
void vrnic_unmap(struct vrnic_map *m);
bool vrnic_mapped(const struct vrnic_map *m); /* false in the child of a fork */

/*
 * Takes one token out of an event pipe, with read(2) on the program's own descriptor: blocks unless
 * the program has set O_NONBLOCK, and is a cancellation point. 0: taken. -1: errno, EAGAIN or EINTR
 * among others. 1: the session is dead. If the pipe was closed because another thread destroyed its
 * channel, it does not return: nothing of the channel may be touched any more, and a program that
 * leaves main meanwhile must not see an error. To be told from the daemon's end, who destroys a
 * channel closes fd before it asks the daemon.
 */
VRNIC_EXPORT int vrnic_wait_token(struct vrnic_session *s, int fd);

/* Whether fd can be an event pipe, or the socket that is one; the session is dead if not. */
VRNIC_EXPORT bool vrnic_check_pipe(struct vrnic_session *s, int fd);

/* Takes n tokens back out of either, without blocking and without a change of its flags. */
VRNIC_EXPORT void vrnic_take_tokens(int fd, uint32_t n);

/* close(2) without being a cancellation point; -1 is none. */
VRNIC_EXPORT void vrnic_close(int fd);

/* Wakes the daemon, which has said that it sleeps: vrnic_ring does it. */
void vrnic_ring_doorbell(struct vrnic_session *s);

/* Rings the bell of a QP or SRQ, after the work has been committed. Never blocks. */
static inline void vrnic_ring(struct vrnic_session *s, uint32_t bell)
{
	/*
	 * Set also if it looks set: the daemon may be about to clear it, having looked at the ring before.
	 */
	atomic_fetch_or(&s->bells[bell >> 5], 1u << (bell & 31));
	atomic_thread_fence(memory_order_seq_cst);
	if (unlikely(atomic_load_explicit(s->sleeping, memory_order_relaxed)) &&
	    atomic_exchange(s->sleeping, 0))
		vrnic_ring_doorbell(s);
}

/*
 * maps.c: whether all of length octets at addr is mapped so that it can be read, or with write be
 * written: 0, or the errno that a registration fails with. An adapter finds it out by pinning the
 * pages.
 */
int vrnic_check_mapped(const void *addr, size_t length, bool write);

/*
 * area.c: memory of the program that the daemon has mapped, too.
 */
struct vrnic_area;

/*
 * The area that holds length octets at addr, shared with the daemon of s now at the latest: as its
 * mem, from offset on. It is held until vrnic_area_put. NULL: there is none, and the daemon has to
 * reach into this process.
 */
struct vrnic_area *vrnic_area_find(struct vrnic_session *s, void *addr, size_t length,
				   uint32_t *mem, uint64_t *offset);
void vrnic_area_put(struct vrnic_area *a); /* NULL is none */

#endif
