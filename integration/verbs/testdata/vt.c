/* What the test programs share: see vt.h. */
#include "vt.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <poll.h>
#include <stdarg.h>
#include <sys/mman.h>
#include <time.h>

struct sockaddr_storage vt_server, vt_client;
static const char *running = "main";

void vt_fail(const char *file, int line, const char *format, ...)
{
	char text[1000];
	va_list ap;

	va_start(ap, format);
	vsnprintf(text, sizeof(text), format, ap);
	va_end(ap);
	fflush(stdout);
	fprintf(stderr, "FAILED %s: %s:%d: %s\n", running, file, line, text);
	_exit(1);
}

static void parse_addr(const char *name, struct sockaddr_storage *ss)
{
	const char *text = getenv(name);
	struct sockaddr_in *sin = (struct sockaddr_in *)ss;
	struct sockaddr_in6 *sin6 = (struct sockaddr_in6 *)ss;

	if (!text)
		return;
	if (inet_pton(AF_INET, text, &sin->sin_addr) == 1)
		sin->sin_family = AF_INET;
	else if (inet_pton(AF_INET6, text, &sin6->sin6_addr) == 1)
		sin6->sin6_family = AF_INET6;
	else
		FAIL("%s=%s is no address", name, text);
}

int vt_main(int argc, char **argv, const struct vt_case *cases)
{
	const struct vt_case *c;
	int found = 0;

	setvbuf(stdout, NULL, _IOLBF, 0);
	parse_addr("VT_SERVER", &vt_server);
	parse_addr("VT_CLIENT", &vt_client);
	for (c = cases; c->name; c++) {
		bool wanted = argc < 2;

		for (int i = 1; i < argc; i++)
			wanted |= !strcmp(argv[i], c->name);
		if (!wanted)
			continue;
		found++;
		running = c->name;
		c->run();
		printf("ok %s\n", c->name);
	}
	if (found < argc - 1 || !found)
		FAIL("a case that does not exist");
	printf("all done\n");
	return 0;
}

uint64_t vt_now_ms(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_MONOTONIC, &ts);
	return ts.tv_sec * 1000ull + ts.tv_nsec / 1000000;
}

int vt_patience(void)
{
	const char *ms = getenv("VT_PATIENCE");

	return ms ? atoi(ms) : 30000;
}

bool vt_readable(int fd, int ms)
{
	struct pollfd p = { .fd = fd, .events = POLLIN };
	int n;

	do
		n = poll(&p, 1, ms);
	while (n < 0 && errno == EINTR);
	return n == 1;
}

struct sockaddr *vt_addr(const struct sockaddr_storage *ss, uint16_t port, struct sockaddr_storage *out)
{
	*out = *ss;
	if (ss->ss_family == AF_INET6)
		((struct sockaddr_in6 *)out)->sin6_port = port;
	else
		((struct sockaddr_in *)out)->sin_port = port;
	return (struct sockaddr *)out;
}

struct rdma_cm_event *vt_any_event(struct rdma_event_channel *ch)
{
	struct rdma_cm_event *ev;

	if (!vt_readable(ch->fd, VT_PATIENCE))
		FAIL("no event of the connection manager");
	CHECK_EQ(rdma_get_cm_event(ch, &ev), 0);
	return ev;
}

struct rdma_cm_event *vt_event(struct rdma_event_channel *ch, enum rdma_cm_event_type want)
{
	struct rdma_cm_event *ev = vt_any_event(ch);

	if (ev->event != want)
		FAIL("event %s with status %d, want %s", rdma_event_str(ev->event), ev->status, rdma_event_str(want));
	return ev;
}

void vt_expect(struct rdma_event_channel *ch, enum rdma_cm_event_type want, int status)
{
	struct rdma_cm_event *ev = vt_event(ch, want);

	CHECK_EQ(ev->status, status);
	CHECK_EQ(rdma_ack_cm_event(ev), 0);
}

