/*
 * What a program sees of a card that is made to fail: one case for each kind of `vrnic fault`. Those whose fault has a
 * time say "opened" when they are ready for it.
 */
#include "vt.h"

static struct vt_pair p;

/* A number that the test has given. */
static int asked(const char *name)
{
	CHECK(getenv(name));
	return atoi(getenv(name));
}

static void write_one(uint64_t id, enum ibv_wc_status want)
{
	vt_rdma(&p.a, id, IBV_WR_RDMA_WRITE, 0, 64, &p.b, 0);
	vt_wc(p.a.scq, id, want, want ? -1 : IBV_WC_RDMA_WRITE);
}

/* The connection is over on both sides; the ends of what was posted are left. */
static void over(void)
{
	vt_expect(p.a.ch, RDMA_CM_EVENT_DISCONNECTED, 0);
	vt_expect(p.b.ch, RDMA_CM_EVENT_DISCONNECTED, 0);
	CHECK(vt_state(p.a.qp) != IBV_QPS_RTS);
	CHECK(vt_state(p.b.qp) != IBV_QPS_RTS);
	vt_free(&p);
}

static void one_message(uint64_t id)
{
	vt_recv(&p.b, id, 0, 64);
	vt_send(&p.a, id, 0, 64);
	vt_wc(p.b.rcq, id, IBV_WC_SUCCESS, IBV_WC_RECV);
	vt_wc(p.a.scq, id, IBV_WC_SUCCESS, IBV_WC_SEND);
}

static void status(void)
{
	vt_open(&p, &(struct vt_opts){ 0 });
	write_one(1, IBV_WC_SUCCESS);
	write_one(2, IBV_WC_SUCCESS);
	write_one(3, IBV_WC_RETRY_EXC_ERR);
	over();
}

/* Any operation, and any status. */
static void operation(void)
{
	enum ibv_wr_opcode op = asked("VT_OP");

	vt_open(&p, &(struct vt_opts){ 0 });
	if (op == IBV_WR_SEND) {
		vt_recv(&p.b, 1, 0, 64);
		vt_send(&p.a, 1, 0, 64);
	} else {
		vt_rdma(&p.a, 1, op, 0, op < IBV_WR_ATOMIC_CMP_AND_SWP ? 64 : 8, &p.b, 0);
	}
	vt_wc(p.a.scq, 1, asked("VT_WANT"), -1);
	over();
}

static void received(void)
{
	vt_open(&p, &(struct vt_opts){ 0 });
	one_message(1);
	vt_recv(&p.b, 2, 0, 64);
	vt_recv(&p.b, 3, 0, 64);
	vt_send(&p.a, 2, 0, 64);
	vt_wc(p.b.rcq, 2, IBV_WC_LOC_PROT_ERR, -1);
	vt_wc(p.b.rcq, 3, IBV_WC_WR_FLUSH_ERR, -1);
	over();
}

static void terminate(void)
{
	vt_open(&p, &(struct vt_opts){ 0 });
	one_message(1);
	vt_recv(&p.b, 2, 0, 64);
	vt_send(&p.a, 2, 0, 64);
	vt_wc(p.a.scq, 2, IBV_WC_WR_FLUSH_ERR, -1);
	vt_wc(p.b.rcq, 2, IBV_WC_WR_FLUSH_ERR, -1);
	vt_async(p.b.qp, IBV_EVENT_QP_FATAL);
	over();
}

/* The connection of a message ends, whatever has become of that. */
static void cut(void)
{
	vt_open(&p, &(struct vt_opts){ 0 });
	one_message(1);
	vt_recv(&p.b, 2, 0, 64);
	vt_send(&p.a, 2, 0, 64);
	vt_poll(p.a.scq);
	vt_poll(p.b.rcq);
	over();
}

/* Octets of an operation: those of the pair's memory, or of an atomic one. */
static uint32_t octets(enum ibv_wr_opcode op)
{
	return op < IBV_WR_ATOMIC_CMP_AND_SWP ? p.o.len : 8;
}

#define EVERY_ACCESS \
	(IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC)

