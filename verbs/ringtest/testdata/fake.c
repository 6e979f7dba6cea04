#include <errno.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "fake.h"

#define HEADER_LEN 320
#define MAX_QUEUES 80
#define MAX_MRS 16

struct vrnic_session session;
struct vrnic_context context;
struct vrnic_pd pd = { .is = &pd };
atomic_int corrupt, doorbells;
uint32_t revoked;
bool peer_gone, unmapped, refuse_slabs;
int rpc_error;
unsigned int complaints;

static struct ibv_device device = { .name = "fake0" };
static char page[4096] __attribute__((aligned(64)));
static struct fake_q *queues[MAX_QUEUES];
static uint32_t next_num = 1;

static struct {
	uint32_t lkey;
	char *addr;
	size_t len;
	uint64_t iova;
	int access;
} mrs[MAX_MRS];
static uint32_t next_key = 0x100;
static pthread_mutex_t mr_lock = PTHREAD_MUTEX_INITIALIZER;

static void drop(int i)
{
	if (queues[i]) {
		free(queues[i]->tx_ends);
		free(queues[i]);
		queues[i] = NULL;
	}
}

void fake_start(void)
{
	memset(&session, 0, sizeof(session));
	memset(&pd, 0, sizeof(pd));
	memset(&context, 0, sizeof(context));
	memset(mrs, 0, sizeof(mrs));
	memset(page, 0, sizeof(page));
	for (int i = 0; i < MAX_QUEUES; i++) /* of sessions that died: nobody destroyed them */
		drop(i);
	session.bells = vrnic_word(page, 64);
	session.sleeping = vrnic_word(page, 0);
	session.nbells = 1024; /* as new_queue takes them */
	session.poll_yield = 16;
	context.s = &session;
	context.v.context.device = &device;
	pd.pd.context = &context.v.context;
	pd.pd.handle = 7;
	complaints = 0;
	corrupt = 0;
	doorbells = 0;
	peer_gone = unmapped = refuse_slabs = false;
	rpc_error = 0;
	revoked = 0;
}

/* ---- what core/ has, and async.c and region.c of ibverbs/ ---- */

void vrnic_die(struct vrnic_session *s, const char *why, ...)
{
	(void)why;
	atomic_store(&s->dead, true);
}

void vrnic_complain(enum vrnic_cause cause, const char *fmt, ...)
{
	(void)fmt;
	complaints |= cause;
}

void vrnic_debug(const char *what, ...)
{
	(void)what;
}

bool vrnic_say_who(struct vrnic_session *s)
{
	CHECK(s->direct);
	return s->direct;
}

void vrnic_corrupt(struct vrnic_session *s, const char *what)
{
	(void)what;
	atomic_fetch_add(&corrupt, 1);
	atomic_store(&s->dead, true);
}

bool vrnic_peer_gone(struct vrnic_session *s)
{
	if (peer_gone)
		atomic_store(&s->dead, true);
	return vrnic_dead(s);
}

bool vrnic_mapped(const struct vrnic_map *m)
{
	return m->mem && !unmapped;
}

void vrnic_ring_doorbell(struct vrnic_session *s)
{
	(void)s;
	atomic_fetch_add(&doorbells, 1);
}

void vrnic_obj_add(struct vrnic_context *c, struct vrnic_obj *o, uint32_t kind, uint32_t handle,
		   void *ibv)
{
	(void)c;
	o->kind = kind;
	o->entry.key = handle;
	o->ibv = ibv;
}

uint32_t vrnic_obj_drop(struct vrnic_context *c, struct vrnic_obj *o, uint32_t tokens)
{
	(void)c, (void)o, (void)tokens;
	return 0;
}

void vrnic_wait_acks(pthread_mutex_t *mutex, pthread_cond_t *cond, const uint32_t *completed,
		     uint32_t given)
{
	(void)mutex, (void)cond, (void)completed, (void)given;
}