void vt_no_event(struct rdma_event_channel *ch)
{
	if (vt_readable(ch->fd, 50)) {
		struct rdma_cm_event *ev = vt_any_event(ch);

		FAIL("event %s with status %d, want none", rdma_event_str(ev->event), ev->status);
	}
}

void vt_listen(struct vt_pair *p)
{
	struct sockaddr_storage ss;

	CHECK(p->lch = rdma_create_event_channel());
	CHECK_EQ(rdma_create_id(p->lch, &p->listen, p, RDMA_PS_TCP), 0);
	CHECK_EQ(rdma_bind_addr(p->listen, vt_addr(&vt_server, 0, &ss)), 0);
	CHECK_EQ(rdma_listen(p->listen, 16), 0);
}

void vt_resolve(struct vt_pair *p, struct vt_side *s, uint16_t port)
{
	struct sockaddr_storage src, dst;

	(void)p;
	CHECK(s->ch = rdma_create_event_channel());
	CHECK_EQ(rdma_create_id(s->ch, &s->id, s, RDMA_PS_TCP), 0);
	CHECK_EQ(rdma_resolve_addr(s->id, vt_addr(&vt_client, 0, &src), vt_addr(&vt_server, port, &dst), 2000), 0);
	vt_expect(s->ch, RDMA_CM_EVENT_ADDR_RESOLVED, 0);
	CHECK_EQ(rdma_resolve_route(s->id, 2000), 0);
	vt_expect(s->ch, RDMA_CM_EVENT_ROUTE_RESOLVED, 0);
}

#define OR(x, y) ((x) ? (x) : (y))

static struct ibv_cq *create_cq(struct vt_side *s, const struct vt_opts *o, struct ibv_cq_ex **ex)
{
	struct ibv_cq_init_attr_ex attr = { .cqe = OR(o->cqe, 256), .channel = s->cc, .cq_context = s, .wc_flags = o->wc_flags };
	struct ibv_cq *cq;

	if (o->ex) {
		CHECK(*ex = ibv_create_cq_ex(s->id->verbs, &attr));
		cq = ibv_cq_ex_to_cq(*ex);
	} else {
		CHECK(cq = ibv_create_cq(s->id->verbs, attr.cqe, s, s->cc, 0));
	}
	CHECK(cq->cqe >= (int)attr.cqe);
	return cq;
}

void vt_objects(struct vt_side *s, const struct vt_opts *o, bool srq)
{
	int access = OR(o->access, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ);

	CHECK(s->pd = ibv_alloc_pd(s->id->verbs));
	if (o->channel)
		CHECK(s->cc = ibv_create_comp_channel(s->id->verbs));
	s->scq = create_cq(s, o, &s->scqx);
	s->rcq = s->scq;
	s->rcqx = s->scqx;
	if (!o->one_cq)
		s->rcq = create_cq(s, o, &s->rcqx);
	if (srq) {
		struct ibv_srq_init_attr attr = { .srq_context = s,
						  .attr = { .max_wr = OR(o->recv_wr, 64), .max_sge = OR(o->recv_sge, 4) } };

		CHECK(s->srq = ibv_create_srq(s->pd, &attr));
	}
	s->len = OR(o->len, 65536);
	CHECK(s->buf = aligned_alloc(4096, (s->len + 4095) & ~4095ul));
	memset(s->buf, 0, s->len);
	CHECK(s->mr = ibv_reg_mr(s->pd, s->buf, s->len, access));
}