/* The peer has no room for an operation that it is to answer. */
static void ird(void)
{
	enum ibv_wr_opcode op = asked("VT_OP");
	int want = asked("VT_WANT");

	vt_open(&p, &(struct vt_opts){ .len = 64, .access = EVERY_ACCESS });
	write_one(1, IBV_WC_SUCCESS);
	vt_rdma(&p.a, 2, op, 0, octets(op), &p.b, 0);
	vt_wc(p.a.scq, 2, want, -1);
	if (want == IBV_WC_WR_FLUSH_ERR) { /* iWARP: a Terminate ends the connection */
		vt_async(p.a.qp, IBV_EVENT_QP_FATAL);
		over();
		return;
	}
	CHECK(vt_state(p.a.qp) != IBV_QPS_RTS);
	vt_disconnect(&p);
	vt_free(&p);
}

/* The key of a request ends. Messages of that size are not copied as they are posted. */
static void key(void)
{
	enum ibv_wr_opcode op = asked("VT_OP");

	vt_open(&p, &(struct vt_opts){ .len = 1 << 18, .access = EVERY_ACCESS });
	write_one(1, IBV_WC_SUCCESS);
	if (op == IBV_WR_SEND) {
		vt_recv(&p.b, 2, 0, p.o.len);
		vt_send(&p.a, 2, 0, p.o.len);
	} else {
		vt_rdma(&p.a, 2, op, 0, octets(op), &p.b, 0);
	}
	vt_wc(p.a.scq, 2, IBV_WC_LOC_PROT_ERR, -1);
	over(); /* the region is deregistered as ever */
}

/* A peer's Read finds the key gone. */
static void keys(void)
{
	vt_open(&p, &(struct vt_opts){ 0 });
	write_one(1, IBV_WC_SUCCESS);
	puts("opened");
	CHECK_EQ(getchar(), '\n');
	vt_rdma(&p.a, 2, IBV_WR_RDMA_READ, 0, 64, &p.b, 0);
	CHECK(vt_poll(p.a.scq).status != IBV_WC_SUCCESS);
	over();
}

static void event(struct ibv_context *c, enum ibv_event_type want)
{
	struct ibv_async_event ev;

	do {
		if (!vt_readable(c->async_fd, VT_PATIENCE))
			FAIL("no asynchronous event, want %s", ibv_event_type_str(want));
		CHECK_EQ(ibv_get_async_event(c, &ev), 0);
		ibv_ack_async_event(&ev);
	} while (ev.event_type != want);
}

static void cq(void)
{
	vt_open(&p, &(struct vt_opts){ 0 });
	write_one(1, IBV_WC_SUCCESS);
	vt_rdma(&p.a, 2, IBV_WR_RDMA_WRITE, 0, 64, &p.b, 0);
	event(p.a.id->verbs, IBV_EVENT_CQ_ERR);
	over();
}

static void received_cq(void)
{
	vt_open(&p, &(struct vt_opts){ 0 });
	one_message(1);
	vt_recv(&p.b, 2, 0, 64);
	vt_send(&p.a, 2, 0, 64);
	event(p.b.id->verbs, IBV_EVENT_CQ_ERR);
	over();
}

static void cqs(void)
{
	vt_open(&p, &(struct vt_opts){ 0 });
	write_one(1, IBV_WC_SUCCESS);
	puts("opened");
	CHECK_EQ(getchar(), '\n');
	event(p.a.id->verbs, IBV_EVENT_CQ_ERR);
	over();
}

static enum ibv_port_state port_state(struct ibv_context *c)
{
	struct ibv_port_attr attr;

	CHECK_EQ(ibv_query_port(c, 1, &attr), 0);
	return attr.state;
}

static void port(void)
{
	struct ibv_context *c = vt_open_device();

	CHECK_EQ(port_state(c), IBV_PORT_ACTIVE);
	puts("opened");
	event(c, IBV_EVENT_PORT_ERR);
	CHECK_EQ(port_state(c), IBV_PORT_DOWN);
	puts("down");
	event(c, IBV_EVENT_PORT_ACTIVE);
	CHECK_EQ(port_state(c), IBV_PORT_ACTIVE);
	CHECK_EQ(ibv_close_device(c), 0);
}

static void gid(void)
{
	struct ibv_context *c = vt_open_device();

	puts("opened");
	event(c, IBV_EVENT_GID_CHANGE);
	CHECK_EQ(ibv_close_device(c), 0);
}

