/* What goes wrong, and who learns what: the status of each completion, the events, the state of the connection. */
#include "vt.h"

#include <pthread.h>
#include <sys/mman.h>

static struct vt_pair p;

static void open_pair(const struct vt_opts *o)
{
	vt_open(&p, o);
	/* Receives on both sides, to see that they flush. */
	vt_recv(&p.a, 90, 0, p.a.len);
	vt_recv(&p.b, 91, 0, p.b.len);
}

/* The connection is over on both sides, by an error: everything that is left flushes. */
static void over(bool a_recv, bool b_recv)
{
	int state;

	vt_expect(p.a.ch, RDMA_CM_EVENT_DISCONNECTED, 0);
	vt_expect(p.b.ch, RDMA_CM_EVENT_DISCONNECTED, 0);
	if (a_recv)
		vt_wc(p.a.rcq, 90, IBV_WC_WR_FLUSH_ERR, -1);
	if (b_recv)
		vt_wc(p.b.rcq, 91, IBV_WC_WR_FLUSH_ERR, -1);
	state = vt_state(p.a.qp);
	CHECK(state != IBV_QPS_RTS && state != IBV_QPS_RTR);
	state = vt_state(p.b.qp);
	CHECK(state != IBV_QPS_RTS && state != IBV_QPS_RTR);
	vt_no_wc(p.a.scq);
	vt_no_wc(p.b.scq);
	vt_no_event(p.a.ch);
	vt_no_event(p.b.ch);
	vt_free(&p);
}

/* A Send from memory that this side may not send: it is told, and its connection ends. */
static void local_send(struct ibv_sge sge, struct ibv_mr *mr)
{
	struct ibv_send_wr wr = { .wr_id = 1, .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND }, *bad;

	/* Not signaled: an error completes all the same. */
	CHECK_EQ(ibv_post_send(p.a.qp, &wr, &bad), 0);
	vt_wc(p.a.scq, 1, IBV_WC_LOC_PROT_ERR, -1);
	if (mr)
		CHECK_EQ(ibv_dereg_mr(mr), 0);
	over(true, true);
}

static void local_key(void)
{
	struct ibv_sge sge;

	open_pair(&(struct vt_opts){ .unsignaled = true });
	sge = vt_sge(&p.a, 0, 10);
	sge.lkey ^= 0x1234500;
	local_send(sge, NULL);
}

static void local_bounds(void)
{
	struct ibv_sge sge;

	open_pair(&(struct vt_opts){ .unsignaled = true });
	sge = vt_sge(&p.a, p.a.len - 9, 10);
	local_send(sge, NULL);
}

static void local_wrap(void)
{
	struct ibv_sge sge;

	open_pair(&(struct vt_opts){ .unsignaled = true });
	sge = vt_sge(&p.a, 0, 100);
	sge.addr = UINT64_MAX - 50;
	local_send(sge, NULL);
}

/* A region of another protection domain. */
static void local_pd(void)
{
	struct ibv_pd *pd;
	struct ibv_mr *mr;
	struct ibv_sge sge;

	open_pair(&(struct vt_opts){ .unsignaled = true });
	CHECK(pd = ibv_alloc_pd(p.a.id->verbs));
	CHECK(mr = ibv_reg_mr(pd, p.a.buf, 4096, IBV_ACCESS_LOCAL_WRITE));
	sge = (struct ibv_sge){ (uintptr_t)p.a.buf, 10, mr->lkey };
	local_send(sge, mr);
	CHECK_EQ(ibv_dealloc_pd(pd), 0);
}