uint32_t fake_mr(void *addr, size_t len, uint64_t iova, int access)
{
	int i;

	pthread_mutex_lock(&mr_lock);
	for (i = 0; mrs[i].lkey; i++)
		CHECK(i + 1 < MAX_MRS);
	mrs[i].lkey = next_key++;
	mrs[i].addr = addr;
	mrs[i].len = len;
	mrs[i].iova = iova;
	mrs[i].access = access;
	pthread_mutex_unlock(&mr_lock);
	return mrs[i].lkey;
}

void fake_dereg(uint32_t lkey)
{
	int i;

	for (i = 0; i < MAX_MRS; i++)
		if (mrs[i].lkey == lkey)
			mrs[i].lkey = 0;
}

void (*fake_looked)(void);

bool vrnic_sges_local(struct vrnic_region *r, struct ibv_pd *p, const struct ibv_sge *sge, int n,
		      bool write, struct iovec *iov)
{
	int i, k;

	(void)r;
	CHECK(p == &pd.pd);
	if (fake_looked)
		fake_looked();
	for (i = 0; i < n; i++) {
		for (k = 0; k < MAX_MRS; k++)
			if (mrs[k].lkey && mrs[k].lkey == sge[i].lkey)
				break;
		if (k == MAX_MRS || sge[i].addr < mrs[k].iova || sge[i].addr - mrs[k].iova > mrs[k].len ||
		    sge[i].length > mrs[k].len - (sge[i].addr - mrs[k].iova) ||
		    (write && !(mrs[k].access & IBV_ACCESS_LOCAL_WRITE)))
			return false;
		iov[i].iov_base = mrs[k].addr + (sge[i].addr - mrs[k].iova);
		iov[i].iov_len = sge[i].length;
	}
	return true;
}

bool vrnic_sges_readable(struct vrnic_region *r, struct ibv_pd *p, const struct ibv_sge *sge, int n,
			 struct iovec *iov)
{
	return vrnic_sges_local(r, p, sge, n, false, iov);
}

void vrnic_mr_revoked(struct vrnic_session *s, uint32_t key)
{
	(void)s;
	revoked = key;
}

/* ---- the daemon's making of queues ---- */

static uint32_t pow2(uint32_t n)
{
	uint32_t p = 1;

	while (p < n)
		p *= 2;
	return p;
}

static uint32_t align64(uint32_t n)
{
	return (n + 63) & ~63u;
}

static void put_word(char *mem, uint32_t off, uint32_t v)
{
	atomic_store(vrnic_word(mem, off), v);
}

static struct fake_q *new_queue(struct vrnic_layout *l, uint32_t magic)
{
	struct fake_q *q = calloc(1, sizeof(*q));
	int i;