/* What is there is of no use any more; what is made anew works. */
static void fatal(void)
{
	vt_open(&p, &(struct vt_opts){ 0 });
	one_message(1);
	vt_recv(&p.b, 2, 0, 64);
	puts("opened");
	event(p.b.id->verbs, IBV_EVENT_DEVICE_FATAL);
	vt_wc(p.b.rcq, 2, IBV_WC_WR_FLUSH_ERR, -1);
	over();
	vt_open(&p, &(struct vt_opts){ 0 });
	one_message(3);
	vt_close(&p);
}

/* Nothing is heard of what is there, and all of it when that is over. */
static void quiet(void)
{
	struct ibv_cq *cq;
	void *context;

	vt_open(&p, &(struct vt_opts){ .channel = true });
	CHECK_EQ(ibv_req_notify_cq(p.b.rcq, 0), 0);
	puts("opened");
	CHECK_EQ(getchar(), '\n');
	one_message(1);
	rdma_disconnect(p.a.id);
	CHECK(!vt_readable(p.b.cc->fd, 200));
	CHECK(!vt_readable(p.b.ch->fd, 0));
	puts("down");
	CHECK(vt_readable(p.b.cc->fd, VT_PATIENCE));
	CHECK_EQ(ibv_get_cq_event(p.b.cc, &cq, &context), 0);
	CHECK(cq == p.b.rcq);
	ibv_ack_cq_events(cq, 1);
	over();
}

/* The device does not come back. */
static void gone(void)
{
	struct ibv_context *c = vt_open_device();
	struct ibv_pd *pd;

	CHECK(pd = ibv_alloc_pd(c));
	puts("opened");
	event(c, IBV_EVENT_DEVICE_FATAL);
	CHECK(!ibv_alloc_pd(c));
	ibv_dealloc_pd(pd);
	ibv_close_device(c);
}

/* The third registration has no memory, and the fourth has. */
static void nomem(void)
{
	static char buf[4096];
	struct ibv_context *c = vt_open_device();
	struct ibv_pd *pd = ibv_alloc_pd(c);
	struct ibv_mr *mr[4];
	int i;

	CHECK(pd);
	for (i = 0; i < 4; i++) {
		if (i == 2)
			CHECK_NULL(ibv_reg_mr(pd, buf, sizeof(buf), IBV_ACCESS_LOCAL_WRITE), ENOMEM);
		else
			CHECK(mr[i] = ibv_reg_mr(pd, buf, sizeof(buf), IBV_ACCESS_LOCAL_WRITE));
	}
	for (i = 0; i < 4; i++)
		if (i != 2)
			CHECK_EQ(ibv_dereg_mr(mr[i]), 0);
	CHECK_EQ(ibv_dealloc_pd(pd), 0);
	CHECK_EQ(ibv_close_device(c), 0);
}

/* Of each kind the first one fails whose call is $VT_CALL, and the one behind it is there. */
static void call(void)
{
	static char buf[4096];
	struct ibv_context *c = vt_open_device();
	struct ibv_srq_init_attr srq_attr = { .attr = { .max_wr = 4, .max_sge = 1 } };
	struct ibv_qp_init_attr attr = { .cap = { 4, 4, 1, 1, 0 }, .qp_type = IBV_QPT_RC };
	struct ibv_pd *pd;
	struct ibv_cq *cq;
	struct ibv_srq *srq;
	struct ibv_mr *mr;
	struct ibv_mw *mw;
	struct ibv_qp *qp;

#define MAKE(which, object, call)                                \
	do {                                                     \
		if (!strcmp(getenv("VT_CALL"), which))           \
			CHECK_NULL(call, asked("VT_WANT"));       \
		CHECK(object = call);                            \
	} while (0)
	CHECK(getenv("VT_CALL"));
	MAKE("alloc_pd", pd, ibv_alloc_pd(c));
	MAKE("create_cq", cq, ibv_create_cq(c, 8, NULL, NULL, 0));
	MAKE("create_srq", srq, ibv_create_srq(pd, &srq_attr));
	MAKE("reg_mr", mr, ibv_reg_mr(pd, buf, sizeof(buf), IBV_ACCESS_LOCAL_WRITE));
	MAKE("alloc_mw", mw, ibv_alloc_mw(pd, IBV_MW_TYPE_2));
	attr.send_cq = attr.recv_cq = cq;
	MAKE("create_qp", qp, ibv_create_qp(pd, &attr));
	CHECK_EQ(ibv_destroy_qp(qp), 0);
	CHECK_EQ(ibv_dealloc_mw(mw), 0);
	CHECK_EQ(ibv_dereg_mr(mr), 0);
	CHECK_EQ(ibv_destroy_srq(srq), 0);
	CHECK_EQ(ibv_destroy_cq(cq), 0);
	CHECK_EQ(ibv_dealloc_pd(pd), 0);
	CHECK_EQ(ibv_close_device(c), 0);
}

