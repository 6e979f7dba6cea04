/*
 * What the files of libibverbs share, and what librdmacm may use of it (symbol version VRNIC_1).
 *
 * A process has one session with the daemon: a control socket, a page of bells, and the shared memory
 * of its rings. It is opened when a program first asks for devices and closed by the end of the process. It
 * dies early when the daemon goes, when the daemon writes nonsense, or in the child of a fork. A dead
 * session is never freed and never comes back; a new one may be opened beside it. Whoever notices a death calls
 * vrnic_die(); from then on nothing waits, and what is posted is flushed.
 *
 * Locks, in the order in which they are taken:
 *   vrnic_cq.lock, vrnic_qp.sq.lock, vrnic_rq.lock, vrnic_chan.lock, vrnic_mrs.lock, vrnic_session.lend_lock,
 *   vrnic_session.rpc_lock.
 * Nothing is held in a wait that a program may cancel or that the network decides on. An rpc does not wait for
 * the network, and runs with cancellation off. The libraries have no thread of their own
 * (docs/decisions.md#V21).
 */
#ifndef VRNIC_H
#define VRNIC_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/uio.h>

#include "abi.h"
#include "ibverbs/ibv.h"

#define VRNIC_EXPORT __attribute__((visibility("default")))
#define likely(x) __builtin_expect(!!(x), 1)
#define unlikely(x) __builtin_expect(!!(x), 0)
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
	unsigned int forks; /* of this process's ancestors when it was made: vrnic_unmap leaves others' alone */
};

/* Whether a ring of size slots, a power of two, lies in a memory of len octets. */
static inline bool vrnic_ring_fits(size_t len, uint32_t off, uint32_t size, uint32_t max_size, uint32_t stride,
				   uint32_t min_stride, uint32_t max_stride)
{
	return size && !(size & (size - 1)) && size <= max_size && stride >= min_stride && stride <= max_stride &&
	       off % 8 == 0 && stride % 8 == 0 && off <= len && (uint64_t)size * stride <= len - off;
}

/* Whether a slab, of no octets or a power of two, does. */
static inline bool vrnic_slab_fits(size_t len, uint32_t off, uint32_t size)
{
	return off <= len && size <= len - off &&
	       (!size || (!(size & (size - 1)) && size >= VRNIC_MIN_SLAB && size <= VRNIC_MAX_SLAB));
}

/*
 * session.c, rpc.c, pipe.c
 */
extern atomic_uint vrnic_forks; /* between the first process of this program and this one */

struct vrnic_device; /* device.c: one for each device of the daemon, for the life of the process */

struct vrnic_session {
	struct vrnic_session *next; /* all that this process or its ancestors opened */
	atomic_bool dead; /* set once; checked before any shared memory is touched */
	int sock;
	int doorbell;
	pid_t daemon; /* of the same user, or 0 */
	struct vrnic_map page;
	_Atomic uint32_t *bells;
	_Atomic uint32_t *sleeping;
	uint32_t nbells;
	bool spin;	     /* who waits for completions may look at the ring for a moment before it sleeps */
	uint32_t poll_yield; /* empty polls of a thread after which it yields the processor */
	pthread_mutex_t rpc_lock;
	uint32_t seq;
	pthread_mutex_t lend_lock;
	bool mem_lent; /* SET_MEM was done; lend_lock */
	uint32_t ndevices;
	char (*names)[VRNIC_DEVICE_NAME_LEN]; /* of the devices, which stay the same */
	struct vrnic_mrs *mrs; /* memory.c: what is registered, by lkey */
};

/*
 * The session of this process, opened if there is none that lives; NULL with errno, after one line on
 * stderr that says why and what to do (once for each cause). Programs that run with raised privilege, and daemons of a
 * third user, get none: a session gives the daemon this process's memory.
 */
VRNIC_EXPORT struct vrnic_session *vrnic_session(void);

static inline bool vrnic_dead(struct vrnic_session *s)
{
	return atomic_load_explicit(&s->dead, memory_order_acquire);
}

/*
 * Ends the session, if it lives: why is for the log, on stderr if VRNIC_DEBUG names shm, printf-like. Any lock may be
 * held. errno is left alone.
 */