void vt_qp(struct vt_side *s, const struct vt_opts *o)
{
	struct ibv_qp_init_attr attr = {
		.qp_context = s, .send_cq = s->scq, .recv_cq = s->rcq, .srq = s->srq, .qp_type = IBV_QPT_RC,
		.cap = { OR(o->send_wr, 64), OR(o->recv_wr, 64), OR(o->send_sge, 4), OR(o->recv_sge, 4), OR(o->inline_data, 64) },
		.sq_sig_all = !o->unsignaled,
	};

	if (!o->ex) {
		CHECK_EQ(rdma_create_qp(s->id, s->pd, &attr), 0);
	} else {
		struct ibv_qp_init_attr_ex ex = {
			.qp_context = s, .send_cq = s->scq, .recv_cq = s->rcq, .srq = s->srq, .qp_type = IBV_QPT_RC,
			.cap = attr.cap, .comp_mask = IBV_QP_INIT_ATTR_PD, .pd = s->pd,
		};

		if (o->send_ops) {
			ex.comp_mask |= IBV_QP_INIT_ATTR_SEND_OPS_FLAGS;
			ex.send_ops_flags = o->send_ops;
		}
		CHECK_EQ(rdma_create_qp_ex(s->id, &ex), 0);
		if (o->send_ops)
			CHECK(s->qpx = ibv_qp_to_qp_ex(s->id->qp));
	}
	s->qp = s->id->qp;
}

void vt_open(struct vt_pair *p, const struct vt_opts *o)
{
	struct rdma_conn_param param = { .responder_resources = OR(o->ird, 16), .initiator_depth = OR(o->ord, 16),
					 .retry_count = o->retries, .rnr_retry_count = o->retries };
	struct rdma_cm_event *ev;
	struct ibv_cq *own;

	memset(p, 0, sizeof(*p));
	p->o = *o;
	vt_listen(p);
	vt_resolve(p, &p->a, rdma_get_src_port(p->listen));
	vt_objects(&p->a, o, false);
	vt_qp(&p->a, o);
	if (o->ack_timeout) {
		uint8_t code = (uint8_t)o->ack_timeout;

		CHECK_EQ(rdma_set_option(p->a.id, RDMA_OPTION_ID, RDMA_OPTION_ID_ACK_TIMEOUT, &code,
					 sizeof(code)), 0);
	}
	CHECK_EQ(rdma_connect(p->a.id, &param), 0);

	ev = vt_event(p->lch, RDMA_CM_EVENT_CONNECT_REQUEST);
	p->b.id = ev->id;
	CHECK(ev->listen_id == p->listen);
	CHECK_EQ(rdma_ack_cm_event(ev), 0);
	CHECK(p->b.ch = rdma_create_event_channel());
	CHECK_EQ(rdma_migrate_id(p->b.id, p->b.ch), 0);
	vt_objects(&p->b, o, o->srq);
	own = p->b.scq;
	if (o->crossed)
		p->b.scq = p->a.rcq;
	vt_qp(&p->b, o);
	p->b.scq = own;
	CHECK_EQ(rdma_accept(p->b.id, &param), 0);
	vt_expect(p->a.ch, RDMA_CM_EVENT_ESTABLISHED, 0);
	vt_expect(p->b.ch, RDMA_CM_EVENT_ESTABLISHED, 0);
}

void vt_disconnect(struct vt_pair *p)
{
	CHECK_EQ(rdma_disconnect(p->a.id), 0);
	vt_expect(p->a.ch, RDMA_CM_EVENT_DISCONNECTED, 0);
	vt_expect(p->b.ch, RDMA_CM_EVENT_DISCONNECTED, 0);
}

void vt_free_side(struct vt_side *s)
{
	if (s->qp)
		rdma_destroy_qp(s->id);
	if (s->srq)
		CHECK_EQ(ibv_destroy_srq(s->srq), 0);
	if (s->rcq && s->rcq != s->scq)
		CHECK_EQ(ibv_destroy_cq(s->rcq), 0);
	if (s->scq)
		CHECK_EQ(ibv_destroy_cq(s->scq), 0);
	if (s->cc)
		CHECK_EQ(ibv_destroy_comp_channel(s->cc), 0);
	if (s->mr)
		CHECK_EQ(ibv_dereg_mr(s->mr), 0);
	if (s->pd)
		CHECK_EQ(ibv_dealloc_pd(s->pd), 0);
	if (s->id)
		CHECK_EQ(rdma_destroy_id(s->id), 0);
	if (s->ch)
		rdma_destroy_event_channel(s->ch);
	free(s->buf);
	memset(s, 0, sizeof(*s));
}