/* Memory that is not there any more. Of a message this long nothing is copied before the daemon does. */
static void local_unmapped_large(void)
{
	const size_t len = 1 << 20;
	struct ibv_mr *mr;
	struct ibv_sge sge;
	void *mem = mmap(NULL, len, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	CHECK(mem != MAP_FAILED);
	open_pair(&(struct vt_opts){ .unsignaled = true, .len = len });
	CHECK(mr = ibv_reg_mr(p.a.pd, mem, len, IBV_ACCESS_LOCAL_WRITE));
	CHECK_EQ(munmap(mem, len), 0);
	sge = (struct ibv_sge){ (uintptr_t)mem, 500000, mr->lkey };
	local_send(sge, mr);
}

/* A receive whose memory may not be written: its side is told, the sender flushes. */
static void receive_rights(void)
{
	struct ibv_mr *mr;
	struct ibv_sge sge;
	struct ibv_recv_wr wr = { .wr_id = 5, .sg_list = &sge, .num_sge = 1 }, *bad;
	static char mem[4096];

	vt_open(&p, &(struct vt_opts){ 0 });
	CHECK(mr = ibv_reg_mr(p.b.pd, mem, sizeof(mem), IBV_ACCESS_REMOTE_READ));
	sge = (struct ibv_sge){ (uintptr_t)mem, sizeof(mem), mr->lkey };
	CHECK_EQ(ibv_post_recv(p.b.qp, &wr, &bad), 0);
	vt_recv(&p.a, 90, 0, 10);
	vt_send(&p.a, 1, 0, 100);
	vt_wc(p.b.rcq, 5, IBV_WC_LOC_PROT_ERR, -1);
	(void)vt_poll(p.a.scq); /* done, or flushed: the peer's Terminate may be faster */
	CHECK_EQ(ibv_dereg_mr(mr), 0);
	over(true, false);
}

/* A message that is longer than the receive. */
static void too_long(void)
{
	struct ibv_wc wc;

	vt_open(&p, &(struct vt_opts){ 0 });
	vt_recv(&p.a, 90, 0, 10);
	vt_recv(&p.b, 5, 0, 99);
	vt_recv(&p.b, 91, 0, 200);
	vt_fill(p.a.buf, 100, 1);
	vt_send(&p.a, 1, 0, 100);
	vt_wc(p.b.rcq, 5, IBV_WC_LOC_LEN_ERR, -1);
	wc = vt_poll(p.a.scq);
	CHECK(wc.status == IBV_WC_SUCCESS || wc.status == IBV_WC_WR_FLUSH_ERR || wc.status == IBV_WC_REM_INV_REQ_ERR);
	vt_async(p.a.qp, IBV_EVENT_QP_REQ_ERR);
	over(true, true);
}

/* Reads that the peer refuses: the initiator is told so by the completion, the responder by an event. */
enum { BAD_KEY, BOUNDS, RIGHTS, OTHER_PD, WRAP };

static void refused(enum ibv_wr_opcode op, int why)
{
	struct ibv_mr *mr = NULL;
	struct ibv_pd *pd = NULL;
	uint64_t addr;
	uint32_t key, n = 1000;

	open_pair(&(struct vt_opts){ 0 });
	addr = (uintptr_t)p.b.buf;
	key = p.b.mr->rkey;
	switch (why) {
	case BAD_KEY:
		key ^= 0x00abcd00;
		break;
	case BOUNDS:
		addr += p.b.len - n + 1;
		break;
	case WRAP:
		addr = UINT64_MAX - 10;
		break;
	case RIGHTS:
		CHECK(mr = ibv_reg_mr(p.b.pd, p.b.buf, p.b.len, IBV_ACCESS_LOCAL_WRITE | (op == IBV_WR_RDMA_READ ? IBV_ACCESS_REMOTE_WRITE : IBV_ACCESS_REMOTE_READ)));
		key = mr->rkey;
		break;
	case OTHER_PD:
		CHECK(pd = ibv_alloc_pd(p.b.id->verbs));
		CHECK(mr = ibv_reg_mr(pd, p.b.buf, p.b.len, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ));
		key = mr->rkey;
		break;
	}
	if (op == IBV_WR_RDMA_WRITE) {
		/* A Write is complete when it is gone, so that the request to blame is the Read behind it. */
		struct ibv_wc wc;

		CHECK_EQ(vt_try_send(&p.a, 1, op, 0, n, IBV_SEND_SIGNALED, addr, key), 0);
		CHECK_EQ(vt_try_send(&p.a, 2, IBV_WR_RDMA_READ, 8192, 10, IBV_SEND_SIGNALED, (uintptr_t)p.b.buf, p.b.mr->rkey), 0);
		wc = vt_poll(p.a.scq);
		CHECK_EQ(wc.wr_id, 1);
		if (wc.status == IBV_WC_SUCCESS) {
			wc = vt_poll(p.a.scq);
			CHECK_EQ(wc.wr_id, 2); /* flushed, if the refusal was here before it was posted */
			CHECK(wc.status == IBV_WC_REM_ACCESS_ERR || wc.status == IBV_WC_WR_FLUSH_ERR);
		} else {
			CHECK_EQ(wc.status, IBV_WC_REM_ACCESS_ERR);
			vt_wc(p.a.scq, 2, IBV_WC_WR_FLUSH_ERR, -1);
		}
	} else {
		CHECK_EQ(vt_try_send(&p.a, 1, op, 0, n, IBV_SEND_SIGNALED, addr, key), 0);
		vt_wc(p.a.scq, 1, IBV_WC_REM_ACCESS_ERR, -1);
	}
	vt_async(p.b.qp, IBV_EVENT_QP_ACCESS_ERR);
	/* Nothing was moved. */
	for (uint32_t i = 0; i < n; i++)
		CHECK_EQ(p.a.buf[i], 0);
	if (mr) {
		CHECK_EQ(ibv_dereg_mr(mr), 0);
		if (pd)
			CHECK_EQ(ibv_dealloc_pd(pd), 0);
	}
	over(true, true);
}

/* Writes again and again, each time other octets, until the connection is over. */
static void *writes(void *arg)
{
	uint32_t key = *(uint32_t *)arg;
	struct ibv_wc wc = { 0 };

	for (uint64_t i = 0; !wc.status; i++) {
		vt_fill(p.a.buf, p.a.len, i);
		if (vt_try_send(&p.a, i, IBV_WR_RDMA_WRITE, 0, p.a.len, IBV_SEND_SIGNALED,
				(uintptr_t)p.b.buf, key))
			break;
		wc = vt_poll(p.a.scq);
		CHECK_EQ(wc.wr_id, i);
	}
	return NULL;
}

/* When a region's deregistration has returned no octet comes there any more. */
static void revoked(void)
{
	for (int i = 0; i < 12; i++) {
		static char was[200000];
		struct ibv_mr *mr;
		pthread_t t;

		open_pair(&(struct vt_opts){ .len = sizeof(was) });
		CHECK(mr = ibv_reg_mr(p.b.pd, p.b.buf, p.b.len, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE));
		p.b.buf[p.b.len - 1] = 0x55;
		CHECK_EQ(pthread_create(&t, NULL, writes, &mr->rkey), 0);
		while (((volatile char *)p.b.buf)[p.b.len - 1] == 0x55)
			; /* until they come */
		usleep(i * 137);
		CHECK_EQ(ibv_dereg_mr(mr), 0);
		memcpy(was, p.b.buf, sizeof(was));
		CHECK_EQ(pthread_join(t, NULL), 0);
		CHECK(!memcmp(was, p.b.buf, sizeof(was)));
		vt_async(p.b.qp, IBV_EVENT_QP_ACCESS_ERR);
		for (struct ibv_wc wc; ibv_poll_cq(p.a.scq, 1, &wc);)
			CHECK(wc.status);
		over(true, true);
	}
}

static void read_refused(void)
{
	for (int why = BAD_KEY; why <= WRAP; why++)
		refused(IBV_WR_RDMA_READ, why);
}

static void write_refused(void)
{
	for (int why = BAD_KEY; why <= WRAP; why++)
		refused(IBV_WR_RDMA_WRITE, why);
}

/* The sink of a Read that may not be written. */
static void read_sink(void)
{
	struct ibv_mr *mr;
	struct ibv_sge sge;
	struct ibv_send_wr wr = { .wr_id = 1, .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_RDMA_READ }, *bad;
	static char mem[4096];

	open_pair(&(struct vt_opts){ .unsignaled = true });
	CHECK(mr = ibv_reg_mr(p.a.pd, mem, sizeof(mem), 0));
	sge = (struct ibv_sge){ (uintptr_t)mem, 100, mr->lkey };
	wr.wr.rdma.remote_addr = (uintptr_t)p.b.buf;
	wr.wr.rdma.rkey = p.b.mr->rkey;
	CHECK_EQ(ibv_post_send(p.a.qp, &wr, &bad), 0);
	vt_wc(p.a.scq, 1, IBV_WC_LOC_PROT_ERR, -1);
	vt_async(p.a.qp, IBV_EVENT_QP_ACCESS_ERR);
	CHECK_EQ(ibv_dereg_mr(mr), 0);
	over(true, true);
}

/* A disconnect flushes what is posted on both sides, in order, and what is posted afterwards. */
static void disconnected(void)
{
	vt_open(&p, &(struct vt_opts){ 0 });
	for (int i = 0; i < 10; i++) {
		vt_recv(&p.a, i, 0, 10);
		vt_recv(&p.b, i, 0, 10);
	}
	CHECK_EQ(rdma_disconnect(p.b.id), 0);
	vt_expect(p.a.ch, RDMA_CM_EVENT_DISCONNECTED, 0);
	vt_expect(p.b.ch, RDMA_CM_EVENT_DISCONNECTED, 0);
	for (int i = 0; i < 10; i++) {
		vt_wc(p.a.rcq, i, IBV_WC_WR_FLUSH_ERR, -1);
		vt_wc(p.b.rcq, i, IBV_WC_WR_FLUSH_ERR, -1);
	}
	vt_send(&p.a, 77, 0, 10);
	vt_wc(p.a.scq, 77, IBV_WC_WR_FLUSH_ERR, -1);
	vt_recv(&p.b, 78, 0, 10);
	vt_wc(p.b.rcq, 78, IBV_WC_WR_FLUSH_ERR, -1);
	/* Once more says nothing new; on Linux it is an error or not, and no second event. */
	(void)rdma_disconnect(p.a.id);
	(void)rdma_disconnect(p.b.id);
	vt_no_event(p.a.ch);
	vt_no_event(p.b.ch);
	vt_free(&p);
}

/* A QP that is moved to error ends its connection. */
static void moved_to_error(void)
{
	struct ibv_qp_attr a = { .qp_state = IBV_QPS_ERR };

	open_pair(&(struct vt_opts){ 0 });
	CHECK_EQ(ibv_modify_qp(p.a.qp, &a, IBV_QP_STATE), 0);
	over(true, true);
}

/* Nobody posts a receive: after a time the connection ends. */
static void no_receive(void)
{
	uint64_t begin;

	vt_open(&p, &(struct vt_opts){ 0 });
	vt_recv(&p.a, 90, 0, 10);
	vt_send(&p.a, 1, 0, 100);
	begin = vt_now_ms();
	vt_expect(p.a.ch, RDMA_CM_EVENT_DISCONNECTED, 0);
	CHECK(vt_now_ms() - begin > 1000); /* a slow program is no broken one */
	vt_expect(p.b.ch, RDMA_CM_EVENT_DISCONNECTED, 0);
	vt_wc(p.a.rcq, 90, IBV_WC_WR_FLUSH_ERR, -1);
	vt_free(&p);
}

/* A CQ that is too small for what completes: its QPs end, and an event says why. */
static void overrun(void)
{
	int n;

	vt_open(&p, &(struct vt_opts){ .cqe = 4, .send_wr = 4096 });
	n = p.a.scq->cqe;
	CHECK(n < 4000);
	for (int i = 0; i <= n; i++) {
		int err = vt_try_send(&p.a, i, IBV_WR_RDMA_WRITE, 0, 10, IBV_SEND_SIGNALED, (uintptr_t)p.b.buf, p.b.mr->rkey);

		if (err && err != ENOMEM)
			FAIL("post %d: %s", i, strerror(err));
	}
	for (bool told = false; !told;) {
		struct ibv_async_event ev;

		CHECK(vt_readable(p.a.id->verbs->async_fd, VT_PATIENCE));
		CHECK_EQ(ibv_get_async_event(p.a.id->verbs, &ev), 0);
		if ((told = ev.event_type == IBV_EVENT_CQ_ERR))
			CHECK(ev.element.cq == p.a.scq);
		ibv_ack_async_event(&ev);
	}
	vt_expect(p.a.ch, RDMA_CM_EVENT_DISCONNECTED, 0);
	vt_expect(p.b.ch, RDMA_CM_EVENT_DISCONNECTED, 0);
	CHECK_EQ(vt_state(p.a.qp), IBV_QPS_ERR);
	vt_free(&p);
}

static const struct vt_case cases[] = {
	{ "local_key", local_key }, { "local_bounds", local_bounds }, { "local_wrap", local_wrap }, { "local_pd", local_pd },
	{ "local_unmapped_large", local_unmapped_large }, { "receive_rights", receive_rights },
	{ "too_long", too_long }, { "read_refused", read_refused }, { "write_refused", write_refused },
	{ "revoked", revoked }, { "read_sink", read_sink }, { "disconnected", disconnected }, { "moved_to_error", moved_to_error },
	{ "no_receive", no_receive }, { "overrun", overrun }, {},
};

int main(int argc, char **argv) { return vt_main(argc, argv, cases); }
