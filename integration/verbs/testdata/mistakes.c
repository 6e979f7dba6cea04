/*
 * Mistakes that vrnic exec --check finds, one a function, and their right twins. The lines that are to be told of end in HERE
 * and the fact.
 */
#include "vt.h"

#include <arpa/inet.h>
#include <endian.h>
#include <pthread.h>
#include <sys/mman.h>
#include <sys/wait.h>

static struct vt_pair p;

/* A message from a to b, received and completed. */
static void message(void)
{
	vt_recv(&p.b, 2, 0, 64);
	vt_send(&p.a, 1, 0, 64);
	vt_wc(p.a.scq, 1, IBV_WC_SUCCESS, IBV_WC_SEND);
	vt_wc(p.b.rcq, 2, IBV_WC_SUCCESS, IBV_WC_RECV);
}

static void open_pair(struct vt_opts o)
{
	vt_open(&p, &o);
}

static int post(struct vt_side *s, uint64_t addr, uint32_t n, uint32_t lkey)
{
	struct ibv_sge sge = { addr, n, lkey };
	struct ibv_send_wr wr = { .wr_id = 1, .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND,
				  .send_flags = IBV_SEND_SIGNALED }, *bad;

	return ibv_post_send(s->qp, &wr, &bad);
}

static void leak(bool right)
{
	struct ibv_pd *pd;

	open_pair((struct vt_opts){ 0 });
	pd = ibv_alloc_pd(p.a.id->verbs); /* HERE leak */
	CHECK(pd);
	message();
	if (right)
		CHECK_EQ(ibv_dealloc_pd(pd), 0);
	vt_close(&p);
}

static void order(bool right)
{
	open_pair((struct vt_opts){ 0 });
	message();
	if (!right)
		CHECK_EQ(ibv_dealloc_pd(p.a.pd), EBUSY); /* HERE busy */
	vt_close(&p);
}

static void order_of_ids(bool right)
{
	struct ibv_qp *qp;

	open_pair((struct vt_opts){ 0 });
	message();
	vt_disconnect(&p);
	qp = p.a.qp;
	if (right)
		rdma_destroy_qp(p.a.id);
	CHECK_EQ(rdma_destroy_id(p.a.id), 0); /* HERE closed */
	p.a.id = NULL;
	p.a.qp = NULL;
	if (!right)
		CHECK_EQ(ibv_destroy_qp(qp), 0);
	vt_free(&p);
}

static void dead_key(bool right)
{
	struct ibv_mr *mr;
	uint32_t lkey;

	open_pair((struct vt_opts){ 0 });
	message();
	CHECK(mr = ibv_reg_mr(p.a.pd, p.a.buf, 4096, IBV_ACCESS_LOCAL_WRITE));
	lkey = mr->lkey;
	vt_recv(&p.b, 2, 0, 64);
	if (!right)
		CHECK_EQ(ibv_dereg_mr(mr), 0);
	CHECK_EQ(post(&p.a, (uintptr_t)p.a.buf, 64, lkey), 0); /* HERE dead-key */
	CHECK((vt_poll(p.a.scq).status == IBV_WC_SUCCESS) == right);
	if (right)
		CHECK_EQ(ibv_dereg_mr(mr), 0);
	vt_free(&p);
}

/* b Reads a's memory by a key of a's: b's side of it is not told of, where a's is. */
static void refuse(uint32_t rkey, uint64_t addr, bool right)
{
	struct ibv_wc wc;

	CHECK_EQ(vt_try_send(&p.b, 1, IBV_WR_RDMA_READ, 0, 64, IBV_SEND_SIGNALED, addr, rkey), 0);
	wc = vt_poll(p.b.scq);
	CHECK_EQ(wc.status, right ? IBV_WC_SUCCESS : IBV_WC_REM_ACCESS_ERR);
}

static void dead_rkey(bool right)
{
	struct ibv_mr *mr;
	uint32_t rkey;

	open_pair((struct vt_opts){ 0 });
	message();
	CHECK(mr = ibv_reg_mr(p.a.pd, p.a.buf, 4096, IBV_ACCESS_REMOTE_READ));
	rkey = mr->rkey;
	if (right)
		refuse(rkey, (uintptr_t)p.a.buf, true);
	CHECK_EQ(ibv_dereg_mr(mr), 0); /* HERE dead-rkey */
	if (!right)
		refuse(rkey, (uintptr_t)p.a.buf, false);
	vt_free(&p);
}

