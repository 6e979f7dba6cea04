/*
 * libvrnic-check.so: functions in front of those of libibverbs and librdmacm that follow what a
 * program makes, posts and polls, and tell `vrnic exec --check` what is wrong with it. Programs
 * that are run without have nothing of it: it is preloaded, and takes the place of what contexts
 * have for programs when it first meets one.
 *
 * What it tells are facts, a datagram each: report.c has the form. Words, sources and lines are
 * the other side's, cmd/vrnic/internal/check.
 *
 * One lock, the book's, guards all that is kept here. It is never held over a call of the
 * libraries, which have locks of their own that a program may hold between two calls.
 */
#ifndef VRNIC_CHECK_H
#define VRNIC_CHECK_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/uio.h>

#include "ibverbs/abi/ibv.h"
#include "rdmacm/rdmacm.h"

#define CHECK_EXPORT __attribute__((visibility("default")))
#define container_of(p, type, member) ((type *)((char *)(p) - offsetof(type, member)))

/* ---- site.c: where a program was when it called ---- */

#define SITE_FRAMES 8

struct site {
	int n;
	void *pc[SITE_FRAMES]; /* return addresses outside of this library, the nearest first */
};

void site_take(struct site *s);
/* In the handler of a signal, which has come at pc. */
void site_take_at(struct site *s, const void *pc);
bool site_from_cm(const struct site *s); /* librdmacm called, rather than the program */
bool site_same(const struct site *a, const struct site *b);

/* ---- book.c: the objects of the program ---- */

/* In the order in which they are told of: what hangs on another comes first. */
enum kind {
	KIND_AH, KIND_MW, KIND_MR, KIND_QP, KIND_SRQ, KIND_CQ, KIND_CHANNEL, KIND_PD, KIND_CONTEXT,
	KIND_ID, KIND_EVENT_CHANNEL, KIND_EVENT, KINDS,
};

#define OBJECT_USES 6

struct object {
	struct object *next; /* in its bucket */
	struct object *next_key; /* and of those that are found by a number, too */
	struct object *next_kind; /* of all of its kind */
	void *at; /* the program's pointer */
	enum kind kind;
	uint32_t number; /* an MR's lkey, a QP's number */
	unsigned int generation; /* of the process that made it */
	bool internal; /* a library has made it for itself, and ends it */
	bool told; /* a leak has been told of */
	uint32_t unacked; /* events of it that the program has not acknowledged */
	uint64_t octets;
	struct object *uses[OBJECT_USES]; /* what cannot be destroyed before this one */
	struct site made;
	struct site event; /* where the last of them was got */
};

void book_lock(void);
void book_unlock(void);
bool book_held(void); /* by this thread */
/* Counts the forks that this process has come from. */
unsigned int book_generation(void);

/*
 * All with the lock held. book_add makes an object of size octets, which begins with a struct
 * object; NULL: no memory, and then it is not followed. book_find returns NULL for what is not
 * known.
 */
void *book_add(enum kind kind, void *at, size_t size, const struct site *made);
void *book_find(enum kind kind, const void *at);
/* The next one after one, or the first for NULL, that has this number. */
struct object *book_number(enum kind kind, uint32_t number, struct object *after);
void book_set_number(struct object *o, uint32_t number);
void book_use(struct object *o, struct object *used);
void book_remove(struct object *o); /* o is free from here on */
/* Calls each for all objects of a kind. */
void book_each(enum kind kind, void (*each)(struct object *o, void *arg), void *arg);

/* ---- report.c: what is told ---- */

struct report {
	char text[8000];
	size_t n;
};

/*
 * Begins to tell of something, unless that has been told before of the same place: false then, and
 * if nobody listens.
 */
bool report_begin(struct report *r, const char *what, const struct site *once);
void report_text(struct report *r, const char *name, const char *value);
void report_number(struct report *r, const char *name, uint64_t value);
void report_site(struct report *r, const char *role, const struct site *s);
/* An object, and where it was made. */
void report_object(struct report *r, const char *role, const struct object *o);
void report_send(struct report *r);
/* What the daemon has counted of a queue pair. */
struct qp_counts {
	uint64_t stalls; /* messages that have found no receive */
	uint64_t writes, reads, atomics; /* of the peer */
	/* what it has asked for last and not got; use is empty: nothing */
	char use[32]; /* in words */
	char why[16]; /* which check has failed: no-region, stranger, no-right or outside */
	uint32_t rkey, octets;
	uint64_t addr;
};