VRNIC_EXPORT void vrnic_die(struct vrnic_session *s, const char *why, ...) __attribute__((format(printf, 2, 3)));
VRNIC_EXPORT void vrnic_debug(const char *what, ...) __attribute__((format(printf, 1, 2)));

/* Looks whether the daemon has closed the socket, and ends the session then. True: the session is dead. */
VRNIC_EXPORT bool vrnic_peer_gone(struct vrnic_session *s);

/*
 * What stands in shared memory makes no sense. A daemon that ends a session closes the socket first and then
 * empties the memory: that is told apart in the log. Ends the session.
 */
VRNIC_EXPORT void vrnic_corrupt(struct vrnic_session *s, const char *what);

/*
 * One request and its reply: 0, or an errno (positive), EIO if the session is dead. rep is filled on success, what
 * the daemon does not know of it with zeros; req and rep are structs of abi.h or NULL with 0. send_fd -1: none. On
 * success exactly nfds descriptors are in fds, close-on-exec, and the caller's.
 */
VRNIC_EXPORT int vrnic_rpc(struct vrnic_session *s, uint16_t op, const void *req, size_t req_len, void *rep, size_t rep_len,
	      int send_fd, int *fds, int nfds);

/* vrnic_rpc without descriptors, for a request that is a handle alone. */
VRNIC_EXPORT int vrnic_rpc_handle(struct vrnic_session *s, uint16_t op, uint32_t handle, void *rep, size_t rep_len);

/* Lends the daemon this process's memory, if that has not been done: 0 or an errno. */
int vrnic_lend_mem(struct vrnic_session *s);

/*
 * Maps what fd is, at least min octets, writable and sealed against shrinking, and closes fd: 0 or an errno, and then
 * the session is dead. For the child of a fork it is as unmapped.
 */
int vrnic_map_fd(struct vrnic_session *s, int fd, size_t min, struct vrnic_map *m);
void vrnic_unmap(struct vrnic_map *m);
bool vrnic_mapped(const struct vrnic_map *m); /* false in the child of a fork */

/*
 * Takes one token out of an event pipe, with read(2) on the program's own descriptor: blocks unless the program has
 * set O_NONBLOCK, and is a cancellation point. 0: taken. -1: errno, EAGAIN or EINTR among others. 1: the session is
 * dead. If the pipe was closed because another thread destroyed its channel, it does not return: nothing of the
 * channel may be touched any more, and a program that leaves main meanwhile must not see an error. To be told from
 * the daemon's end, who destroys a channel closes fd before it asks the daemon.
 */
VRNIC_EXPORT int vrnic_wait_token(struct vrnic_session *s, int fd);

/* Whether fd is a pipe; the session is dead if not. */
VRNIC_EXPORT bool vrnic_check_pipe(struct vrnic_session *s, int fd);

/* Takes n tokens back out of a pipe, without blocking and without a change of its flags. */
VRNIC_EXPORT void vrnic_take_tokens(int fd, uint32_t n);

/* close(2) without being a cancellation point; -1 is none. */
VRNIC_EXPORT void vrnic_close(int fd);

/* Rings the bell of a QP or SRQ, after the work has been committed. Never blocks. */
static inline void vrnic_ring(struct vrnic_session *s, uint32_t bell)
{
	extern void vrnic_ring_doorbell(struct vrnic_session *s);

	/* Set also if it looks set: the daemon may be about to clear it, having looked at the ring before. */
	atomic_fetch_or(&s->bells[bell >> 5], 1u << (bell & 31));
	atomic_thread_fence(memory_order_seq_cst);
	if (unlikely(atomic_load_explicit(s->sleeping, memory_order_relaxed)) && atomic_exchange(s->sleeping, 0))
		vrnic_ring_doorbell(s);
}

/*
 * device.c
 */
void vrnic_devices_forked(void); /* for the child of a fork */

struct vrnic_context {
	struct verbs_context v; /* v.context, its last member, is what the program has */
	struct vrnic_session *s;
	struct vrnic_device *dev;
	uint32_t dev_index;    /* what the daemon calls the device */
	uint32_t handle;       /* and this context */
	atomic_bool fatal;     /* IBV_EVENT_DEVICE_FATAL has been given */
	struct vrnic_query_device_reply attr; /* as it was when the device was opened */
	pthread_mutex_t obj_lock; /* what follows; taken last of all */
	struct vrnic_obj *objs[64];
};