static void stranger(bool right)
{
	struct ibv_pd *pd;
	struct ibv_mr *mr;

	open_pair((struct vt_opts){ 0 });
	message();
	CHECK(pd = ibv_alloc_pd(p.a.id->verbs));
	mr = ibv_reg_mr(right ? p.a.pd : pd, p.a.buf, 4096, IBV_ACCESS_REMOTE_READ); /* HERE stranger */
	CHECK(mr);
	refuse(mr->rkey, (uintptr_t)p.a.buf, right);
	CHECK_EQ(ibv_dereg_mr(mr), 0);
	CHECK_EQ(ibv_dealloc_pd(pd), 0);
	vt_free(&p);
}

static void peer_outside(bool right)
{
	struct ibv_mr *mr;

	open_pair((struct vt_opts){ 0 });
	message();
	mr = ibv_reg_mr(p.a.pd, p.a.buf, 4096, IBV_ACCESS_REMOTE_READ); /* HERE peer-outside */
	CHECK(mr);
	refuse(mr->rkey, (uintptr_t)p.a.buf + 4096 - (right ? 64 : 63), right);
	CHECK_EQ(ibv_dereg_mr(mr), 0);
	vt_free(&p);
}

static void no_right(bool right)
{
	struct ibv_mr *mr;
	int access = right ? IBV_ACCESS_REMOTE_READ : IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE;

	open_pair((struct vt_opts){ 0 });
	message();
	mr = ibv_reg_mr(p.a.pd, p.a.buf, 4096, access); /* HERE no-right */
	CHECK(mr);
	refuse(mr->rkey, (uintptr_t)p.a.buf, right);
	CHECK_EQ(ibv_dereg_mr(mr), 0);
	vt_free(&p);
}

/*
 * As a program does that has the key of another one the wrong way round: no region of this one has
 * it.
 */
static void refused_key(bool right)
{
	uint32_t rkey;
	struct ibv_wc wc;

	open_pair((struct vt_opts){ 0 });
	message();
	rkey = right ? p.b.mr->rkey : htonl(p.b.mr->rkey);
	CHECK_EQ(vt_try_send(&p.a, 1, IBV_WR_RDMA_READ, 0, 64, IBV_SEND_SIGNALED, (uintptr_t)p.b.buf, rkey), 0); /* HERE refused-key */
	wc = vt_poll(p.a.scq);
	CHECK_EQ(wc.status, right ? IBV_WC_SUCCESS : IBV_WC_REM_ACCESS_ERR);
	vt_free(&p);
}

static void in_use(bool right)
{
	struct ibv_mr *mr;
	struct ibv_sge sge;
	struct ibv_recv_wr wr = { .wr_id = 7, .sg_list = &sge, .num_sge = 1 }, *bad;

	open_pair((struct vt_opts){ 0 });
	CHECK(mr = ibv_reg_mr(p.b.pd, p.b.buf, 4096, IBV_ACCESS_LOCAL_WRITE));
	sge = (struct ibv_sge){ (uintptr_t)p.b.buf, 64, mr->lkey };
	CHECK_EQ(ibv_post_recv(p.b.qp, &wr, &bad), 0);
	if (right) {
		vt_send(&p.a, 1, 0, 64);
		vt_wc(p.a.scq, 1, IBV_WC_SUCCESS, IBV_WC_SEND);
		vt_wc(p.b.rcq, 7, IBV_WC_SUCCESS, IBV_WC_RECV);
	}
	ibv_dereg_mr(mr); /* HERE deregistered-in-use */
	vt_free(&p);
}

static void freed(bool right)
{
	struct ibv_mr *mr;
	void *buf;

	open_pair((struct vt_opts){ 0 });
	message();
	CHECK(buf = malloc(4096));
	CHECK(mr = ibv_reg_mr(p.a.pd, buf, 4096, IBV_ACCESS_LOCAL_WRITE));
	if (right)
		CHECK_EQ(ibv_dereg_mr(mr), 0);
	free(buf); /* HERE freed */
	if (!right)
		CHECK_EQ(ibv_dereg_mr(mr), 0);
	vt_close(&p);
}