bool report_ask(const char *device, uint32_t qpn, struct qp_counts *c); /* false: nobody knows */

/* ---- next.c: the functions that ours stand in front of ---- */

/* Of libibverbs.so.1: whether a region lies in memory that is lent, and who is told of placing. */
bool vrnic_mr_lent(const struct ibv_mr *mr);
void vrnic_tell_placing(void (*f)(const struct iovec *iov, int n));

struct next_ibverbs {
	__typeof__(ibv_open_device) *ibv_open_device;
	__typeof__(ibv_close_device) *ibv_close_device;
	__typeof__(ibv_alloc_pd) *ibv_alloc_pd;
	__typeof__(ibv_dealloc_pd) *ibv_dealloc_pd;
	__typeof__(ibv_reg_mr) *ibv_reg_mr;
	__typeof__(ibv_reg_mr_iova) *ibv_reg_mr_iova;
	__typeof__(ibv_reg_mr_iova2) *ibv_reg_mr_iova2;
	__typeof__(ibv_rereg_mr) *ibv_rereg_mr;
	__typeof__(ibv_dereg_mr) *ibv_dereg_mr;
	__typeof__(ibv_create_comp_channel) *ibv_create_comp_channel;
	__typeof__(ibv_destroy_comp_channel) *ibv_destroy_comp_channel;
	__typeof__(ibv_create_cq) *ibv_create_cq;
	__typeof__(ibv_resize_cq) *ibv_resize_cq;
	__typeof__(ibv_destroy_cq) *ibv_destroy_cq;
	__typeof__(ibv_get_cq_event) *ibv_get_cq_event;
	__typeof__(ibv_ack_cq_events) *ibv_ack_cq_events;
	__typeof__(ibv_create_srq) *ibv_create_srq;
	__typeof__(ibv_destroy_srq) *ibv_destroy_srq;
	__typeof__(ibv_create_qp) *ibv_create_qp;
	__typeof__(ibv_modify_qp) *ibv_modify_qp;
	__typeof__(ibv_query_qp) *ibv_query_qp;
	__typeof__(ibv_destroy_qp) *ibv_destroy_qp;
	__typeof__(ibv_create_ah) *ibv_create_ah;
	__typeof__(ibv_destroy_ah) *ibv_destroy_ah;
	__typeof__(ibv_get_async_event) *ibv_get_async_event;
	__typeof__(ibv_ack_async_event) *ibv_ack_async_event;
	__typeof__(ibv_get_device_name) *ibv_get_device_name;
	__typeof__(vrnic_mr_lent) *vrnic_mr_lent;
	__typeof__(vrnic_tell_placing) *vrnic_tell_placing;
};

struct next_rdmacm {
	__typeof__(rdma_create_event_channel) *rdma_create_event_channel;
	__typeof__(rdma_destroy_event_channel) *rdma_destroy_event_channel;
	__typeof__(rdma_create_id) *rdma_create_id;
	__typeof__(rdma_destroy_id) *rdma_destroy_id;
	__typeof__(rdma_create_ep) *rdma_create_ep;
	__typeof__(rdma_destroy_ep) *rdma_destroy_ep;
	__typeof__(rdma_create_qp) *rdma_create_qp;
	__typeof__(rdma_create_qp_ex) *rdma_create_qp_ex;
	__typeof__(rdma_get_request) *rdma_get_request;
	__typeof__(rdma_get_cm_event) *rdma_get_cm_event;
	__typeof__(rdma_ack_cm_event) *rdma_ack_cm_event;
	__typeof__(rdma_disconnect) *rdma_disconnect;
	__typeof__(rdma_migrate_id) *rdma_migrate_id;
	__typeof__(rdma_connect) *rdma_connect;
	__typeof__(rdma_accept) *rdma_accept;
};

const struct next_ibverbs *next(void);
const struct next_rdmacm *next_cm(void);

/* ---- context.c: what contexts have for programs ---- */

/* What was there before; the same for all contexts, which are of one library. */
struct context_next {
	struct ibv_context_ops ops;
	struct verbs_context v;
};

extern struct context_next context_next;