	l->sq_off = HEADER_LEN;
	l->rq_off = align64(l->sq_off + l->sq_size * l->sq_stride);
	l->tx_slab_off = align64(l->rq_off + l->rq_size * l->rq_stride);
	l->rx_slab_off = l->tx_slab_off + l->tx_slab_size;
	q->len = l->rx_slab_off + l->rx_slab_size;
	q->mem = mmap(NULL, q->len, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	CHECK(q->mem != MAP_FAILED);
	q->l = *l;
	q->num = next_num++;
	q->bell = q->num % 1024;
	q->tx_ends = calloc(l->sq_size + 1, sizeof(*q->tx_ends));
	put_word(q->mem, VRNIC_QP_MAGIC, magic);
	put_word(q->mem, VRNIC_QP_NUM, q->num);
	put_word(q->mem, VRNIC_QP_SQ_SIZE, l->sq_size);
	put_word(q->mem, VRNIC_QP_SQ_STRIDE, l->sq_stride);
	put_word(q->mem, VRNIC_QP_RQ_SIZE, l->rq_size);
	put_word(q->mem, VRNIC_QP_RQ_STRIDE, l->rq_stride);
	put_word(q->mem, VRNIC_QP_SQ_OFF, l->sq_off);
	put_word(q->mem, VRNIC_QP_RQ_OFF, l->rq_off);
	put_word(q->mem, VRNIC_QP_TX_SLAB_OFF, l->tx_slab_off);
	put_word(q->mem, VRNIC_QP_TX_SLAB_SIZE, l->tx_slab_size);
	put_word(q->mem, VRNIC_QP_RX_SLAB_OFF, l->rx_slab_off);
	put_word(q->mem, VRNIC_QP_RX_SLAB_SIZE, l->rx_slab_size);
	put_word(q->mem, VRNIC_QP_MAX_INLINE, l->max_inline);
	if (magic == VRNIC_MAGIC_QP)
		put_word(q->mem, VRNIC_QP_STATE, VRNIC_STATE_INIT);
	for (i = 0; queues[i]; i++)
		CHECK(i + 1 < MAX_QUEUES);
	queues[i] = q;
	return q;
}

/* The fd that a reply carries is the queue's number here. */
static int create_qp(const struct vrnic_create_qp_request *req, struct vrnic_create_qp_reply *rep,
		     int *fd)
{
	struct vrnic_layout l = { 0 };
	uint32_t room = VRNIC_SGE_LEN * req->caps.max_send_sge;
	struct fake_q *q;

	if (req->caps.max_send_sge > VRNIC_MAX_SGE || req->caps.max_inline > VRNIC_MAX_INLINE)
		return EINVAL;
	if (!context.roce && req->type) /* daemons of minor version 0 have no types, and want zero */
		return EINVAL;
	if (refuse_slabs && req->caps.tx_slab)
		return ENOMEM;
	if (room < req->caps.max_inline)
		room = req->caps.max_inline;
	if (room < VRNIC_MIN_INLINE)
		room = VRNIC_MIN_INLINE;
	l.sq_size = pow2(req->caps.max_send_wr);
	l.sq_stride = align64(VRNIC_SQ_SGE + room);
	l.max_inline = l.sq_stride - VRNIC_SQ_SGE;
	if (l.max_inline > VRNIC_MAX_INLINE)
		l.max_inline = VRNIC_MAX_INLINE;
	if (!req->srq) {
		l.rq_size = pow2(req->caps.max_recv_wr);
		l.rq_stride = VRNIC_RQ_SGE + VRNIC_SGE_LEN * req->caps.max_recv_sge;
		l.rx_slab_size = req->caps.rx_slab;
	}
	l.tx_slab_size = req->caps.tx_slab;
	q = new_queue(&l, VRNIC_MAGIC_QP);
	rep->qp = q->num;
	rep->qpn = q->num;
	rep->bell = q->bell;
	*fd = q->num;
	return 0;
}

static int create_srq(const struct vrnic_create_srq_request *req,
		      struct vrnic_create_srq_reply *rep, int *fd)
{
	struct vrnic_layout l = { 0 };
	struct fake_q *q;