/* Of RoCE: what is asked for behind the first message is refused. */
static void nak(void)
{
	vt_open(&p, &(struct vt_opts){ 0 });
	one_message(1);
	vt_rdma(&p.a, 2, IBV_WR_RDMA_WRITE, 0, 64, &p.b, 0);
	vt_wc(p.a.scq, 2, asked("VT_WANT"), -1);
	CHECK(vt_state(p.a.qp) != IBV_QPS_RTS);
	vt_disconnect(&p);
	vt_free(&p);
}

/* The card sees the first request with the second. */
static void doorbell(void)
{
	vt_open(&p, &(struct vt_opts){ 0 });
	vt_rdma(&p.a, 1, IBV_WR_RDMA_WRITE, 0, 64, &p.b, 0);
	usleep(200000);
	vt_no_wc(p.a.scq);
	vt_rdma(&p.a, 2, IBV_WR_RDMA_WRITE, 64, 64, &p.b, 64);
	vt_wc(p.a.scq, 1, IBV_WC_SUCCESS, IBV_WC_RDMA_WRITE);
	vt_wc(p.a.scq, 2, IBV_WC_SUCCESS, IBV_WC_RDMA_WRITE);
	vt_close(&p);
}

/* The card sees a request so many milliseconds later. */
static void late(void)
{
	uint64_t begun;

	vt_open(&p, &(struct vt_opts){ 0 });
	begun = vt_now_ms();
	write_one(1, IBV_WC_SUCCESS);
	CHECK(vt_now_ms() - begun >= (uint64_t)asked("VT_WANT"));
	vt_close(&p);
}

/* A connection comes to an event, with a status; the one behind it is well. */
static void refused(enum rdma_cm_event_type want, int status)
{
	struct vt_opts o = { 0 };

	vt_listen(&p);
	vt_resolve(&p, &p.a, rdma_get_src_port(p.listen));
	vt_objects(&p.a, &o, false);
	vt_qp(&p.a, &o);
	CHECK_EQ(rdma_connect(p.a.id, &(struct rdma_conn_param){ .responder_resources = 1, .initiator_depth = 1 }), 0);
	vt_expect(p.a.ch, want, status);
	vt_no_event(p.lch);
	vt_free(&p);
	vt_open(&p, &o);
	one_message(1);
	vt_close(&p);
}

static void connecting(void)
{
	refused(asked("VT_EVENT"), asked("VT_WANT"));
}

/* What gives and takes keys: the window is bound, and what takes its key away fails. */
static void window(void)
{
	struct ibv_send_wr *bad, wr = { .wr_id = 1, .opcode = IBV_WR_BIND_MW, .send_flags = IBV_SEND_SIGNALED };
	struct ibv_mw *mw;

	vt_open(&p, &(struct vt_opts){ .access = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_MW_BIND });
	CHECK(mw = ibv_alloc_mw(p.a.pd, IBV_MW_TYPE_2));
	wr.bind_mw.mw = mw;
	wr.bind_mw.rkey = ibv_inc_rkey(mw->rkey);
	wr.bind_mw.bind_info = (struct ibv_mw_bind_info){ p.a.mr, (uintptr_t)p.a.buf, 4096, IBV_ACCESS_REMOTE_READ };
	CHECK_EQ(ibv_post_send(p.a.qp, &wr, &bad), 0);
	vt_wc(p.a.scq, 1, IBV_WC_SUCCESS, IBV_WC_BIND_MW);
	wr = (struct ibv_send_wr){ .wr_id = 2, .opcode = IBV_WR_LOCAL_INV, .send_flags = IBV_SEND_SIGNALED,
				   .invalidate_rkey = wr.bind_mw.rkey };
	CHECK_EQ(ibv_post_send(p.a.qp, &wr, &bad), 0);
	vt_wc(p.a.scq, 2, asked("VT_WANT"), -1);
	CHECK_EQ(ibv_dealloc_mw(mw), 0);
	over();
}