/* What async events name: part of each CQ, QP and SRQ. */
struct vrnic_obj {
	struct vrnic_obj *next;
	uint32_t kind; /* VRNIC_OBJ_CQ... */
	uint32_t handle;
	uint32_t given; /* events given to the program */
	void *ibv;	/* the struct ibv_cq, ibv_qp or ibv_srq */
};

static inline struct vrnic_context *to_vctx(struct ibv_context *c)
{
	return container_of(c, struct vrnic_context, v.context);
}

/*
 * From vrnic_obj_add on events of the object are given to the program, until vrnic_obj_drop, which comes after the daemon
 * has destroyed it: with tokens of the daemon's reply, or 0. It returns how many were given.
 */
void vrnic_obj_add(struct vrnic_context *c, struct vrnic_obj *o, uint32_t kind, uint32_t handle, void *ibv);
uint32_t vrnic_obj_drop(struct vrnic_context *c, struct vrnic_obj *o, uint32_t tokens);

/*
 * Waits until given events of an object have been acknowledged: *completed is counted up under mutex and cond signaled.
 * A cancellation point; the mutex is not held then.
 */
void vrnic_wait_acks(pthread_mutex_t *mutex, pthread_cond_t *cond, const uint32_t *completed, uint32_t given);

/*
 * For librdmacm: the context that all ids of a process share for device number index, opened when first asked for; NULL
 * with errno. And the number of a context's device.
 */
VRNIC_EXPORT struct ibv_context *vrnic_cm_context(struct vrnic_session *s, uint32_t index);
VRNIC_EXPORT uint32_t vrnic_device_index(struct ibv_context *c);

/* How many devices the daemon has; and which of them VRNIC_DEVICE leaves to this process. */
VRNIC_EXPORT uint32_t vrnic_num_devices(struct vrnic_session *s);
VRNIC_EXPORT bool vrnic_device_allowed(struct vrnic_session *s, uint32_t index);

/*
 * memory.c
 */
struct vrnic_mrs *vrnic_mrs_new(void);
void vrnic_mrs_free(struct vrnic_mrs *t);
void vrnic_mrs_forked(struct vrnic_mrs *t); /* for the child of a fork */

struct vrnic_pd {
	struct ibv_pd pd;
	atomic_uint users; /* MRs, MWs, QPs and SRQs: EBUSY while there are any */
};

struct vrnic_mr {
	struct ibv_mr mr;
	int access;
	uint64_t iova;
	bool revoked;	       /* its keys give nothing any more, as far as the library knows */
	struct vrnic_area *area; /* memory that is shared with the daemon, or NULL */
	struct vrnic_mr *next; /* in its bucket of vrnic_mrs */
};

static inline struct vrnic_pd *to_vpd(struct ibv_pd *pd) { return container_of(pd, struct vrnic_pd, pd); }

/*
 * True if the SGEs lie in regions of pd that the library may read (send) or write (receive) on the program's behalf, so
 * that a message can go through a slab: the daemon sees no key then. False leaves it to the daemon, and to its errors;
 * also for reads of memory that is shared with the daemon, which needs no slab to get at it.
 * iov, of n entries, says where the octets are in this process: not at sge.addr, if a region has another iova.
 * Takes a read lock; no system call.
 */
bool vrnic_sges_local(struct vrnic_session *s, struct ibv_pd *pd, const struct ibv_sge *sge, int n, bool write,
		      struct iovec *iov);

/* A key was invalidated, by this program or its peer: the daemon judges what uses it from now on. */
void vrnic_mr_revoked(struct vrnic_session *s, uint32_t key);

/* What a context has for programs. */
struct ibv_mw *vrnic_alloc_mw(struct ibv_pd *pd, enum ibv_mw_type type);
int vrnic_dealloc_mw(struct ibv_mw *mw);

/*
 * channel.c: completion channels. cq.c: CQs.
 */