void vt_free(struct vt_pair *p)
{
	vt_free_side(&p->a);
	vt_free_side(&p->b);
	if (p->listen)
		CHECK_EQ(rdma_destroy_id(p->listen), 0);
	if (p->lch)
		rdma_destroy_event_channel(p->lch);
	memset(p, 0, sizeof(*p));
}

void vt_close(struct vt_pair *p)
{
	vt_disconnect(p);
	vt_free(p);
}

static uint8_t octet(size_t i, uint32_t seed)
{
	uint32_t x = (uint32_t)(i / 4) * 2654435761u + seed * 40503u + (uint32_t)i;

	return x >> 24 ^ x >> 9 ^ x;
}

void vt_fill(void *p, size_t n, uint32_t seed)
{
	for (size_t i = 0; i < n; i++)
		((uint8_t *)p)[i] = octet(i, seed);
}

void vt_verify(const void *p, size_t n, uint32_t seed)
{
	for (size_t i = 0; i < n; i++)
		if (((const uint8_t *)p)[i] != octet(i, seed))
			FAIL("octet %zu of %zu is %02x, want %02x (seed %u)", i, n, ((const uint8_t *)p)[i],
			     octet(i, seed), seed);
}

struct ibv_sge vt_sge(const struct vt_side *s, size_t off, uint32_t n)
{
	return (struct ibv_sge){ (uintptr_t)s->buf + off, n, s->mr->lkey };
}

int vt_try_send(struct vt_side *s, uint64_t id, enum ibv_wr_opcode op, size_t off, uint32_t n, int flags, uint64_t raddr,
		uint32_t rkey)
{
	struct ibv_sge sge = vt_sge(s, off, n);
	struct ibv_send_wr wr = { .wr_id = id, .sg_list = &sge, .num_sge = 1, .opcode = op, .send_flags = flags }, *bad = NULL;
	int err;

	wr.wr.rdma.remote_addr = raddr;
	wr.wr.rdma.rkey = rkey;
	err = ibv_post_send(s->qp, &wr, &bad);
	if (err)
		CHECK(bad == &wr);
	return err;
}

void vt_send(struct vt_side *s, uint64_t id, size_t off, uint32_t n)
{
	CHECK_EQ(vt_try_send(s, id, IBV_WR_SEND, off, n, IBV_SEND_SIGNALED, 0, 0), 0);
}

void vt_rdma(struct vt_side *s, uint64_t id, enum ibv_wr_opcode op, size_t off, uint32_t n, const struct vt_side *peer,
	     size_t roff)
{
	CHECK_EQ(vt_try_send(s, id, op, off, n, IBV_SEND_SIGNALED, (uintptr_t)peer->buf + roff, peer->mr->rkey), 0);
}

void vt_recv(struct vt_side *s, uint64_t id, size_t off, uint32_t n)
{
	struct ibv_sge sge = vt_sge(s, off, n);
	struct ibv_recv_wr wr = { .wr_id = id, .sg_list = &sge, .num_sge = 1 }, *bad;

	if (s->srq)
		CHECK_EQ(ibv_post_srq_recv(s->srq, &wr, &bad), 0);
	else
		CHECK_EQ(ibv_post_recv(s->qp, &wr, &bad), 0);
}

struct ibv_wc vt_poll(struct ibv_cq *cq)
{
	uint64_t late = vt_now_ms() + VT_PATIENCE;
	struct ibv_wc wc;
	int n;

	for (unsigned i = 0;; i++) {
		memset(&wc, 0xa5, sizeof(wc));
		n = ibv_poll_cq(cq, 1, &wc);
		if (n == 1)
			return wc;
		if (n < 0)
			FAIL("ibv_poll_cq returns %d", n);
		if (i % 64 == 63 && vt_now_ms() > late)
			FAIL("no completion");
	}
}

struct ibv_wc vt_wc(struct ibv_cq *cq, uint64_t id, enum ibv_wc_status status, int opcode)
{
	struct ibv_wc wc = vt_poll(cq);