	l.rq_size = pow2(req->max_wr);
	l.rq_stride = VRNIC_RQ_SGE + VRNIC_SGE_LEN * req->max_sge;
	q = new_queue(&l, VRNIC_MAGIC_SRQ);
	rep->srq = q->num;
	rep->bell = q->bell;
	*fd = q->num;
	return 0;
}

static void destroy(uint32_t num)
{
	int i;

	for (i = 0; i < MAX_QUEUES; i++)
		if (queues[i] && queues[i]->num == num)
			drop(i);
}

/* The memory that two QPs have in common, and its descriptor; the second is QP pair_second. */
static struct vrnic_map pair;
static int pair_fd = -1;
static uint32_t pair_second;
static bool pair_has[2]; /* whose programs have it: they get it once */
void (*fake_asked)(void);

char *fake_pair(size_t len, uint32_t second)
{
	pair_fd = memfd_create("pair", MFD_CLOEXEC);
	CHECK(pair_fd >= 0 && !ftruncate(pair_fd, len));
	pair.len = len;
	pair.mem = mmap(NULL, len, PROT_READ | PROT_WRITE, MAP_SHARED, pair_fd, 0);
	CHECK(pair.mem != MAP_FAILED);
	pair_second = second;
	pair_has[0] = pair_has[1] = false;
	return pair.mem;
}

void fake_pair_left(int side)
{
	pair_has[side] = false;
}

void fake_pair_free(void)
{
	vrnic_unmap(&pair);
	close(pair_fd);
	pair_fd = -1;
}

bool fake_covered = true;

/* The bitmaps of the CQs of both, which are made when they are asked for. */
static int bits_fds[2];

static int get_bits(uint32_t qp, bool peer, int *fd)
{
	int i = (qp == pair_second) != peer;

	if (pair_fd < 0)
		return EAGAIN;
	if (!bits_fds[i]) {
		bits_fds[i] = memfd_create("bits", MFD_CLOEXEC);
		CHECK(bits_fds[i] >= 0 && !ftruncate(bits_fds[i], VRNIC_BITS_HEADER_LEN +
							      VRNIC_MAX_BITS / 8));
	}
	*fd = -10 - i;
	return 0;
}

/* What a peer has lent, and the keys of that: maps of the test's, whose memfds others map. */
static struct vrnic_map peers[2];
static int peers_fd[2] = { -1, -1 };

void fake_peer(size_t keys_len, size_t len, char **keys, char **mem)
{
	size_t lens[] = { keys_len, len };
	int i;

	for (i = 0; i < 2; i++) {
		peers_fd[i] = memfd_create("peer", MFD_CLOEXEC);
		CHECK(peers_fd[i] >= 0 && !ftruncate(peers_fd[i], lens[i]));
		peers[i].len = lens[i];
		peers[i].mem = mmap(NULL, lens[i], PROT_READ | PROT_WRITE, MAP_SHARED, peers_fd[i], 0);
		CHECK(peers[i].mem != MAP_FAILED);
	}
	*keys = peers[0].mem;
	*mem = peers[1].mem;
}

void fake_peer_free(void)
{
	int i;

	for (i = 0; i < 2; i++) {
		vrnic_unmap(&peers[i]);
		close(peers_fd[i]);
		peers_fd[i] = -1;
	}
}

/* A descriptor below 0 stands for one of them. */
static int get_peer(int i, int *fd)
{
	if (peers_fd[i] < 0)
		return EAGAIN;
	*fd = -2 - i;
	return 0;
}

int vrnic_map_peers(int fd, size_t min, bool write, struct vrnic_map *m)
{
	int i = -2 - fd;

	m->len = peers[i].len;
	m->mem = mmap(NULL, m->len, write ? PROT_READ | PROT_WRITE : PROT_READ, MAP_SHARED, peers_fd[i], 0);
	CHECK(m->mem != MAP_FAILED && m->len >= min);
	return 0;
}

static int get_pair(uint32_t qp, struct vrnic_direct_reply *rep, int *fd)
{
	if (pair_fd < 0 || pair_has[qp == pair_second])
		return EAGAIN;
	if (fake_asked)
		fake_asked();
	rep->second = qp == pair_second;
	pair_has[rep->second] = true;
	rep->covered = fake_covered;
	*fd = -1;
	return 0;
}

void vrnic_close(int fd)
{
	if (fd >= 0)
		close(fd);
}

int vrnic_rpc(struct vrnic_session *s, uint16_t op, const void *req, size_t req_len, void *rep,
	      size_t rep_len,
	      int send_fd, int *fds, int nfds)
{
	const struct vrnic_modify_qp_request *m = req;
	int err = rpc_error;

	(void)req_len, (void)send_fd, (void)nfds;
	if (vrnic_dead(s))
		return EIO;
	rpc_error = 0;
	if (err)
		return err;
	if (rep)
		memset(rep, 0, rep_len);
	switch (op) {
	case VRNIC_OP_CREATE_QP:
		return create_qp(req, rep, fds);
	case VRNIC_OP_CREATE_SRQ:
		return create_srq(req, rep, fds);
	case VRNIC_OP_DIRECT:
		return get_pair(m->qp, rep, fds); /* which is where a handle stands */
	case VRNIC_OP_DIRECT_KEYS:
		return get_peer(0, fds);
	case VRNIC_OP_DIRECT_MEM:
		return get_peer(1, fds);
	case VRNIC_OP_DIRECT_BITS:
	case VRNIC_OP_DIRECT_PEER_BITS:
		return get_bits(m->qp, op == VRNIC_OP_DIRECT_PEER_BITS, fds);
	case VRNIC_OP_DIRECT_WAKE: /* nobody sleeps here */
		return EINVAL;
	case VRNIC_OP_MODIFY_QP:
		if (context.roce) {
			put_word(fake_of(m->qp)->mem, VRNIC_QP_STATE, m->state);
			return 0;
		}
		if (m->state == IBV_QPS_RTR)
			return EINVAL;
		put_word(fake_of(m->qp)->mem, VRNIC_QP_STATE, m->state == IBV_QPS_RESET ? IBV_QPS_INIT
			 : m->state);
		return 0;
	}
	return 0;
}

int vrnic_rpc_handle(struct vrnic_session *s, uint16_t op, uint32_t handle, void *rep,
		     size_t rep_len)
{
	if (vrnic_dead(s))
		return EIO;
	if (rep)
		memset(rep, 0, rep_len);
	if (op == VRNIC_OP_DESTROY_QP || op == VRNIC_OP_DESTROY_SRQ)
		destroy(handle);
	return 0;
}

int vrnic_map_fd(struct vrnic_session *s, int fd, size_t min, struct vrnic_map *m)
{
	struct fake_q *q;

	(void)s;
	if (fd < 0) {
		m->len = fd == -1 ? pair.len : VRNIC_BITS_HEADER_LEN + VRNIC_MAX_BITS / 8;
		m->mem = mmap(NULL, m->len, PROT_READ | PROT_WRITE, MAP_SHARED,
			      fd == -1 ? pair_fd : bits_fds[-10 - fd], 0);
		CHECK(m->mem != MAP_FAILED && m->len >= min);
		return 0;
	}
	q = fake_of(fd);
	CHECK(q->len >= min);
	m->mem = q->mem;
	m->len = q->len;
	return 0;
}

void vrnic_unmap(struct vrnic_map *m)
{
	munmap(m->mem, m->len);
	m->mem = NULL;
}

struct vrnic_cq *fake_cq(uint32_t size)
{
	struct vrnic_cq *cq = calloc(1, sizeof(*cq));
	char *mem = aligned_alloc(64, 256 + (size_t)size * VRNIC_CQE_LEN);

