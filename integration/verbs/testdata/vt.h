/*
 * What the test programs share: cases that run one after the other, checks that end the program with the place and the
 * values, and a connection both of whose ends are in this process.
 *
 * $VT_SERVER and $VT_CLIENT are the addresses of the two ends; they may be the same.
 */
#ifndef VT_H
#define VT_H

#include <errno.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <infiniband/verbs.h>
#include <rdma/rdma_cma.h>

struct vt_case {
	const char *name;
	void (*run)(void);
};

/* Runs the cases that argv names, or all, and says "ok NAME" after each. A case has half a minute. */
int vt_main(int argc, char **argv, const struct vt_case *cases);

/* Cases of main that fork may say in the child that nothing is to be printed at the end. */
void vt_fail(const char *file, int line, const char *format, ...) __attribute__((format(printf, 3, 4), noreturn));

#define FAIL(...) vt_fail(__FILE__, __LINE__, __VA_ARGS__)

/* cond holds. */
#define CHECK(cond)                                                                          \
	do {                                                                                 \
		errno = 0;                                                                   \
		if (!(cond))                                                                 \
			vt_fail(__FILE__, __LINE__, "%s: not so (%s)", #cond, strerror(errno)); \
	} while (0)

/* Two integers are equal. */
#define CHECK_EQ(got, want)                                                                              \
	do {                                                                                             \
		errno = 0;                                                                               \
		long long g_ = (long long)(got), w_ = (long long)(want);                                 \
		if (g_ != w_)                                                                            \
			vt_fail(__FILE__, __LINE__, "%s is %lld, want %s = %lld (%s)", #got, g_, #want, w_, \
				strerror(errno));                                                        \
	} while (0)

/* A call that returns -1, and errno. */
#define CHECK_ERRNO(call, want)                                                                                    \
	do {                                                                                                       \
		errno = 0;                                                                                         \
		long long r_ = (long long)(call);                                                                  \
		int e_ = errno;                                                                                    \
		if (r_ != -1 || e_ != (want))                                                                      \
			vt_fail(__FILE__, __LINE__, "%s: %lld and errno %d (%s), want -1 and %s", #call, r_, e_,        \
				strerror(e_), #want);                                                              \
	} while (0)

/* A call that returns NULL, and errno. */
#define CHECK_NULL(call, want)                                                                                \
	do {                                                                                                  \
		errno = 0;                                                                                    \
		void *r_ = (void *)(call);                                                                    \
		int e_ = errno;                                                                               \
		if (r_ || e_ != (want))                                                                       \
			vt_fail(__FILE__, __LINE__, "%s: %p and errno %d (%s), want NULL and %s", #call, r_, e_,   \
				strerror(e_), #want);                                                         \
	} while (0)

/* How long anything may take that must happen, in milliseconds: half a minute, or $VT_PATIENCE. */
int vt_patience(void);
#define VT_PATIENCE vt_patience()

uint64_t vt_now_ms(void);
bool vt_readable(int fd, int ms);

struct vt_opts {
	uint32_t send_wr, recv_wr, send_sge, recv_sge, inline_data; /* 0: 64, 64, 4, 4, 64 */
	int cqe;			 /* 0: 256 */
	size_t len;			 /* of each side's memory; 0: 64 KiB */
	int access;			 /* of its region; 0: all that is not atomic or a window's */
	int ird, ord;			 /* 0: 16 */
	int retries;			 /* of RoCE, after a timeout and after RNR */
	int ack_timeout;		 /* of RoCE, RDMA_OPTION_ID_ACK_TIMEOUT; 0: rdma_cm's */
	bool channel;			 /* the CQs have a completion channel */
	bool one_cq;			 /* for sends and receives */
	bool crossed;			 /* b's sends complete on a's rcq; b's QP is destroyed first */
	bool srq;			 /* b's receives come from an SRQ */
	bool unsignaled;		 /* sq_sig_all 0; else all sends are signaled */
	bool ex;			 /* QPs and CQs by the _ex calls; implies unsignaled */
	uint64_t send_ops;		 /* with ex: IBV_QP_EX_WITH_...; 0: none */
	uint64_t wc_flags;		 /* with ex */
};

struct vt_side {
	struct rdma_event_channel *ch;
	struct rdma_cm_id *id;
	struct ibv_pd *pd;
	struct ibv_comp_channel *cc;
	struct ibv_cq *scq, *rcq;
	struct ibv_cq_ex *scqx, *rcqx;
	struct ibv_srq *srq;
	struct ibv_qp *qp;
	struct ibv_qp_ex *qpx;
	char *buf;
	size_t len;
	struct ibv_mr *mr;
};

/* a is the side that connects, b the one that accepts. */
struct vt_pair {
	struct vt_opts o;
	struct vt_side a, b;
	struct rdma_event_channel *lch;
	struct rdma_cm_id *listen;
};

extern struct sockaddr_storage vt_server, vt_client; /* port 0 */
struct sockaddr *vt_addr(const struct sockaddr_storage *ss, uint16_t port, struct sockaddr_storage *out);

/* An event of the type that is wanted, to be acknowledged; the second form has no patience for success only. */
struct rdma_cm_event *vt_event(struct rdma_event_channel *ch, enum rdma_cm_event_type want);
struct rdma_cm_event *vt_any_event(struct rdma_event_channel *ch);
/* Takes and acknowledges an event of the type that is wanted, with this status. */
void vt_expect(struct rdma_event_channel *ch, enum rdma_cm_event_type want, int status);
void vt_no_event(struct rdma_event_channel *ch);

void vt_listen(struct vt_pair *p);			  /* lch and listen, at $VT_SERVER and any port */
void vt_resolve(struct vt_pair *p, struct vt_side *s, uint16_t port); /* ch and id, up to the route */
void vt_objects(struct vt_side *s, const struct vt_opts *o, bool srq); /* all but id and qp, on id->verbs */
void vt_qp(struct vt_side *s, const struct vt_opts *o);
/* Connects a with b from nothing. */
void vt_open(struct vt_pair *p, const struct vt_opts *o);
/* a disconnects; both ends see that once. */
void vt_disconnect(struct vt_pair *p);
/* The ends have disconnected or never were connected: destroys what there is. */
void vt_free(struct vt_pair *p);
void vt_free_side(struct vt_side *s);
/* vt_disconnect and vt_free */
void vt_close(struct vt_pair *p);

/* Memory */
void vt_fill(void *p, size_t n, uint32_t seed);
void vt_verify(const void *p, size_t n, uint32_t seed);
struct ibv_sge vt_sge(const struct vt_side *s, size_t off, uint32_t n);

/* Work: one SGE within the side's region. */
int vt_try_send(struct vt_side *s, uint64_t id, enum ibv_wr_opcode op, size_t off, uint32_t n, int flags, uint64_t raddr,
		uint32_t rkey);
void vt_send(struct vt_side *s, uint64_t id, size_t off, uint32_t n);
void vt_recv(struct vt_side *s, uint64_t id, size_t off, uint32_t n);
void vt_rdma(struct vt_side *s, uint64_t id, enum ibv_wr_opcode op, size_t off, uint32_t n, const struct vt_side *peer,
	     size_t roff);

/* The next completion, which must come. */
struct ibv_wc vt_poll(struct ibv_cq *cq);
/* It is this request's, with this status; of a successful one the opcode too. */
struct ibv_wc vt_wc(struct ibv_cq *cq, uint64_t id, enum ibv_wc_status status, int opcode);
void vt_no_wc(struct ibv_cq *cq);
/*
 * An asynchronous event of the type that is wanted for a QP. Those for others are passed over: the other end is on the same
 * context.
 */
void vt_async(struct ibv_qp *qp, enum ibv_event_type want);
/* Takes and acknowledges what there is. */
void vt_drain_async(struct ibv_context *ctx);
int vt_state(struct ibv_qp *qp);
struct ibv_context *vt_open_device(void); /* the first */

/*
 * Of two programs each has an end: b's is the server, and says its port to a. Both are done when
 * they are connected. *port is 0 before, and stays.
 */
void vt_meet(struct vt_pair *p, struct vt_side *s, bool server, const struct vt_opts *o,
	     volatile uint64_t *port);
/* The file that $RECORD names, which they share. Takes $VT_SERVER and $VT_CLIENT, too. */
void *vt_record(size_t n);

#endif