/* Of two connections one fails, whose queue pair is named, and of that what is no Read goes well. */
static void one_of_two(void)
{
	struct vt_pair other;

	vt_open(&other, &(struct vt_opts){ 0 });
	vt_open(&p, &(struct vt_opts){ 0 });
	printf("opened %u\n", p.a.qp->qp_num);
	CHECK_EQ(getchar(), '\n');
	vt_rdma(&other.a, 1, IBV_WR_RDMA_READ, 0, 64, &other.b, 0);
	vt_wc(other.a.scq, 1, IBV_WC_SUCCESS, IBV_WC_RDMA_READ);
	write_one(2, IBV_WC_SUCCESS);
	vt_rdma(&p.a, 3, IBV_WR_RDMA_READ, 0, 64, &p.b, 0);
	vt_wc(p.a.scq, 3, asked("VT_WANT"), -1);
	vt_rdma(&other.a, 4, IBV_WR_RDMA_READ, 0, 64, &other.b, 0);
	vt_wc(other.a.scq, 4, IBV_WC_SUCCESS, IBV_WC_RDMA_READ);
	over();
	vt_close(&other);
}

static struct ibv_pd *pd;

/* A registration succeeds, or it has no memory. */
static bool registers(void)
{
	static char buf[4096];
	struct ibv_mr *mr = ibv_reg_mr(pd, buf, sizeof(buf), IBV_ACCESS_LOCAL_WRITE);
	int why = errno;

	if (!mr) {
		CHECK_EQ(why, ENOMEM);
		return false;
	}
	CHECK_EQ(ibv_dereg_mr(mr), 0);
	return true;
}

/* Says which of a hundred registrations have failed. */
static void registrations(void)
{
	struct ibv_context *c = vt_open_device();
	int i;

	CHECK(pd = ibv_alloc_pd(c));
	for (i = 0; i < 100; i++)
		putchar(registers() ? '.' : 'x');
	putchar('\n');
	CHECK_EQ(ibv_dealloc_pd(pd), 0);
	CHECK_EQ(ibv_close_device(c), 0);
}

/* They fail $VT_AT milliseconds behind "opened" at the earliest, and go well $VT_FOR after that. */
static void from_to(void)
{
	struct ibv_context *c = vt_open_device();
	uint64_t begun = vt_now_ms(), until = begun + VT_PATIENCE;

	CHECK(pd = ibv_alloc_pd(c));
	puts("opened");
	while (registers())
		if (vt_now_ms() > until)
			FAIL("no registration fails");
	CHECK(vt_now_ms() - begun >= (uint64_t)asked("VT_AT"));
	while (!registers())
		if (vt_now_ms() > until)
			FAIL("no registration succeeds again");
	CHECK(vt_now_ms() - begun >= (uint64_t)(asked("VT_AT") + asked("VT_FOR")));
	CHECK_EQ(ibv_dealloc_pd(pd), 0);
	CHECK_EQ(ibv_close_device(c), 0);
}

static const struct vt_case cases[] = {
	{ "window", window }, { "one_of_two", one_of_two }, { "registrations", registrations }, { "from_to", from_to },
	{ "status", status }, { "received", received }, { "terminate", terminate }, { "ird", ird }, { "key", key },
	{ "keys", keys }, { "cq", cq }, { "port", port }, { "gid", gid }, { "fatal", fatal }, { "gone", gone },
	{ "quiet", quiet },
	{ "nomem", nomem }, { "nak", nak }, { "doorbell", doorbell },
	{ "connecting", connecting }, { "operation", operation }, { "call", call }, { "late", late },
	{ "cut", cut }, { "received_cq", received_cq }, { "cqs", cqs },
	{ NULL, NULL },
};

int main(int argc, char **argv)
{
	setlinebuf(stdout);
	return vt_main(argc, argv, cases);
}