/* What is there in their place; ops.c has the functions, which are of the files above. */
extern const struct context_ours {
	struct ibv_context_ops ops;
	struct verbs_context v;
} context_ours;

/* Takes a context's place for programs, if that has not happened. */
void context_adopt(struct ibv_context *c);

/* ---- memory.c ---- */

/* at may have gone while ibv_dereg_mr returns: what is looked at is here. */
struct mr {
	struct object o;
	const struct ibv_context *context;
	const char *addr;
	uint64_t iova;
	uint32_t rkey;
	int access;
	bool lost; /* its memory has been freed, which was told */
};

/* How a request uses the memory of an SGE. */
enum use { USE_READ, USE_WRITE };

/*
 * With the lock held: tells what is wrong with an SGE of a request of a PD, and returns where its
 * octets are; NULL if that is not known.
 */
const char *memory_check(struct ibv_pd *pd, const struct ibv_sge *sge, enum use use,
			 const struct site *site, const struct object *qp);
/* With the lock held: whether octets of a request are in a region of its lkey that can be read. */
bool memory_readable(uint32_t lkey, const char *octets, size_t n);
/* With the lock held: whether an rkey is, or was, of a region of the program, on any device. */
bool memory_is_own(uint32_t rkey);
/* The domain that a PD stands for: itself, or a parent domain's. With the lock held. */
struct object *memory_domain(struct ibv_pd *pd);

/* heap.c: memory that is registered now, whose end is looked for. */
void memory_watch(const void *p, size_t n);

struct ibv_mw *check_alloc_mw(struct ibv_pd *pd, enum ibv_mw_type type);
int check_dealloc_mw(struct ibv_mw *mw);
struct ibv_pd *check_alloc_parent_domain(struct ibv_context *c,
					 struct ibv_parent_domain_init_attr *attr);

/* ---- queue.c: requests that are posted and have not been polled ---- */

#define POST_SGES 4

struct post {
	struct post *next;
	uint64_t wr_id;
	bool signaled;
	bool summed;
	int nsge;
	struct ibv_sge sge[POST_SGES];
	const char *octets[POST_SGES];
	uint64_t sum;
	bool counted; /* early_begin */
	uint32_t runs; /* of pages that are taken from the program */
	bool remote; /* it names memory of the peer: */
	uint32_t rkey;
	uint64_t raddr, roctets;
	struct site site;
};

struct queue {
	struct post *head, *last;
	uint32_t n;
	uint32_t signaled; /* of them */
};

struct cq {
	struct object o;
	pthread_mutex_t poll; /* completions are counted in the order in which they were polled */
	uint32_t room; /* that the program has asked for */
	uint32_t pending; /* completions that may come before the next one is polled */
};

struct srq {
	struct object o;
	struct queue rq;
	const struct ibv_context *context;
	uint32_t max_sge;
	struct cq *cq; /* where all its completions come, if that is one */
	uint32_t qps;
};

/* What a queue pair is asked about by. */
struct qp_name {
	struct ibv_qp *at;
	uint32_t number;
	char device[IBV_SYSFS_NAME_MAX];
};

/* What at points to may go at any time, by ibv_close_device too: what is looked at is here. */
struct qp {
	struct object o;
	struct qp_name name;
	struct ibv_pd *pd;
	struct ibv_context *context;
	pthread_mutex_t send, recv; /* requests are kept in the order in which they were posted */
	struct queue sq, rq;
	struct cq *send_cq, *recv_cq;
	struct srq *srq;
	struct ibv_qp_cap cap;
	enum ibv_qp_type type;
	bool sig_all;
	/* between wr_start and wr_complete: the request that is open, and how many were made */
	struct ibv_send_wr wr;
	struct site wr_site;
	bool wr_open;
	uint32_t wr_added;
	bool ended; /* disconnected or in error: what is posted comes back */
	bool sends_end; /* in IBV_QPS_SQE: what is posted to send does, and receives go on */
	uint32_t failed; /* a completion with an error was polled; posts since, and 1 */
	uint64_t asked; /* signaled requests */
	uint64_t polled; /* completions of requests that were polled */
};

/*
 * memory.c, with the lock held: tells why the peer of a queue pair has not got what it asked for,
 * if the key is one of the program's.
 */
void memory_refused(const struct qp *qp, const struct qp_counts *c);