static void unmapped(bool right)
{
	struct ibv_mr *mr;
	void *buf;

	open_pair((struct vt_opts){ 0 });
	message();
	buf = mmap(NULL, 8192, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	CHECK(buf != MAP_FAILED);
	CHECK(mr = ibv_reg_mr(p.a.pd, buf, 8192, IBV_ACCESS_LOCAL_WRITE));
	if (right)
		CHECK_EQ(ibv_dereg_mr(mr), 0);
	CHECK_EQ(munmap(buf, 8192), 0); /* HERE freed */
	if (!right)
		CHECK_EQ(ibv_dereg_mr(mr), 0);
	vt_close(&p);
}

/* Beyond the end, and with the octets of a number the wrong way round. */
static void outside(bool right)
{
	struct ibv_send_wr many = { .num_sge = 1 << 20, .opcode = IBV_WR_SEND }, *bad;

	open_pair((struct vt_opts){ 0 });
	message();
	CHECK(ibv_post_send(p.a.qp, &many, &bad)); /* more than there may be: nobody looks at them */
	vt_recv(&p.b, 2, 0, 64);
	CHECK_EQ(post(&p.a, (uintptr_t)p.a.buf + p.a.len - (right ? 64 : 63), 64, p.a.mr->lkey), 0); /* HERE outside */
	CHECK((vt_poll(p.a.scq).status == IBV_WC_SUCCESS) == right);
	vt_free(&p);
}

static void swapped_address(bool right)
{
	uint64_t addr;

	open_pair((struct vt_opts){ 0 });
	message();
	addr = (uintptr_t)p.a.buf;
	vt_recv(&p.b, 2, 0, 64);
	CHECK_EQ(post(&p.a, right ? addr : htobe64(addr), 64, p.a.mr->lkey), 0); /* HERE swapped-address */
	CHECK((vt_poll(p.a.scq).status == IBV_WC_SUCCESS) == right);
	vt_free(&p);
}

static void swapped_key(bool right)
{
	open_pair((struct vt_opts){ 0 });
	message();
	vt_recv(&p.b, 2, 0, 64);
	CHECK_EQ(post(&p.a, (uintptr_t)p.a.buf, 64, right ? p.a.mr->lkey : htonl(p.a.mr->lkey)), 0); /* HERE swapped-key */
	CHECK((vt_poll(p.a.scq).status == IBV_WC_SUCCESS) == right);
	vt_free(&p);
}

static void other_domain(bool right)
{
	struct ibv_pd *pd;
	struct ibv_mr *mr;

	open_pair((struct vt_opts){ 0 });
	message();
	CHECK(pd = ibv_alloc_pd(p.a.id->verbs));
	CHECK(mr = ibv_reg_mr(right ? p.a.pd : pd, p.a.buf, 4096, IBV_ACCESS_LOCAL_WRITE));
	vt_recv(&p.b, 2, 0, 64);
	CHECK_EQ(post(&p.a, (uintptr_t)p.a.buf, 64, mr->lkey), 0); /* HERE other-domain */
	CHECK((vt_poll(p.a.scq).status == IBV_WC_SUCCESS) == right);
	CHECK_EQ(ibv_dereg_mr(mr), 0);
	CHECK_EQ(ibv_dealloc_pd(pd), 0);
	vt_free(&p);
}

static void not_writable(bool right)
{
	struct ibv_sge sge;
	struct ibv_recv_wr wr = { .wr_id = 7, .sg_list = &sge, .num_sge = 1 }, *bad;
	struct ibv_mr *mr;

	open_pair((struct vt_opts){ 0 });
	CHECK(mr = ibv_reg_mr(p.b.pd, p.b.buf, 4096, right ? IBV_ACCESS_LOCAL_WRITE : 0));
	sge = (struct ibv_sge){ (uintptr_t)p.b.buf, 64, mr->lkey };
	CHECK_EQ(ibv_post_recv(p.b.qp, &wr, &bad), 0); /* HERE not-writable */
	vt_send(&p.a, 1, 0, 64);
	CHECK((vt_poll(p.b.rcq).status == IBV_WC_SUCCESS) == right);
	vt_poll(p.a.scq);
	CHECK_EQ(ibv_dereg_mr(mr), 0);
	vt_free(&p);
}

/* Request 1, a Send, is posted: its buffer is written again, behind the completion or before it. */
static void reuse(bool completed)
{
	if (completed)
		vt_wc(p.a.scq, 1, IBV_WC_SUCCESS, IBV_WC_SEND);
	p.a.buf[4000]++;
	if (!completed)
		vt_wc(p.a.scq, 1, IBV_WC_SUCCESS, IBV_WC_SEND);
	vt_wc(p.b.rcq, 2, IBV_WC_SUCCESS, IBV_WC_RECV);
}

static void changed(bool right)
{
	open_pair((struct vt_opts){ 0 });
	vt_fill(p.a.buf, 4096, 1);
	vt_recv(&p.b, 2, 0, 4096);
	CHECK_EQ(post(&p.a, (uintptr_t)p.a.buf, 4096, p.a.mr->lkey), 0); /* HERE changed */
	reuse(right);
	vt_close(&p);
}

static volatile char seen;

/* b's region has no rights for peers. */
static void open_closed(struct vt_opts o)
{
	o.access = IBV_ACCESS_LOCAL_WRITE;
	open_pair(o);
}

/* A message of n octets that has come, and is all there. */
static void comes(uint32_t n)
{
	vt_fill(p.a.buf, n, 7);
	vt_send(&p.a, 1, 0, n);
	vt_wc(p.a.scq, 1, IBV_WC_SUCCESS, IBV_WC_SEND);
	vt_wc(p.b.rcq, 2, IBV_WC_SUCCESS, IBV_WC_RECV);
	vt_verify(p.b.buf + 64, n, 7);
}

/* Looks whether the message has come by what is there. */
static void early(bool right)
{
	open_closed((struct vt_opts){ 0 });
	vt_recv(&p.b, 2, 64, 32768);
	seen = p.b.buf[0]; /* no receive is there */
	if (!right)
		seen = p.b.buf[20000]; /* HERE early-read */
	comes(32768);
	seen = p.b.buf[20000];
	vt_close(&p);
}

/* The same of messages that the library puts there. */
static void early_small(bool right)
{
	int i;

	open_closed((struct vt_opts){ 0 });
	for (i = 0; i < 3; i++) {
		vt_recv(&p.b, 2, 64, 8192);
		if (!right)
			seen = p.b.buf[5000]; /* HERE early-read */
		comes(right ? 8192 : 100);
	}
	vt_close(&p);
}

static void early_srq(bool right)
{
	open_closed((struct vt_opts){ .srq = true });
	vt_recv(&p.b, 2, 64, 32768);
	if (!right)
		CHECK(memchr(p.b.buf + 8192, 1, 4096) != p.b.buf); /* HERE early-read */
	comes(32768);
	vt_close(&p);
}

/* A Read's answer, which peers may write to on iWARP. */
static void early_answer(bool right)
{
	open_pair((struct vt_opts){ 0 });
	vt_fill(p.a.buf, 32768, 5);
	vt_rdma(&p.b, 1, IBV_WR_RDMA_READ, 0, 32768, &p.a, 0);
	if (!right)
		seen = p.b.buf[20000]; /* HERE early-read */
	vt_wc(p.b.scq, 1, IBV_WC_SUCCESS, IBV_WC_RDMA_READ);
	vt_verify(p.b.buf, 32768, 5);
	vt_close(&p);
}

static void early_call(bool right)
{
	int pipe_[2];

	open_closed((struct vt_opts){ 0 });
	CHECK_EQ(pipe(pipe_), 0);
	vt_recv(&p.b, 2, 64, 32768);
	if (!right)
		CHECK_EQ(write(pipe_[1], p.b.buf + 8192, 512), 512); /* HERE early-read */
	/* which is not reading it */
	CHECK_EQ(write(pipe_[1], "octets", 6), 6);
	CHECK_EQ(read(pipe_[0], p.b.buf + 16384, right ? 6 : 518), right ? 6 : 518);
	memset(p.b.buf + 20480, 0, 8192);
	comes(32768);
	vt_close(&p);
}

static void never_polled(bool right)
{
	open_pair((struct vt_opts){ 0 });
	vt_recv(&p.b, 2, 0, 64);
	CHECK_EQ(post(&p.a, (uintptr_t)p.a.buf, 64, p.a.mr->lkey), 0); /* HERE never-polled */
	vt_wc(p.b.rcq, 2, IBV_WC_SUCCESS, IBV_WC_RECV);
	if (right)
		vt_wc(p.a.scq, 1, IBV_WC_SUCCESS, IBV_WC_SEND);
	vt_close(&p);
}

static void small_cq(bool right)
{
	int i, polled = 0;

	open_pair((struct vt_opts){ .cqe = 5 });
	for (i = 0; i < 5; i++)
		vt_recv(&p.b, i, 0, 64);
	for (i = 0; i < 6; i++) {
		if (i == 5)
			vt_wc(p.b.rcq, 0, IBV_WC_SUCCESS, IBV_WC_RECV);
		if (i == 5)
			vt_recv(&p.b, 5, 0, 64);
		CHECK_EQ(post(&p.a, (uintptr_t)p.a.buf, 64, p.a.mr->lkey), 0); /* HERE small-cq */
		if (right) {
			vt_wc(p.a.scq, 1, IBV_WC_SUCCESS, IBV_WC_SEND);
			polled++;
		}
	}
	while (polled++ < 6)
		vt_wc(p.a.scq, 1, IBV_WC_SUCCESS, IBV_WC_SEND);
	vt_close(&p);
}

static void unsignaled(bool right)
{
	int i;

	open_pair((struct vt_opts){ .send_wr = 8, .unsignaled = true });
	for (i = 0; i < 8; i++) {
		vt_recv(&p.b, i, 0, 64);
		CHECK_EQ(vt_try_send(&p.a, i, IBV_WR_SEND, 0, 64, right && i == 4 ? IBV_SEND_SIGNALED : 0, 0, 0), 0); /* HERE unsignaled */
		vt_wc(p.b.rcq, i, IBV_WC_SUCCESS, IBV_WC_RECV);
	}
	if (right)
		vt_wc(p.a.scq, 4, IBV_WC_SUCCESS, IBV_WC_SEND);
	vt_close(&p);
}

/* The test says a line when the message has come to where no receive is. */
static void no_receive(bool right)
{
	char line[8];

	open_pair((struct vt_opts){ 0 });
	if (right)
		vt_recv(&p.b, 2, 0, 64);
	vt_send(&p.a, 1, 0, 64);
	printf("sent\n");
	CHECK(fgets(line, sizeof(line), stdin));
	if (!right)
		vt_recv(&p.b, 2, 0, 64);
	vt_wc(p.b.rcq, 2, IBV_WC_SUCCESS, IBV_WC_RECV);
	vt_wc(p.a.scq, 1, IBV_WC_SUCCESS, IBV_WC_SEND);
	vt_disconnect(&p);
	rdma_destroy_qp(p.b.id); /* HERE no-receive */
	p.b.qp = NULL;
	vt_free(&p);
}

static void error_ignored(bool right)
{
	int i;

	open_pair((struct vt_opts){ 0 });
	message();
	vt_disconnect(&p);
	vt_send(&p.a, 1, 0, 64);
	for (i = 0; i < 6; i++) {
		if (vt_poll(p.a.scq).status != IBV_WC_SUCCESS && right)
			break;
		vt_send(&p.a, 1, 0, 64); /* HERE error-ignored */
	}
	vt_free(&p);
}

/* Opens both ends and has an event of the receiving one's queue, which is returned. */
static struct ibv_cq *told_of_message(void)
{
	struct ibv_cq *cq;
	void *context;

	open_pair((struct vt_opts){ .channel = true });
	CHECK_EQ(ibv_req_notify_cq(p.b.rcq, 0), 0);
	message();
	CHECK_EQ(ibv_get_cq_event(p.b.cc, &cq, &context), 0);
	return cq;
}

/* The wrong one hangs: the test ends it. */
static void unacked(bool right)
{
	struct ibv_cq *cq = told_of_message();

	if (right)
		ibv_ack_cq_events(cq, 1);
	vt_disconnect(&p);
	rdma_destroy_qp(p.b.id);
	p.b.qp = NULL;
	CHECK_EQ(ibv_destroy_cq(p.b.rcq), 0); /* HERE unacked */
	p.b.rcq = NULL;
	vt_free(&p);
}

/* Of a queue that a queue pair has, the call is refused: its events are not waited for. */
static void order_of_cq(bool right)
{
	struct ibv_cq *cq = told_of_message();

	if (!right)
		CHECK_EQ(ibv_destroy_cq(p.b.rcq), EBUSY); /* HERE busy */
	ibv_ack_cq_events(cq, 1);
	vt_close(&p);
}

static void forked(bool right)
{
	int status;
	pid_t pid;

	open_pair((struct vt_opts){ 0 });
	message();
	pid = fork();
	CHECK(pid >= 0);
	if (!pid) {
		if (!right)
			post(&p.a, (uintptr_t)p.a.buf, 64, p.a.mr->lkey); /* HERE forked */
		_exit(0);
	}
	CHECK_EQ(waitpid(pid, &status, 0), pid);
	vt_free(&p);
}

/* With --pedantic. */
static void long_private(bool right)
{
	struct rdma_conn_param param = { .responder_resources = 1, .initiator_depth = 1 };
	struct rdma_cm_event *ev;
	struct vt_opts o = { .access = IBV_ACCESS_LOCAL_WRITE };
	char data[57] = { 0 };

	vt_listen(&p);
	vt_resolve(&p, &p.a, rdma_get_src_port(p.listen));
	vt_objects(&p.a, &o, false);
	vt_qp(&p.a, &o);
	param.private_data = data;
	param.private_data_len = right ? 56 : 57;
	CHECK_EQ(rdma_connect(p.a.id, &param), 0); /* HERE long-private-data */
	ev = vt_event(p.lch, RDMA_CM_EVENT_CONNECT_REQUEST);
	p.b.id = ev->id;
	rdma_ack_cm_event(ev);
	CHECK_EQ(rdma_reject(p.b.id, NULL, 0), 0);
	rdma_ack_cm_event(vt_event(p.a.ch, RDMA_CM_EVENT_REJECTED));
	vt_free(&p);
}

static void long_inline(bool right)
{
	struct ibv_context *c = vt_open_device();
	struct ibv_pd *pd = ibv_alloc_pd(c);
	struct ibv_cq *cq = ibv_create_cq(c, 8, NULL, NULL, 0);
	struct ibv_qp_init_attr attr = { .send_cq = cq, .recv_cq = cq, .qp_type = IBV_QPT_RC,
					 .cap = { 4, 4, 1, 1, right ? 101 : 102 } };
	struct ibv_qp *qp;

	CHECK(pd && cq);
	CHECK(qp = ibv_create_qp(pd, &attr)); /* HERE long-inline */
	CHECK_EQ(ibv_destroy_qp(qp), 0);
	CHECK_EQ(ibv_destroy_cq(cq), 0);
	CHECK_EQ(ibv_dealloc_pd(pd), 0);
	CHECK_EQ(ibv_close_device(c), 0);
}

/* With --pedantic. */
static void draining(bool right)
{
	struct ibv_qp_attr attr = { .qp_state = right ? IBV_QPS_ERR : IBV_QPS_SQD };

	open_pair((struct vt_opts){ .access = IBV_ACCESS_LOCAL_WRITE });
	message();
	CHECK_EQ(ibv_modify_qp(p.a.qp, &attr, IBV_QP_STATE), 0); /* HERE draining */
	vt_free(&p);
}

static void out_of_error(bool right)
{
	struct ibv_qp_attr error = { .qp_state = IBV_QPS_ERR }, reset = { .qp_state = IBV_QPS_RESET };

	open_pair((struct vt_opts){ .access = IBV_ACCESS_LOCAL_WRITE });
	message();
	CHECK_EQ(ibv_modify_qp(p.a.qp, &error, IBV_QP_STATE), 0);
	if (!right)
		CHECK_EQ(ibv_modify_qp(p.a.qp, &reset, IBV_QP_STATE), 0); /* HERE out-of-error */
	vt_free(&p);
}

/* On RoCE: a queue pair that is its own peer. */
static void many_reads(bool right)
{
	struct ibv_context *c = vt_open_device();
	struct ibv_pd *pd = ibv_alloc_pd(c);
	struct ibv_cq *cq = ibv_create_cq(c, 8, NULL, NULL, 0);
	struct ibv_qp_init_attr init = { .send_cq = cq, .recv_cq = cq, .qp_type = IBV_QPT_RC,
					 .cap = { 4, 4, 1, 1, 0 } };
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_INIT, .port_num = 1, .path_mtu = IBV_MTU_1024,
				    .max_dest_rd_atomic = right ? 16 : 17, .min_rnr_timer = 1,
				    .ah_attr = { .is_global = 1, .port_num = 1, .grh.hop_limit = 1 } };
	const int all = IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
			IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER;
	struct ibv_qp *qp;

	CHECK(pd && cq);
	CHECK(qp = ibv_create_qp(pd, &init));
	CHECK_EQ(ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS), 0);
	attr.qp_state = IBV_QPS_RTR;
	attr.dest_qp_num = qp->qp_num;
	CHECK_EQ(ibv_query_gid(c, 1, 0, &attr.ah_attr.grh.dgid), 0);
	CHECK_EQ(ibv_modify_qp(qp, &attr, all), 0); /* HERE many-reads */
	CHECK_EQ(ibv_destroy_qp(qp), 0);
	CHECK_EQ(ibv_destroy_cq(cq), 0);
	CHECK_EQ(ibv_dealloc_pd(pd), 0);
	CHECK_EQ(ibv_close_device(c), 0);
}