	if (wc.wr_id != id || wc.status != status || (status == IBV_WC_SUCCESS && opcode >= 0 && wc.opcode != (enum ibv_wc_opcode)opcode))
		FAIL("completion of %llu: %s, opcode %d, vendor_err %#x; want %llu: %s, opcode %d", (unsigned long long)wc.wr_id,
		     ibv_wc_status_str(wc.status), wc.opcode, wc.vendor_err, (unsigned long long)id, ibv_wc_status_str(status),
		     opcode);
	return wc;
}

void vt_no_wc(struct ibv_cq *cq)
{
	uint64_t until = vt_now_ms() + 50;
	struct ibv_wc wc;

	do {
		int n = ibv_poll_cq(cq, 1, &wc);

		if (n > 0)
			FAIL("completion of %llu: %s, want none", (unsigned long long)wc.wr_id, ibv_wc_status_str(wc.status));
		CHECK_EQ(n, 0);
	} while (vt_now_ms() < until);
}

void vt_async(struct ibv_qp *qp, enum ibv_event_type want)
{
	for (;;) {
		struct ibv_async_event ev;
		bool mine;

		if (!vt_readable(qp->context->async_fd, VT_PATIENCE))
			FAIL("no asynchronous event, want %s", ibv_event_type_str(want));
		CHECK_EQ(ibv_get_async_event(qp->context, &ev), 0);
		mine = ev.element.qp == qp;
		ibv_ack_async_event(&ev);
		if (mine && ev.event_type == want)
			return;
		if (mine)
			FAIL("asynchronous event %s, want %s", ibv_event_type_str(ev.event_type), ibv_event_type_str(want));
	}
}

void vt_drain_async(struct ibv_context *ctx)
{
	struct ibv_async_event ev;

	while (vt_readable(ctx->async_fd, 50)) {
		CHECK_EQ(ibv_get_async_event(ctx, &ev), 0);
		ibv_ack_async_event(&ev);
	}
}

int vt_state(struct ibv_qp *qp)
{
	struct ibv_qp_attr a;
	struct ibv_qp_init_attr init;

	CHECK_EQ(ibv_query_qp(qp, &a, IBV_QP_STATE, &init), 0);
	return a.qp_state;
}

struct ibv_context *vt_open_device(void)
{
	struct ibv_device **list = ibv_get_device_list(NULL);
	struct ibv_context *ctx;

	CHECK(list && list[0]);
	CHECK(ctx = ibv_open_device(list[0]));
	ibv_free_device_list(list);
	return ctx;
}

void vt_meet(struct vt_pair *p, struct vt_side *s, bool server, const struct vt_opts *o,
	     volatile uint64_t *port)
{
	struct rdma_conn_param param = { .responder_resources = 16, .initiator_depth = 16 };
	struct rdma_cm_event *ev;

	if (server) {
		if (!p->listen) {
			vt_listen(p);
			*port = rdma_get_src_port(p->listen);
		}
		ev = vt_event(p->lch, RDMA_CM_EVENT_CONNECT_REQUEST);
		s->id = ev->id;
		CHECK_EQ(rdma_ack_cm_event(ev), 0);
		CHECK(s->ch = rdma_create_event_channel());
		CHECK_EQ(rdma_migrate_id(s->id, s->ch), 0);
	} else {
		while (!*port)
			usleep(1000);
		vt_resolve(p, s, *port);
	}
	vt_objects(s, o, false);
	vt_qp(s, o);
	CHECK_EQ(server ? rdma_accept(s->id, &param) : rdma_connect(s->id, &param), 0);
	vt_expect(s->ch, RDMA_CM_EVENT_ESTABLISHED, 0);
}

void *vt_record(size_t n)
{
	int fd = open(getenv("RECORD"), O_RDWR | O_CLOEXEC);
	void *p;

	parse_addr("VT_SERVER", &vt_server);
	parse_addr("VT_CLIENT", &vt_client);
	CHECK(fd >= 0);
	CHECK((p = mmap(NULL, n, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0)) != MAP_FAILED);
	CHECK_EQ(close(fd), 0);
	return p;
}