/* With the lock held. queue_add returns NULL without memory. */
struct post *queue_add(struct queue *q, uint64_t wr_id, bool signaled);
void queue_drop(struct post *p);
struct post *queue_take(struct queue *q); /* the oldest; NULL: none */
struct post *queue_take_id(struct queue *q, uint64_t wr_id); /* the oldest with this; or NULL */
void queue_cut(struct queue *q, uint32_t n); /* the last n */
void queue_empty(struct queue *q);
/* Takes the sums of the last n anew. */
void queue_sum_last(struct queue *q, uint32_t n);
/* The octets of a request, as far as they are looked at. */
uint64_t queue_sum(const struct post *p);

/* ---- early.c: buffers are the device's until a request is over; all with the lock held ---- */

/* What a request puts there: nothing that is looked for, a message, or the answer to a Read. */
enum early { EARLY_NOT, EARLY_RECV, EARLY_READ };

void early_region(const struct ibv_mr *mr, int access); /* a region is registered */
void early_begin(struct post *p, enum early how); /* it is about to be posted */
void early_end(struct post *p);
void early_let_go(struct post *p); /* the program may know that it is over */
void early_qp_ended(struct qp *qp); /* what is posted comes back from now on */
void early_sends_ended(struct qp *qp); /* what is posted to send does */
/* The same of a QP, SRQ, CQ or context, by the program's pointer, and of what hangs on it. */
void early_ended(void *at);
void early_tell(void); /* of those who have read before */

/* ---- qp.c ---- */

struct ibv_cq_ex *check_create_cq_ex(struct ibv_context *c, struct ibv_cq_init_attr_ex *attr);
struct ibv_qp *check_create_qp_ex(struct ibv_context *c, struct ibv_qp_init_attr_ex *attr);
struct ibv_srq *check_create_srq_ex(struct ibv_context *c, struct ibv_srq_init_attr_ex *attr);
/* With the lock held: tells what a queue pair leaves behind that ends, by itself or the program. */
void qp_last_words(struct qp *qp);
/* Asks what was counted, and tells of messages that found no receive. Not with the lock held. */
void qp_ask(const struct qp_name *name, const struct site *site);

/* ---- post.c, poll.c ---- */

/* at is a queue pair or an SRQ: the daemon is no more, and the program knows. */
void post_failed(void *at, int err);
/* With qp->send held. post_take_back forgets the last n, which were refused. */
void post_take_back(struct qp *qp, uint32_t n);
/* With the lock held, too. Looks at the queue pair, and keeps a request: 0: there is no memory. */
void post_begin(struct qp *qp, const struct site *site);
uint32_t post_add_send(struct qp *qp, struct ibv_pd *pd, const struct ibv_send_wr *wr,
		       const struct site *site);
/* With the lock held: the receives of an SRQ are more than its one CQ has room for. */
void post_tell_srq(const struct srq *srq, const struct site *site);
void wr_follow(struct ibv_qp *qp); /* wr.c: a new one that may post by ibv_wr_* */

int check_post_send(struct ibv_qp *qp, struct ibv_send_wr *wr, struct ibv_send_wr **bad);
int check_post_recv(struct ibv_qp *qp, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad);
int check_post_srq_recv(struct ibv_srq *srq, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad);
int check_poll_cq(struct ibv_cq *cq, int n, struct ibv_wc *wc);
void poll_follow(struct ibv_cq_ex *cq); /* a new one that is polled by start_poll */

/* ---- rights.c: what peers may do; all with the lock held ---- */

void rights_given(const struct object *mr, int access); /* a region was registered */
void rights_made_qp(void);
void rights_read(const struct qp *qp); /* a Read is posted */
void rights_used(const struct qp_counts *c); /* a queue pair, which ends */
void rights_tell(void); /* at the end of the program */

/* ---- destroy.c: the order of ends ---- */

bool destroy_hangs(const struct object *o); /* others on it, with the lock held */

/*
 * With the lock held: tells of a call that has been refused since others hang on o, or that leaves
 * them hanging.
 */
void destroy_tell(const char *what, const char *call, const struct object *o,
		  const struct site *site);

/* ---- event.c ---- */

/*
 * Waits a moment for events of an object to be acknowledged, by other threads perhaps; if they are
 * not, the call that comes next waits for ever, and that is told.
 */
void event_wait(enum kind kind, void *at, const char *call, const struct site *site);

#endif