/* Requests by ibv_wr_*: the buffer is the device's from ibv_wr_complete on. */
static void wr_changed(bool right)
{
	struct ibv_qp_ex *qp;

	open_pair((struct vt_opts){ .ex = true, .send_ops = IBV_QP_EX_WITH_SEND });
	qp = p.a.qpx;
	vt_fill(p.a.buf, 4096, 1);
	vt_recv(&p.b, 2, 0, 4096);
	ibv_wr_start(qp);
	qp->wr_id = 1;
	qp->wr_flags = IBV_SEND_SIGNALED;
	ibv_wr_send(qp); /* HERE changed */
	ibv_wr_set_sge(qp, p.a.mr->lkey, (uintptr_t)p.a.buf, 4096);
	p.a.buf[0]++; /* which is right: nothing is posted yet */
	CHECK_EQ(ibv_wr_complete(qp), 0);
	reuse(right);
	vt_close(&p);
}

/* The same, of which some are taken back, and one goes beyond its region. */
static void wr_outside(bool right)
{
	struct ibv_qp_ex *qp;

	open_pair((struct vt_opts){ .ex = true, .send_ops = IBV_QP_EX_WITH_SEND });
	qp = p.a.qpx;
	vt_recv(&p.b, 2, 0, 4096);
	qp->wr_flags = IBV_SEND_SIGNALED;
	ibv_wr_start(qp);
	ibv_wr_send(qp);
	ibv_wr_set_sge(qp, p.a.mr->lkey, (uintptr_t)p.a.buf, 64);
	ibv_wr_abort(qp);
	qp->wr_id = 1;
	ibv_wr_start(qp);
	ibv_wr_send(qp); /* HERE outside */
	ibv_wr_set_sge(qp, p.a.mr->lkey, (uintptr_t)p.a.buf + p.a.len - 64, right ? 64 : 65);
	CHECK_EQ(ibv_wr_complete(qp), 0);
	CHECK((vt_poll(p.a.scq).status == IBV_WC_SUCCESS) == right);
	vt_free(&p);
}

