/*
 * What the files of this room have in common: the objects of a program, and who makes, finds and
 * ends them. core/core.h has the order of their locks.
 */
#ifndef VRNIC_OBJECTS_H
#define VRNIC_OBJECTS_H

#include <sys/uio.h>
#include <time.h>

#include "ibverbs.h"

/*
 * async.c
 */

/* What async events name: part of each CQ, QP and SRQ. */
struct vrnic_obj {
	struct vrnic_entry entry; /* in the table of its context */
	uint32_t kind; /* VRNIC_OBJ_CQ... */
	uint32_t given; /* events given to the program */
	void *ibv;	/* the struct ibv_cq, ibv_qp or ibv_srq */
};

/*
 * From vrnic_obj_add on events of the object are given to the program, until vrnic_obj_drop, which
 * comes after the daemon has destroyed it: with tokens of the daemon's reply, or 0. It returns how
 * many were given.
 */
void vrnic_obj_add(struct vrnic_context *c, struct vrnic_obj *o, uint32_t kind, uint32_t handle,
		   void *ibv);
uint32_t vrnic_obj_drop(struct vrnic_context *c, struct vrnic_obj *o, uint32_t tokens);

/* The end of a wait, or its cancellation: one less in *waiters, an atomic_uint. */
void vrnic_stop_waiting(void *waiters);

/*
 * Waits until given events of an object have been acknowledged: *completed is counted up under
 * mutex and cond signaled. A cancellation point; the mutex is not held then.
 */
void vrnic_wait_acks(pthread_mutex_t *mutex, pthread_cond_t *cond, const uint32_t *completed,
		     uint32_t given);

/*
 * memory.c
 */
struct vrnic_td {
	struct ibv_td td;
	atomic_uint users; /* parent domains: EBUSY while there are any */
};

struct vrnic_pd {
	struct ibv_pd pd;
	/* MRs, MWs, QPs, SRQs, address handles and parent domains: EBUSY while there are any */
	atomic_uint users;
	struct vrnic_pd *is; /* the protection domain: itself, or what a parent domain stands for */
	struct vrnic_td *td; /* a parent domain's, or NULL */
};

static inline struct vrnic_pd *to_vpd(struct ibv_pd *pd)
{
	return container_of(pd, struct vrnic_pd, pd);
}

/* What is made in one of them works with what is made in the other. */
static inline bool vrnic_same_pd(struct ibv_pd *a, struct ibv_pd *b)
{
	return to_vpd(a)->is == to_vpd(b)->is;
}

/* What a context has for programs. */
struct ibv_pd *vrnic_alloc_parent_domain(struct ibv_context *c,
					 struct ibv_parent_domain_init_attr *attr);
struct ibv_td *vrnic_alloc_td(struct ibv_context *c, struct ibv_td_init_attr *attr);
int vrnic_dealloc_td(struct ibv_td *td);

/* Of access: said of memory and how it is paged, and no rights. Programs say it of QPs, too. */
#define VRNIC_ACCESS_PAGING (IBV_ACCESS_ON_DEMAND | IBV_ACCESS_HUGETLB)

/* What a context has for programs. */
struct ibv_mw *vrnic_alloc_mw(struct ibv_pd *pd, enum ibv_mw_type type);
int vrnic_dealloc_mw(struct ibv_mw *mw);

/*
 * region.c: what is registered, by lkey.
 */
struct vrnic_mr {
	struct ibv_mr mr;
	struct vrnic_session *s;
	struct vrnic_entry entry; /* in the table of regions */
	int access;
	uint64_t iova;
	bool revoked; /* its keys give nothing any more, as far as the library knows */
	struct vrnic_area *area; /* memory that is shared with the daemon, or NULL */
};

/* What a context has for programs. */
int vrnic_advise_mr(struct ibv_pd *pd, enum ibv_advise_mr_advice advice, uint32_t flags,
		    struct ibv_sge *sge, uint32_t n);

/* Has forks find the table of regions whole, from now on. */
void vrnic_regions_watch_forks(void);
void vrnic_region_add(struct vrnic_mr *mr);
void vrnic_region_remove(struct vrnic_mr *mr);

/* A region that a queue remembers, from when it was looked up: as the table had it then. */
struct vrnic_region {
	struct vrnic_pd *pd; /* NULL: none */
	unsigned int changes; /* of the table, by then */
	uint32_t lkey;
	int access;
	bool shared; /* with the daemon */
	uint64_t iova, length;
	char *at; /* in this process */
};

/*
 * True if the SGEs lie in regions of pd that the library may read (send) or write (receive) on the
 * program's behalf, so that a message can go through a slab: the daemon sees no key then. False
 * leaves it to the daemon, and to its errors; also for reads of memory that is shared with the
 * daemon, which needs no slab to get at it. iov, of n entries, says where the octets are in this
 * process: not at sge.addr, if a region has another iova. r, which has one user at a time, is what
 * was found before: only another region, or one that has changed, takes a read lock. There is no
 * system call.
 */
bool vrnic_sges_local(struct vrnic_region *r, struct ibv_pd *pd, const struct ibv_sge *sge, int n,
		      bool write, struct iovec *iov);