struct vrnic_chan {
	struct ibv_comp_channel ch; /* ch.refcnt: its CQs */
	struct vrnic_session *s;
	uint32_t handle;
	pthread_mutex_t lock; /* the ring's consumer and the list of CQs */
	struct vrnic_map map;
	_Atomic uint32_t *slots;
	_Atomic uint32_t *prod;
	_Atomic uint32_t *cons_word;
	uint32_t mask; /* slots - 1 */
	uint32_t cons;
	struct vrnic_cq *cqs; /* by chan_next */
	bool gone;	      /* destroyed */
};

/*
 * From vrnic_chan_attach on the channel gives events of a CQ, until vrnic_chan_detach, which comes after the daemon has
 * destroyed the CQ, and returns how many were given.
 */
void vrnic_chan_attach(struct vrnic_chan *ch, struct vrnic_cq *cq);
uint32_t vrnic_chan_detach(struct vrnic_chan *ch, struct vrnic_cq *cq);

struct vrnic_cq {
	union {
		struct ibv_cq cq;
		struct ibv_cq_ex ex;
	};
	struct vrnic_session *s;
	struct vrnic_chan *chan; /* or NULL */
	struct vrnic_cq *chan_next;
	struct vrnic_map map;
	_Atomic uint32_t *prod;
	_Atomic uint32_t *cons_word;
	_Atomic uint32_t *arm;
	char *cqes;
	uint32_t mask;		 /* size - 1 */
	atomic_uint users;	 /* QPs that complete here: EBUSY */
	uint32_t comp_given;	 /* completion events given to the program; chan->lock */
	bool last_given;	 /* the event of the session's death; chan->lock */
	atomic_bool armed;	 /* an event was asked for and not given since: req_notify sets it */
	struct vrnic_obj obj;
	pthread_mutex_t lock;	 /* what follows */
	atomic_uint cons;	 /* read without the lock to see that there is nothing */
	bool bad;		 /* the ring makes no sense; the session is dead */
	struct vrnic_qp *qps[64]; /* by number, chained by scq_next or rcq_next */
	struct vrnic_qp *last;
	/* poll.c: the completion that the ibv_cq_ex calls read, with lock held between start_poll and end_poll. */
	struct ibv_wc cur_wc;
	uint64_t cur_time; /* CLOCK_MONOTONIC, ns */
};

static inline struct vrnic_cq *to_vcq(struct ibv_cq *cq) { return container_of(cq, struct vrnic_cq, cq); }

/* poll.c, for cq.c. The CQ's ring has been mapped and checked. */
int vrnic_poll_cq(struct ibv_cq *cq, int n, struct ibv_wc *wc);
int vrnic_req_notify_cq(struct ibv_cq *cq, int solicited_only);
struct ibv_cq_ex *vrnic_create_cq_ex(struct ibv_context *c, struct ibv_cq_init_attr_ex *attr); /* cq.c */
void vrnic_cq_ex_ops(struct vrnic_cq *cq, uint64_t wc_flags);

/*
 * qp.c, srq.c; post.c is their data path.
 */
struct vrnic_recv { /* an outstanding receive: until it is polled, after its slot is free again */
	uint64_t wr_id;
	uint32_t cookie; /* place + 1, and high bits that tell it from earlier ones there */
	uint32_t nsge;	 /* VRNIC_NO_RECV: none is outstanding here */
	uint32_t next;	 /* in the order of posting; the place of the list's head is mask + 1 */
	uint32_t prev;
};

#define VRNIC_NO_RECV UINT32_MAX

/* The client's end of a receive queue, a QP's or an SRQ's. */
struct vrnic_rq {
	pthread_mutex_t lock;
	struct vrnic_session *s;
	char *ring; /* NULL: closed, or the QP has an SRQ */
	_Atomic uint32_t *prod_word;
	_Atomic uint32_t *head_word;
	_Atomic uint32_t *starved;
	uint32_t bell;
	uint32_t prod;
	uint32_t mask;
	uint32_t stride;
	uint32_t max_sge;
	struct vrnic_recv *wrs; /* mask + 1 of them, and the head of their list */
	struct ibv_sge *sges;	/* max_sge for each of wrs */
	uint32_t *free;		/* places in wrs */
	uint32_t nfree;
};