/* All receives of an SRQ may complete to the one completion queue that its queue pairs have. */
static void small_srq_cq(bool right)
{
	int i;

	open_pair((struct vt_opts){ .srq = true, .cqe = 5 });
	for (i = 0; i < (right ? 5 : 6); i++)
		vt_recv(&p.b, i, 0, 64); /* HERE small-cq */
	CHECK_EQ(post(&p.a, (uintptr_t)p.a.buf, 64, p.a.mr->lkey), 0);
	vt_wc(p.a.scq, 1, IBV_WC_SUCCESS, IBV_WC_SEND);
	vt_wc(p.b.rcq, 0, IBV_WC_SUCCESS, IBV_WC_RECV);
	if (right)
		vt_recv(&p.b, 5, 0, 64);
	vt_close(&p);
}

/* With --pedantic. Both sides' regions are of one place. */
static void wide(bool right)
{
	int access = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | (right ? 0 : IBV_ACCESS_REMOTE_READ);
	struct ibv_mr *mr;

	open_pair((struct vt_opts){ .access = IBV_ACCESS_LOCAL_WRITE });
	mr = ibv_reg_mr(p.b.pd, p.b.buf, 4096, access); /* HERE wide-access */
	CHECK(mr);
	CHECK_EQ(vt_try_send(&p.a, 1, IBV_WR_RDMA_WRITE, 0, 64, IBV_SEND_SIGNALED, (uintptr_t)p.b.buf, mr->rkey), 0);
	vt_wc(p.a.scq, 1, IBV_WC_SUCCESS, IBV_WC_RDMA_WRITE);
	message();
	CHECK_EQ(ibv_dereg_mr(mr), 0);
	vt_close(&p);
}