/* The same to read, also of memory that is shared with the daemon. */
bool vrnic_sges_readable(struct vrnic_region *r, struct ibv_pd *pd, const struct ibv_sge *sge,
			 int n, struct iovec *iov);

/*
 * Whom libvrnic-check.so, where that is preloaded, has told by vrnic_tell_placing: it has taken
 * pages from the program that the library is about to write. Else NULL.
 */
extern void (*vrnic_placing_told)(const struct iovec *iov, int n);

static inline void vrnic_placing(const struct iovec *iov, int n)
{
	if (__builtin_expect(vrnic_placing_told != NULL, 0))
		vrnic_placing_told(iov, n);
}

/*
 * A key was invalidated, by this program or its peer: the daemon judges what uses it from now on.
 */
void vrnic_mr_revoked(struct vrnic_session *s, uint32_t key);

/*
 * channel.c, sleep.c: completion channels. cq.c: CQs.
 */
struct vrnic_cq;
struct vrnic_old_map;

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
	struct vrnic_table cqs; /* by handle */
	bool gone; /* destroyed */
	atomic_uint waiters; /* threads in ibv_get_cq_event */
	atomic_uint directs; /* QPs that have a direct path, of which CQs of the channel receive */
};

/* How long who waits for an event looks for it before it sleeps. */
#define VRNIC_SPIN_NS 20000

/* CLOCK_MONOTONIC, in nanoseconds. */
static inline int64_t vrnic_now(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return now.tv_sec * INT64_C(1000000000) + now.tv_nsec;
}

/*
 * From vrnic_chan_attach on the channel gives events of a CQ, until vrnic_chan_detach, which comes
 * after the daemon has destroyed the CQ, and returns how many were given.
 */
void vrnic_chan_attach(struct vrnic_chan *ch, struct vrnic_cq *cq);
uint32_t vrnic_chan_detach(struct vrnic_chan *ch, struct vrnic_cq *cq);

struct vrnic_direct;

/*
 * Of so many of a CQ's QPs that have a direct path who polls looks at each. Those beyond that have
 * a place in its board.
 */
#define VRNIC_DIRECT_FEW 16

struct vrnic_board;

struct vrnic_cq {
	union {
		struct ibv_cq cq;
		struct ibv_cq_ex ex;
	};
	struct vrnic_session *s;
	struct vrnic_chan *chan; /* or NULL */
	struct vrnic_entry in_chan;
	struct vrnic_pd *parent; /* the parent domain that it was made with, or NULL */
	/*
	 * The first page of the ring's memory, with prod, cons and arm. It stays where it is for the life
	 * of the CQ, so that who looks at prod without the lock, to see that there is nothing, always
	 * finds one: ibv_resize_cq maps the new ring's over it.
	 */
	struct vrnic_map head;
	_Atomic uint32_t *prod;
	atomic_uint users;	 /* QPs that complete here: EBUSY */
	uint32_t comp_given;	 /* completion events given to the program; chan->lock */
	bool last_given;	 /* the event of the session's death; chan->lock */
	atomic_bool armed;	 /* an event was asked for and not given since: req_notify sets it */
	struct vrnic_obj obj;
	/* arm, and its word: ibv_resize_cq moves it. Not lock, which a program that polls may hold. */
	pthread_mutex_t arm_lock;
	_Atomic uint32_t *arm;
	uint32_t sleep; /* of VRNIC_WANT_SLEEP: the last time that peers were told of; arm_lock */
	atomic_bool wanted; /* senders have been told that it is armed; changed with arm_lock */
	pthread_mutex_t lock;	 /* what follows */
	struct vrnic_map ring;	 /* the rest of the memory; after ibv_resize_cq all of it */
	_Atomic uint32_t *cons_word;
	char *cqes;
	uint32_t mask;		 /* size - 1 */
	atomic_uint cons;	 /* read without the lock to see that there is nothing */
	atomic_bool sent;	 /* directly, since the last poll that took the lock: a guess, without locks */
	bool bad;		 /* the ring makes no sense; the session is dead */
	struct vrnic_table qps;	 /* by number */
	struct vrnic_qp *last;	 /* found there */
	atomic_uint unpolled; /* completions that the daemon has not made, of QPs that are not covered */
	/* of its QPs: changed with arm_lock held, too */
	struct vrnic_direct *directs[VRNIC_DIRECT_FEW];
	atomic_uint ndirects;
	struct vrnic_board *many; /* or NULL; changed as directs */
	atomic_uint nall; /* of directs and many */
	/* One looks at these without the lock, to see that there is nothing: none of them goes. */
	atomic_bool looking;
	/*
	 * poll.c: the completion that the ibv_cq_ex calls read, with lock held between start_poll and
	 * end_poll.
	 */
	struct ibv_wc cur_wc;
	uint64_t cur_time; /* CLOCK_MONOTONIC, ns */
};

static inline struct vrnic_cq *to_vcq(struct ibv_cq *cq)
{
	return container_of(cq, struct vrnic_cq, cq);
}