struct vrnic_srq {
	struct ibv_srq srq;
	struct vrnic_session *s;
	struct vrnic_map map;
	struct vrnic_rq rq;
	struct vrnic_obj obj;
	atomic_uint users; /* QPs: EBUSY */
};

static inline struct vrnic_srq *to_vsrq(struct ibv_srq *srq) { return container_of(srq, struct vrnic_srq, srq); }

struct vrnic_sent { /* by slot of the send queue: what a flush on a dead session has to say */
	uint64_t wr_id;
	uint8_t op; /* enum ibv_wr_opcode */
	bool signaled;
};

struct vrnic_sq {
	pthread_mutex_t lock;
	char *ring;
	_Atomic uint32_t *prod_word;
	_Atomic uint32_t *done_word;
	atomic_uint prod;   /* read by who polls, without lock */
	atomic_uint polled; /* requests that a completion has said to be over; written with the send CQ's lock held */
	uint32_t done;	    /* as polled, and those that complete invisibly, as far as that matters */
	uint32_t mask;
	uint32_t stride;
	uint32_t max_sge;
	uint32_t max_inline;
	struct vrnic_sent *sent;
	/* the slab for small messages */
	char *slab;
	uint32_t slab_size;
	uint32_t slab_prod;
	_Atomic uint32_t *slab_prod_word;
	_Atomic uint32_t *slab_cons_word;
	/* wr.c: between wr_start and wr_complete, with lock held */
	uint32_t wr_prod;
	uint32_t wr_slab_prod; /* before */
	int wr_err;
	bool wr_open; /* wr waits for its data */
	struct ibv_send_wr wr;
};

struct vrnic_qp {
	union { /* as struct verbs_qp, whose comp_mask ibv_qp_to_qp_ex looks at */
		struct verbs_qp vqp;
		struct {
			struct ibv_qp qp;
		};
	};
	struct vrnic_session *s;
	struct vrnic_map map;
	_Atomic uint32_t *state; /* enum ibv_qp_state, the daemon's */
	struct vrnic_obj obj;
	uint32_t bell;
	bool sig_all;
	struct ibv_qp_cap cap;
	struct vrnic_sq sq;
	struct vrnic_rq rq;
	struct vrnic_srq *srq;
	struct vrnic_qp *scq_next; /* in vrnic_cq.qps of the send CQ, and of the receive CQ if it is another */
	struct vrnic_qp *rcq_next;
	struct vrnic_qp *next; /* of all with a number like it */
	/* the slab for small receives; the receive CQ's lock */
	char *rx_slab;
	uint32_t rx_slab_size;
	uint32_t rx_slab_cons;
	_Atomic uint32_t *rx_slab_prod_word;
	_Atomic uint32_t *rx_slab_cons_word;
};

static inline struct vrnic_qp *to_vqp(struct ibv_qp *qp) { return container_of(qp, struct vrnic_qp, qp); }

/*
 * For librdmacm, to which a program may name a QP by its number only: the daemon's handle of its PD. Numbers are
 * unique in a device, so the context is asked, too. 0 or ENOENT.
 */
VRNIC_EXPORT int vrnic_find_qp(struct ibv_context *c, uint32_t qpn, uint32_t *pd_handle);

/* qp.c, srq.c. What a context has for programs, with those of post.c. */
struct ibv_qp *vrnic_create_qp_ex(struct ibv_context *c, struct ibv_qp_init_attr_ex *attr);
struct ibv_srq *vrnic_create_srq_ex(struct ibv_context *c, struct ibv_srq_init_attr_ex *attr);
int vrnic_get_srq_num(struct ibv_srq *srq, uint32_t *num);

/* post.c */
int vrnic_post_send(struct ibv_qp *qp, struct ibv_send_wr *wr, struct ibv_send_wr **bad);
int vrnic_post_recv(struct ibv_qp *qp, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad);
int vrnic_post_srq_recv(struct ibv_srq *srq, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad);
int vrnic_bind_mw(struct ibv_qp *qp, struct ibv_mw *mw, struct ibv_mw_bind *bind);

/* wr.c */
void vrnic_qp_ex_ops(struct vrnic_qp *qp, uint64_t send_ops_flags);

#endif