/* The same: on iWARP what a Read fetches comes to a region that peers may write to. */
static void wide_sink(bool right)
{
	int access = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | (right ? 0 : IBV_ACCESS_REMOTE_ATOMIC);
	struct ibv_send_wr wr = { .wr_id = 1, .num_sge = 1, .opcode = IBV_WR_RDMA_READ,
				  .send_flags = IBV_SEND_SIGNALED }, *bad;
	struct ibv_mr *sink, *source;
	struct ibv_sge sge;

	open_pair((struct vt_opts){ .access = IBV_ACCESS_LOCAL_WRITE });
	CHECK(source = ibv_reg_mr(p.a.pd, p.a.buf, 4096, IBV_ACCESS_REMOTE_READ));
	sink = ibv_reg_mr(p.b.pd, p.b.buf, 4096, access); /* HERE wide-access */
	CHECK(sink);
	message();
	sge = (struct ibv_sge){ (uintptr_t)p.b.buf, 64, sink->lkey };
	wr.sg_list = &sge;
	wr.wr.rdma.remote_addr = (uintptr_t)p.a.buf;
	wr.wr.rdma.rkey = source->rkey;
	CHECK_EQ(ibv_post_send(p.b.qp, &wr, &bad), 0);
	vt_wc(p.b.scq, 1, IBV_WC_SUCCESS, IBV_WC_RDMA_READ);
	CHECK_EQ(ibv_dereg_mr(sink), 0);
	CHECK_EQ(ibv_dereg_mr(source), 0);
	vt_close(&p);
}

#define MISTAKES(f) \
	f(leak) f(order) f(order_of_ids) f(dead_key) f(dead_rkey) f(stranger) f(peer_outside) f(no_right) f(refused_key) f(in_use) f(freed) f(unmapped) f(outside) f(swapped_address) \
	f(swapped_key) f(other_domain) f(not_writable) f(changed) f(early) f(early_small) f(early_srq) f(early_answer) f(early_call) f(never_polled) f(small_cq) f(unsignaled) f(no_receive) \
	f(error_ignored) f(order_of_cq) f(unacked) f(forked) f(long_private) f(long_inline) \
	f(draining) f(out_of_error) f(many_reads) f(wide) f(wide_sink) f(wr_changed) f(wr_outside) f(small_srq_cq)

#define RUN(f) static void f##_wrong(void) { f(false); } static void f##_right(void) { f(true); }
MISTAKES(RUN)

#define CASE(f) { #f "_wrong", f##_wrong }, { #f "_right", f##_right },
static const struct vt_case cases[] = { MISTAKES(CASE) { NULL, NULL } };

int main(int argc, char **argv)
{
	return vt_main(argc, argv, cases);
}