/* The CQ of an entry in a channel's table. */
static inline struct vrnic_cq *vrnic_chan_cq(struct vrnic_entry *e)
{
	return container_of(e, struct vrnic_cq, in_chan);
}

/*
 * Counts an event of cq as given to the program, which may ask for the next one: the channel's lock
 * is held.
 */
static inline struct vrnic_cq *vrnic_chan_give(struct vrnic_cq *cq, bool armed)
{
	atomic_store(&cq->armed, armed);
	cq->comp_given++;
	return cq;
}

/*
 * sleep.c, for channel.c: waits for a token of ch, or for a peer to wake who waits. NULL and *err
 * 0: there is a token to be read, or it has to be waited for otherwise; else an errno. A
 * cancellation point.
 */
struct vrnic_cq *vrnic_chan_sleep(struct vrnic_chan *ch, int *err);

/* poll.c, for cq.c. The CQ's ring has been mapped and checked. */
int vrnic_poll_cq(struct ibv_cq *cq, int n, struct ibv_wc *wc);
int vrnic_req_notify_cq(struct ibv_cq *cq, int solicited_only);
/* cq.c */
struct ibv_cq_ex *vrnic_create_cq_ex(struct ibv_context *c, struct ibv_cq_init_attr_ex *attr);
void vrnic_cq_ex_ops(struct vrnic_cq *cq, uint64_t wc_flags);

/*
 * qp.c, rq.c; post.c is their data path.
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
	struct vrnic_pair_in *in; /* of the pair whose sender is to know what is posted, or NULL */
	struct ibv_pd *pd; /* of the QP, while in is set */
	struct vrnic_region region;
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

static inline struct vrnic_srq *to_vsrq(struct ibv_srq *srq)
{
	return container_of(srq, struct vrnic_srq, srq);
}

struct vrnic_sent { /* by slot of the send queue: what a flush on a dead session has to say */
	uint64_t wr_id;
	uint8_t op; /* enum ibv_wr_opcode */
	bool signaled;
};

struct vrnic_sq {
	pthread_mutex_t lock;
	struct vrnic_direct *direct; /* as the QP's, for who has this lock */
	struct vrnic_region region;
	char *ring;
	_Atomic uint32_t *prod_word;
	_Atomic uint32_t *done_word;
	atomic_uint prod;   /* read by who polls, without lock */
	/* requests that a completion has said to be over; written with the send CQ's lock held */
	atomic_uint polled;
	uint32_t done;	    /* as polled, and those that complete invisibly, as far as that matters */
	bool flushed;	    /* some, on a dead session: those behind them are, too */
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
	bool wr_addressed; /* it has its address, or needs none */
	struct ibv_send_wr wr;
};

struct vrnic_cq_link { /* in vrnic_cq.qps */
	struct vrnic_entry entry;
	struct vrnic_qp *qp;
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
	struct vrnic_direct *direct; /* or NULL; changed with the locks of both CQs held */
	/*
	 * posts until one asks for it, 0: none does, and from that to the next; changed with sq.lock, but
	 * for direct_in that is 0
	 */
	atomic_uint direct_in, direct_every;
	bool sig_all;
	bool roce; /* of a RoCE device: it has the states of InfiniBand */
	uint32_t refused_ops; /* that a card of others has not, a bit each */
	struct ibv_qp_cap cap;
	struct vrnic_sq sq;
	struct vrnic_rq rq;
	struct vrnic_srq *srq;
	struct vrnic_cq_link in_send_cq;
	struct vrnic_cq_link in_recv_cq; /* if that is another CQ */
	struct vrnic_entry in_all;	 /* of the process, in qp.c */
	/* the slab for small receives; the receive CQ's lock */
	char *rx_slab;
	uint32_t rx_slab_size;
	uint32_t rx_slab_cons;
	_Atomic uint32_t *rx_slab_prod_word;
	_Atomic uint32_t *rx_slab_cons_word;
};

static inline struct vrnic_qp *to_vqp(struct ibv_qp *qp)
{
	return container_of(qp, struct vrnic_qp, qp);
}

/* ah.c */
struct vrnic_ah {
	struct ibv_ah ah;
	uint32_t key; /* what requests name it by */
};

static inline struct vrnic_ah *to_vah(struct ibv_ah *ah)
{
	return container_of(ah, struct vrnic_ah, ah);
}

/* device.c */
int vrnic_query_port(struct ibv_context *context, uint8_t port_num, struct ibv_port_attr *attr,
		     size_t attr_len);

/* state.c: attributes as the daemon has them; of a QP's all but the state. Back: ibverbs.h. */
struct vrnic_ah_attr vrnic_to_ah_attr(const struct ibv_ah_attr *a);
struct vrnic_qp_attr vrnic_to_qp_attr(const struct ibv_qp_attr *a);

/*
 * qp.c: waits until no thread copies a message into a region that it has found before that was
 * removed: a poll of a QP of pd. In the child of a fork nobody does.
 */
void vrnic_qps_settle(struct ibv_pd *pd);

/* qp.c, rq.c. What a context has for programs, with those of post.c. */
struct ibv_xrcd *vrnic_open_xrcd(struct ibv_context *c, struct ibv_xrcd_init_attr *attr);
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