	memset(mem, 0, 256 + (size_t)size * VRNIC_CQE_LEN);
	cq->cq.context = &context.v.context;
	cq->s = &session;
	cq->head.mem = mem;
	cq->prod = vrnic_word(mem, VRNIC_CQ_PROD);
	cq->cons_word = vrnic_word(mem, VRNIC_CQ_CONS);
	cq->arm = vrnic_word(mem, VRNIC_CQ_ARM);
	cq->cqes = mem + 256;
	cq->mask = size - 1;
	pthread_mutex_init(&cq->lock, NULL);
	pthread_mutex_init(&cq->arm_lock, NULL);
	return cq;
}

void fake_cq_free(struct vrnic_cq *cq)
{
	CHECK_EQ(cq->users, 0);
	free(cq->head.mem);
	vrnic_table_free(&cq->qps);
	vrnic_board_free(cq->many);
	free(cq);
}

struct fake_q *fake_of(uint32_t num)
{
	int i;

	for (i = 0; i < MAX_QUEUES; i++)
		if (queues[i] && queues[i]->num == num)
			return queues[i];
	CHECK(!"a queue with this number");
	return NULL;
}

void fake_state(struct fake_q *q, uint32_t state)
{
	put_word(q->mem, VRNIC_QP_STATE, state);
}

void fake_indices(struct vrnic_qp *qp, uint32_t n)
{
	struct fake_q *q = fake_of(qp->qp.qp_num);

	qp->sq.prod = qp->sq.polled = qp->sq.done = qp->sq.slab_prod = qp->rq.prod = qp->rx_slab_cons = n;
	q->sq_head = q->sq_done = q->rq_head = q->tx_taken = q->tx_cons = q->rx_prod = n;
	put_word(q->mem, VRNIC_QP_SQ_PROD, n);
	put_word(q->mem, VRNIC_QP_SQ_DONE, n);
	put_word(q->mem, VRNIC_QP_RQ_PROD, n);
	put_word(q->mem, VRNIC_QP_RQ_HEAD, n);
	put_word(q->mem, VRNIC_QP_TX_SLAB_PROD, n);
	put_word(q->mem, VRNIC_QP_TX_SLAB_CONS, n);
	put_word(q->mem, VRNIC_QP_RX_SLAB_PROD, n);
	put_word(q->mem, VRNIC_QP_RX_SLAB_CONS, n);
}

void fake_cq_indices(struct vrnic_cq *cq, uint32_t n)
{
	cq->cons = n;
	atomic_store(cq->prod, n);
	atomic_store(cq->cons_word, n);
}

/* ---- the daemon's ends of the rings ---- */

static uint32_t get_word(const struct fake_q *q, uint32_t off)
{
	return atomic_load(vrnic_word(q->mem, off));
}

static void take_slab(struct fake_q *q, const struct fake_wqe *w, uint32_t off)
{
	uint32_t size = q->l.tx_slab_size;
	uint32_t put = get_word(q, VRNIC_QP_TX_SLAB_PROD) - q->tx_cons, used = q->tx_taken - q->tx_cons;
	uint32_t n = ((off - q->tx_taken) & (size - 1)) + w->w.length;

	CHECK(off <= size && w->w.length <= size - off);
	CHECK(put <= size && used <= put && n <= put - used);
	q->tx_taken += n;
}

bool fake_take_send(struct fake_q *q, struct fake_wqe *w)
{
	uint32_t prod = get_word(q, VRNIC_QP_SQ_PROD), off, i, slot = q->sq_head & (q->l.sq_size - 1);
	const char *p = q->mem + q->l.sq_off + (size_t)slot * q->l.sq_stride;
	uint64_t sum = 0;

	if (prod == q->sq_head)
		return false;
	CHECK(prod - q->sq_done <= q->l.sq_size);
	memcpy(&w->w, p, sizeof(w->w));
	p += sizeof(w->w);
	CHECK(!(w->w.flags & ~31));
	switch (w->w.flags & (VRNIC_SQ_INLINE | VRNIC_SQ_SLAB)) {
	case VRNIC_SQ_INLINE:
		CHECK(!w->w.num_sge && w->w.length <= q->l.max_inline);
		memcpy(w->data, p, w->w.length);
		break;
	case VRNIC_SQ_SLAB:
		CHECK(!w->w.num_sge);
		memcpy(&off, p, sizeof(off));
		take_slab(q, w, off);
		memcpy(w->data, q->mem + q->l.tx_slab_off + off, w->w.length);
		break;
	case 0:
		CHECK(w->w.num_sge <= (q->l.sq_stride - VRNIC_SQ_SGE) / VRNIC_SGE_LEN);
		memcpy(w->sge, p, w->w.num_sge * sizeof(w->sge[0]));
		for (i = 0; i < w->w.num_sge; i++)
			sum += w->sge[i].length;
		CHECK_EQ(w->w.length, sum);
		break;
	default:
		CHECK(!"inline and in the slab");
	}
	q->tx_ends[slot] = q->tx_taken;
	q->sq_head++;
	return true;
}

uint32_t fake_retire(struct fake_q *q, uint32_t n)
{
	CHECK(q->sq_head - q->sq_done >= n);
	q->sq_done += n;
	if (n) {
		q->tx_cons = q->tx_ends[(q->sq_done - 1) & (q->l.sq_size - 1)];
		put_word(q->mem, VRNIC_QP_TX_SLAB_CONS, q->tx_cons);
	}
	put_word(q->mem, VRNIC_QP_SQ_DONE, q->sq_done);
	return q->sq_done;
}

void fake_push(struct vrnic_cq *cq, const struct vrnic_cqe *e)
{
	uint32_t prod = atomic_load(cq->prod);

	CHECK(prod - atomic_load(cq->cons_word) <= cq->mask);
	memcpy(cq->cqes + (size_t)(prod & cq->mask) * VRNIC_CQE_LEN, e, sizeof(*e));
	atomic_store(cq->prod, prod + 1);
}

void fake_sent(struct fake_q *q, struct vrnic_cq *cq, const struct fake_wqe *w, uint32_t status,
	       uint32_t n)
{
	struct vrnic_cqe e = {
		.wr_id = w->w.wr_id,
		.status = status,
		.opcode = vrnic_wc_opcode(w->w.op),
		.qpn = q->num,
		.sq_done = fake_retire(q, n),
		.slab_off = VRNIC_NO_SLAB,
		.timestamp = 12345,
	};

	fake_push(cq, &e);
}

bool fake_take_recv(struct fake_q *q, struct fake_recv *r)
{
	uint32_t prod = get_word(q, VRNIC_QP_RQ_PROD);
	const char *p = q->mem + q->l.rq_off + (size_t)(q->rq_head & (q->l.rq_size - 1)) * q->l.rq_stride;

	if (prod == q->rq_head)
		return false;
	CHECK(prod - q->rq_head <= q->l.rq_size);
	memcpy(&r->w, p, sizeof(r->w));
	CHECK(r->w.num_sge <= (q->l.rq_stride - VRNIC_RQ_SGE) / VRNIC_SGE_LEN);
	memcpy(r->sge, p + sizeof(r->w), r->w.num_sge * sizeof(r->sge[0]));
	q->rq_head++;
	put_word(q->mem, VRNIC_QP_RQ_HEAD, q->rq_head);
	return true;
}

void fake_received(struct fake_q *q, struct vrnic_cq *cq, const struct fake_recv *r, uint32_t qpn,
		   const void *data,
		   uint32_t len, bool slab)
{
	struct vrnic_cqe e = {
		.wr_id = r->w.wr_id,
		.opcode = IBV_WC_RECV,
		.byte_len = len,
		.qpn = qpn,
		.cookie = r->w.cookie,
		.slab_off = VRNIC_NO_SLAB,
	};
	uint32_t size = q->l.rx_slab_size, begin = align64(q->rx_prod);

	if (slab && size && len) {
		CHECK(q->rx_prod - get_word(q, VRNIC_QP_RX_SLAB_CONS) <= size);
		if ((begin & (size - 1)) + len > size)
			begin = (begin + size - 1) & ~(size - 1);
		slab = begin + len - get_word(q, VRNIC_QP_RX_SLAB_CONS) <= size;
	}
	if (slab && size && len) {
		e.slab_off = begin & (size - 1);
		e.slab_len = len;
		memcpy(q->mem + q->l.rx_slab_off + e.slab_off, data, len);
		q->rx_prod = begin + len;
		put_word(q->mem, VRNIC_QP_RX_SLAB_PROD, q->rx_prod);
	} else if (len) {
		CHECK(r->w.num_sge >= 1 && r->sge[0].length >= len);
		memcpy((void *)(uintptr_t)r->sge[0].addr, data, len);
	}
	fake_push(cq, &e);
}

void fake_told(struct fake_q *q, struct vrnic_cq *cq, const struct fake_recv *r, uint32_t imm)
{
	struct vrnic_cqe e = {
		.wr_id = r->w.wr_id,
		.opcode = IBV_WC_RECV_RDMA_WITH_IMM,
		.wc_flags = IBV_WC_WITH_IMM,
		.imm = imm,
		.qpn = q->num,
		.cookie = r->w.cookie,
		.slab_off = VRNIC_NO_SLAB,
	};

	fake_push(cq, &e);
}

bool fake_rang(const struct fake_q *q)
{
	return atomic_fetch_and(&session.bells[q->bell >> 5],
				~(1u << (q->bell & 31))) >> (q->bell & 31) & 1;
}
