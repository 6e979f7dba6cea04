/*
 * One end of a connection that does what it is told: commands come by the Unix socket that the
 * argument names, one a line, and some are answered by a line.
 *
 *   listen                    answers with the port
 *   accept SQ RQ INLINE HOW   takes a connection, with queues so deep; HOW: what of them (CONFIG_)
 *   connect PORT SQ RQ INLINE HOW
 *                             both answer with the QP's number, and the address and key of what the
 *                             peer may write to and read
 *   peer ADDR KEY             such of the peer's
 *   send OP ID OFF LEN FLAGS AT BAD SGES
 *                             adds a request to those that `post` posts together
 *   post
 *   recv ID LEN BAD           posts a receive
 *   poll N                    polls once, for up to N of each CQ
 *   want SENDS RECVS          polls until so many have completed since the beginning
 *   arm WHICH SOLICITED       asks for an event: of the CQ of sends, 0, or of receives, 1
 *   events N                  waits until so many have come since the beginning
 *   renew WHICH ACCESS HOW    registers an area of memory anew: HOW it does, RENEW_. Answers with the
 *                             address and key
 *   window TYPE ID            has the peer write to a window: such an answer
 *   revoke                    takes what the peer writes to back: the window, or the area
 *   pause                     stops sending, and begins again: SQD, and RTS
 *   error, disconnect         end the connection
 *   over                      waits for its end, and flushes what is outstanding
 *   report                    answers with what has happened since the last time
 *   close                     leaves nothing
 */
#include "vt.h"

#include <arpa/inet.h>
#include <stdarg.h>
#include <sys/socket.h>
#include <sys/un.h>

#define SLOT 16384 /* octets for a receive */
#define SLOTS 16
#define AREA (2 * SLOTS * SLOT)

enum { CONFIG_ONE_CQ = 1, CONFIG_SIGNAL_ALL = 2 };
enum { BAD_KEY = 1, BAD_BOUNDS, BAD_RIGHTS, BAD_REMOTE_KEY, BAD_REMOTE_BOUNDS,
       BAD_REMOTE_BELOW };
enum { RENEW_KEY, RENEW_ACCESS, RENEW_TRANSLATION };
enum { FROM, INTO, TARGET, ANSWERS, AREAS };

static FILE *in, *out;
static struct vt_pair pair;
static struct vt_side *s;
static char *area[AREAS];
static struct ibv_mr *mr[AREAS];
static struct ibv_mw *mw; /* of the target, for the peer */
static uint64_t peer_addr;
static uint32_t peer_key;
static struct ibv_send_wr wrs[64];
static struct ibv_sge sges[64][4];
static int nwrs, nrecv;
static bool sig_all, wrong;
static long got[2], events; /* sends, receives */
static struct log {
	char text[65536];
	size_t n;
} happened[2];

__attribute__((format(printf, 2, 3))) static void note(struct log *l, const char *format, ...)
{
	va_list ap;

	va_start(ap, format);
	l->n += vsnprintf(l->text + l->n, sizeof(l->text) - l->n, format, ap);
	va_end(ap);
	CHECK(l->n < sizeof(l->text));
}

__attribute__((format(printf, 1, 2))) static void answer(const char *format, ...)
{
	va_list ap;

	va_start(ap, format);
	vfprintf(out, format, ap);
	va_end(ap);
	fputc('\n', out);
	CHECK_EQ(fflush(out), 0);
}

/* That of any octet changes it. */
static uint64_t digest(const char *p, size_t n)
{
	uint64_t k, w, h = n;

	for (; n; n -= k, p += k) {
		k = n < sizeof(w) ? n : sizeof(w);
		w = 0;
		memcpy(&w, p, k);
		h = (h ^ w) * 0x100000001b3;
	}
	return h;
}

static void objects(int sq, int rq, int inl, int how)
{
	static const int access[AREAS] = {
		[INTO] = IBV_ACCESS_LOCAL_WRITE, [ANSWERS] = IBV_ACCESS_LOCAL_WRITE,
		[TARGET] = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ |
			   IBV_ACCESS_REMOTE_ATOMIC | IBV_ACCESS_MW_BIND,
	};
	struct vt_opts o = { .send_wr = sq, .recv_wr = rq, .inline_data = inl, .channel = true,
			     .one_cq = how & CONFIG_ONE_CQ, .unsignaled = !(how & CONFIG_SIGNAL_ALL) };
	int i;

	s->qpx = NULL;
	if (o.unsignaled) { /* by half of the calls */
		o.ex = true;
		o.send_ops = IBV_QP_EX_WITH_SEND | IBV_QP_EX_WITH_SEND_WITH_IMM | IBV_QP_EX_WITH_RDMA_WRITE |
			     IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM | IBV_QP_EX_WITH_RDMA_READ |
			     IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD | IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP;
	}

	sig_all = how & CONFIG_SIGNAL_ALL;
	vt_objects(s, &o, false);
	for (i = 0; i < AREAS; i++) {
		vt_fill(area[i], AREA, i);
		CHECK(mr[i] = ibv_reg_mr(s->pd, area[i], AREA, access[i]));
	}
	vt_qp(s, &o);
	nrecv = 0;
	wrong = false;
	got[0] = got[1] = events = 0;
}

/* Without end a Send waits for a receive of RoCE's, too. */
static const struct rdma_conn_param param = { .responder_resources = 16, .initiator_depth = 16,
					      .retry_count = 7, .rnr_retry_count = 7 };

static bool is_roce(void)
{
	return s->id->verbs->device->transport_type == IBV_TRANSPORT_IB;
}

static void opened(void)
{
	/* A Send that finds no receive is sent again after 0.01 ms: rdma_cm's queue pairs say 655 ms. */
	struct ibv_qp_attr a = { .qp_state = IBV_QPS_RTS, .min_rnr_timer = 1 };

	vt_expect(s->ch, RDMA_CM_EVENT_ESTABLISHED, 0);
	if (is_roce())
		CHECK_EQ(ibv_modify_qp(s->qp, &a, IBV_QP_STATE | IBV_QP_MIN_RNR_TIMER), 0);
	answer("%u %lu %u", s->qp->qp_num, (unsigned long)area[TARGET], mr[TARGET]->rkey);
}

static void accept_one(int sq, int rq, int inl, int how)
{
	struct rdma_conn_param p = param;
	struct rdma_cm_event *ev = vt_event(pair.lch, RDMA_CM_EVENT_CONNECT_REQUEST);

	s = &pair.b;
	s->id = ev->id;
	CHECK_EQ(rdma_ack_cm_event(ev), 0);
	CHECK(s->ch = rdma_create_event_channel());
	CHECK_EQ(rdma_migrate_id(s->id, s->ch), 0);
	objects(sq, rq, inl, how);
	CHECK_EQ(rdma_accept(s->id, &p), 0);
	opened();
}

static void connect_to(int port, int sq, int rq, int inl, int how)
{
	struct rdma_conn_param p = param;

	s = &pair.a;
	vt_resolve(&pair, s, htons(port));
	objects(sq, rq, inl, how);
	CHECK_EQ(rdma_connect(s->id, &p), 0);
	opened();
}

static long len_of(const struct ibv_sge *sge, int n)
{
	long sum = 0;

	while (n--)
		sum += sge[n].length;
	return sum;
}

static void add(char op, uint64_t id, long off, long len, int flags, long at, int bad, int n)
{
	struct ibv_send_wr *wr = &wrs[nwrs];
	struct ibv_sge *sge = sges[nwrs];
	bool answers = op == 'r' || op == 'f' || op == 'c';
	struct ibv_mr *m = mr[bad == BAD_RIGHTS ? FROM : answers ? ANSWERS : FROM];
	char *from = answers ? area[ANSWERS] : area[FROM];
	uint32_t key;
	int i;

	CHECK(nwrs < 64 && n <= 4);
	memset(wr, 0, sizeof(*wr));
	for (i = 0; i < n; i++) { /* the last has what is left */
		sge[i].addr = (uintptr_t)from + off;
		sge[i].length = i == n - 1 ? len : len / n;
		sge[i].lkey = bad == BAD_KEY ? m->lkey ^ 0x5500 : m->lkey;
		off += sge[i].length;
		len -= sge[i].length;
	}
	if (bad == BAD_BOUNDS)
		sge[n - 1].addr = (uintptr_t)from + AREA - sge[n - 1].length + 1;
	wr->wr_id = id;
	wr->sg_list = sge;
	wr->num_sge = n;
	wr->send_flags = flags;
	at = bad == BAD_REMOTE_BELOW ? -8 : at;
	if (bad == BAD_REMOTE_BOUNDS) /* but for what has to be aligned, by one */
		at = op == 'f' || op == 'c' ? AREA : AREA - len_of(sge, n) + 1;
	key = bad == BAD_REMOTE_KEY ? peer_key ^ 0x5500 : peer_key;
	wr->wr.rdma.remote_addr = peer_addr + at;
	wr->wr.rdma.rkey = key;
	switch (op) {
	case 's':
		wr->opcode = IBV_WR_SEND;
		break;
	case 'i':
		wr->opcode = IBV_WR_RDMA_WRITE_WITH_IMM;
		wr->imm_data = htonl(id);
		break;
	case 'm':
		wr->opcode = IBV_WR_SEND_WITH_IMM;
		wr->imm_data = htonl(id);
		break;
	case 'w':
		wr->opcode = IBV_WR_RDMA_WRITE;
		break;
	case 'r':
		wr->opcode = IBV_WR_RDMA_READ;
		break;
	case 'f':
	case 'c':
		wr->opcode = op == 'f' ? IBV_WR_ATOMIC_FETCH_AND_ADD : IBV_WR_ATOMIC_CMP_AND_SWP;
		wr->wr.atomic.remote_addr = peer_addr + at;
		wr->wr.atomic.rkey = key;
		wr->wr.atomic.compare_add = id;
		wr->wr.atomic.swap = ~id;
		break;
	default:
		FAIL("operation %c", op);
	}
	if (nwrs)
		wrs[nwrs - 1].next = wr;
	nwrs++;
}

static void call(struct ibv_qp_ex *ex, const struct ibv_send_wr *wr)
{
	ex->wr_id = wr->wr_id;
	ex->wr_flags = wr->send_flags & ~IBV_SEND_INLINE;
	switch (wr->opcode) {
	case IBV_WR_SEND:
		ibv_wr_send(ex);
		break;
	case IBV_WR_SEND_WITH_IMM:
		ibv_wr_send_imm(ex, wr->imm_data);
		break;
	case IBV_WR_RDMA_WRITE:
		ibv_wr_rdma_write(ex, wr->wr.rdma.rkey, wr->wr.rdma.remote_addr);
		break;
	case IBV_WR_RDMA_WRITE_WITH_IMM:
		ibv_wr_rdma_write_imm(ex, wr->wr.rdma.rkey, wr->wr.rdma.remote_addr, wr->imm_data);
		break;
	case IBV_WR_RDMA_READ:
		ibv_wr_rdma_read(ex, wr->wr.rdma.rkey, wr->wr.rdma.remote_addr);
		break;
	case IBV_WR_ATOMIC_FETCH_AND_ADD:
		ibv_wr_atomic_fetch_add(ex, wr->wr.atomic.rkey, wr->wr.atomic.remote_addr,
					wr->wr.atomic.compare_add);
		break;
	default:
		ibv_wr_atomic_cmp_swp(ex, wr->wr.atomic.rkey, wr->wr.atomic.remote_addr,
				      wr->wr.atomic.compare_add, wr->wr.atomic.swap);
	}
}

/* The same requests by ibv_wr_*: 0 or an errno, and then none is posted. */
static int post_by_calls(void)
{
	struct ibv_data_buf bufs[16];
	int i, k;

	ibv_wr_start(s->qpx);
	for (i = 0; i < nwrs; i++) {
		call(s->qpx, &wrs[i]);
		if (!(wrs[i].send_flags & IBV_SEND_INLINE)) {
			ibv_wr_set_sge_list(s->qpx, wrs[i].num_sge, wrs[i].sg_list);
			continue;
		}
		CHECK(wrs[i].num_sge <= 16);
		for (k = 0; k < wrs[i].num_sge; k++)
			bufs[k] = (struct ibv_data_buf){ (void *)(uintptr_t)wrs[i].sg_list[k].addr,
							 wrs[i].sg_list[k].length };
		ibv_wr_set_inline_data_list(s->qpx, wrs[i].num_sge, bufs);
	}
	return ibv_wr_complete(s->qpx);
}

static void post(void)
{
	static unsigned int calls;
	struct ibv_send_wr *bad = wrs;
	int err = s->qpx && calls++ % 2 ? post_by_calls() : ibv_post_send(s->qp, wrs, &bad);

	if (err)
		note(&happened[0], " post:%d at %lu", err, (unsigned long)bad->wr_id);
	nwrs = 0;
}

static void receive(uint64_t id, long len, int bad)
{
	struct ibv_sge sge = { (uintptr_t)area[INTO] + nrecv++ % SLOTS * SLOT, len, mr[INTO]->lkey };
	struct ibv_recv_wr wr = { .wr_id = id, .sg_list = &sge, .num_sge = 1 }, *b = NULL;
	int err;

	if (bad == BAD_KEY)
		sge.lkey ^= 0x5500;
	if (bad == BAD_BOUNDS)
		sge.addr = (uintptr_t)area[INTO] + AREA - len + 1;
	if (bad == BAD_RIGHTS)
		sge.lkey = mr[FROM]->lkey, sge.addr = (uintptr_t)area[FROM];
	err = ibv_post_recv(s->qp, &wr, &b);
	if (err)
		note(&happened[1], " post:%d", err);
}

static void completed(const struct ibv_wc *wc)
{
	bool recv = wc->opcode & IBV_WC_RECV;
	struct log *l = &happened[recv];

	CHECK_EQ(wc->qp_num, s->qp->qp_num);
	got[recv]++;
	note(l, " %lu", (unsigned long)wc->wr_id);
	if (wc->status) {
		wrong = true;
		note(l, ":%d/%x", wc->status, wc->vendor_err);
		return;
	}
	note(l, ":%x", wc->opcode);
	if (!recv)
		return;
	note(l, ":%u:%x:%x", wc->byte_len, wc->wc_flags, wc->wc_flags & IBV_WC_WITH_IMM ?
	     ntohl(wc->imm_data) : 0);
	if (wc->opcode == IBV_WC_RECV) /* wr_id counts receives: it says where it is */
		note(l, ":%lx", digest(area[INTO] + wc->wr_id % SLOTS * SLOT, wc->byte_len));
}

static int poll_once(int n)
{
	struct ibv_cq *cqs[2] = { s->scq, s->rcq };
	struct ibv_wc wc[16];
	int i, k, m, sum = 0;

	for (i = 0; i < (s->scq == s->rcq ? 1 : 2); i++) {
		memset(wc, 0xa5, sizeof(wc));
		m = ibv_poll_cq(cqs[i], n < 16 ? n : 16, wc);
		CHECK(m >= 0);
		for (k = 0; k < m; k++)
			completed(&wc[k]);
		sum += m;
	}
	return sum;
}

static const char *last(const struct log *l)
{
	return l->text + (l->n > 300 ? l->n - 300 : 0);
}

static void want(long sends, long recvs)
{
	uint64_t late = vt_now_ms() + VT_PATIENCE;
	unsigned int i;

	for (i = 1; !wrong && (got[0] < sends || got[1] < recvs); i++) {
		poll_once(16);
		if (i % 64 == 0 && vt_now_ms() > late)
			FAIL("%ld sends and %ld receives, want %ld and %ld; last:%s and%s", got[0], got[1],
			     sends, recvs, last(&happened[0]), last(&happened[1]));
	}
	answer(wrong ? "wrong" : "ok");
}

static void await_events(long n)
{
	struct ibv_cq *cq;
	void *ctx;

	while (events < n) {
		/* every other one is waited for in the library */
		if (events % 2 && !vt_readable(s->cc->fd, VT_PATIENCE))
			FAIL("%ld events, want %ld", events, n);
		CHECK_EQ(ibv_get_cq_event(s->cc, &cq, &ctx), 0);
		ibv_ack_cq_events(cq, 1);
		events++;
	}
	answer("ok");
}

static void to_error(void)
{
	struct ibv_qp_attr a = { .qp_state = IBV_QPS_ERR };

	CHECK_EQ(ibv_modify_qp(s->qp, &a, IBV_QP_STATE), 0);
}

static void pause_sending(void)
{
	struct ibv_qp_attr a = { .qp_state = IBV_QPS_SQD };

	CHECK_EQ(ibv_modify_qp(s->qp, &a, IBV_QP_STATE), 0);
	a.qp_state = IBV_QPS_RTS;
	CHECK_EQ(ibv_modify_qp(s->qp, &a, IBV_QP_STATE), 0);
	answer("ok");
}

/* Disconnects when something has gone wrong here. */
static void hang_up(void)
{
	uint64_t late = vt_now_ms() + VT_PATIENCE;

	while (!wrong && vt_state(s->qp) != IBV_QPS_ERR) {
		poll_once(16);
		CHECK(vt_now_ms() < late);
	}
	CHECK_EQ(rdma_disconnect(s->id), 0);
}

/* The last of each queue come last. */
static void over(void)
{
	uint64_t late = vt_now_ms() + VT_PATIENCE;
	struct ibv_recv_wr rwr = { .wr_id = 999999 }, *rbad;
	struct ibv_send_wr wr = { .wr_id = 999999, .opcode = IBV_WR_SEND, .send_flags = IBV_SEND_SIGNALED };
	struct ibv_send_wr *bad;
	int i;

	vt_expect(s->ch, RDMA_CM_EVENT_DISCONNECTED, 0);
	if (is_roce() && vt_state(s->qp) != IBV_QPS_ERR)
		to_error();
	while (vt_state(s->qp) != IBV_QPS_ERR)
		CHECK(vt_now_ms() < late);
	while (ibv_post_send(s->qp, &wr, &bad)) {
		poll_once(16); /* the queue was full */
		CHECK(vt_now_ms() < late);
	}
	while (ibv_post_recv(s->qp, &rwr, &rbad)) {
		poll_once(16);
		CHECK(vt_now_ms() < late);
	}
	while (!strstr(happened[0].text, " 999999:") || !strstr(happened[1].text, " 999999:")) {
		poll_once(16);
		CHECK(vt_now_ms() < late);
	}
	for (i = 0; i < 3; i++)
		poll_once(16);
	answer("ok");
}

static void report(void)
{
	int i;

	fprintf(out, "state %d sends%s recvs%s memory", vt_state(s->qp), happened[0].text,
		happened[1].text);
	for (i = 0; i < AREAS; i++)
		fprintf(out, " %lx", digest(area[i], AREA));
	answer(" ");
	for (i = 0; i < 2; i++) {
		happened[i].n = 0;
		happened[i].text[0] = 0;
	}
}

static void no_window(void)
{
	if (mw)
		CHECK_EQ(ibv_dealloc_mw(mw), 0);
	mw = NULL;
}

static void close_all(void)
{
	struct ibv_context *ctx = s->id->verbs;
	struct ibv_async_event ev;
	struct ibv_cq *cq;
	char told[200] = "";
	void *c;
	int i;

	while (vt_readable(s->cc->fd, 0) && !ibv_get_cq_event(s->cc, &cq, &c)) {
		ibv_ack_cq_events(cq, 1);
		events++;
	}
	while (vt_readable(ctx->async_fd, 0)) {
		CHECK_EQ(ibv_get_async_event(ctx, &ev), 0);
		snprintf(told + strlen(told), sizeof(told) - strlen(told), " %d", ev.event_type);
		ibv_ack_async_event(&ev);
	}
	rdma_destroy_qp(s->id);
	s->qp = NULL;
	no_window();
	for (i = 0; i < AREAS; i++)
		if (mr[i])
			CHECK_EQ(ibv_dereg_mr(mr[i]), 0);
	vt_free_side(s);
	answer("events %ld async%s", events, told);
}

static void take_back(void)
{
	if (mw) {
		no_window();
	} else {
		CHECK_EQ(ibv_dereg_mr(mr[TARGET]), 0);
		mr[TARGET] = NULL;
	}
	answer("ok");
}

static void renew(int which, int access, int how)
{
	if (which == TARGET)
		no_window();
	switch (how) {
	case RENEW_KEY:
		CHECK_EQ(ibv_dereg_mr(mr[which]), 0);
		CHECK(mr[which] = ibv_reg_mr(s->pd, area[which], AREA, access));
		break;
	case RENEW_ACCESS:
		CHECK_EQ(ibv_rereg_mr(mr[which], IBV_REREG_MR_CHANGE_ACCESS, NULL, NULL, 0, access), 0);
		break;
	default:
		CHECK_EQ(ibv_rereg_mr(mr[which], IBV_REREG_MR_CHANGE_TRANSLATION |
				      IBV_REREG_MR_CHANGE_ACCESS, NULL, area[which], AREA, access), 0);
	}
	answer("%lu %u", (unsigned long)area[which], mr[which]->rkey);
}

/* Nothing else is outstanding. */
static void window(int type, uint64_t id)
{
	struct ibv_mw_bind_info to = {
		.mr = mr[TARGET], .addr = (uintptr_t)area[TARGET], .length = AREA,
		.mw_access_flags = IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ |
				   IBV_ACCESS_REMOTE_ATOMIC,
	};
	struct ibv_send_wr wr = { .wr_id = id, .opcode = IBV_WR_BIND_MW,
				  .send_flags = IBV_SEND_SIGNALED }, *bad;
	struct ibv_mw_bind bind = { .wr_id = id, .send_flags = IBV_SEND_SIGNALED, .bind_info = to };
	uint64_t late = vt_now_ms() + VT_PATIENCE;
	long before = got[0];

	no_window();
	CHECK(mw = ibv_alloc_mw(s->pd, type));
	if (type == IBV_MW_TYPE_1) {
		CHECK_EQ(ibv_bind_mw(s->qp, mw, &bind), 0);
	} else {
		wr.bind_mw.mw = mw;
		wr.bind_mw.rkey = mw->rkey = ibv_inc_rkey(mw->rkey);
		wr.bind_mw.bind_info = to;
		CHECK_EQ(ibv_post_send(s->qp, &wr, &bad), 0);
	}
	while (got[0] == before) {
		poll_once(16);
		CHECK(vt_now_ms() < late);
	}
	answer("%lu %u", (unsigned long)area[TARGET], mw->rkey);
}

static void obey(const char *line)
{
	long a[8] = { 0 };
	char word[16], op = 0;
	int at = 0, i, n;

	CHECK(sscanf(line, "%15s%n", word, &at) == 1);
	if (!strcmp(word, "send")) {
		CHECK(sscanf(line + at, " %c%n", &op, &n) == 1);
		at += n;
	}
	for (i = 0; i < 8 && sscanf(line + at, "%ld%n", &a[i], &n) == 1; i++)
		at += n;
	if (op)
		add(op, a[0], a[1], a[2], a[3], a[4], a[5], a[6]);
	else if (!strcmp(word, "post"))
		post();
	else if (!strcmp(word, "recv"))
		receive(a[0], a[1], a[2]);
	else if (!strcmp(word, "poll"))
		poll_once(a[0]);
	else if (!strcmp(word, "want"))
		want(a[0], a[1]);
	else if (!strcmp(word, "arm"))
		CHECK_EQ(ibv_req_notify_cq(a[0] ? s->rcq : s->scq, a[1]), 0);
	else if (!strcmp(word, "events"))
		await_events(a[0]);
	else if (!strcmp(word, "renew"))
		renew(a[0], a[1], a[2]);
	else if (!strcmp(word, "window"))
		window(a[0], a[1]);
	else if (!strcmp(word, "revoke"))
		take_back();
	else if (!strcmp(word, "pause"))
		pause_sending();
	else if (!strcmp(word, "error"))
		to_error();
	else if (!strcmp(word, "disconnect"))
		CHECK_EQ(rdma_disconnect(s->id), 0);
	else if (!strcmp(word, "hang_up"))
		hang_up();
	else if (!strcmp(word, "over"))
		over();
	else if (!strcmp(word, "report"))
		report();
	else if (!strcmp(word, "close"))
		close_all();
	else if (!strcmp(word, "peer"))
		peer_addr = a[0], peer_key = a[1];
	else if (!strcmp(word, "accept"))
		accept_one(a[0], a[1], a[2], a[3]);
	else if (!strcmp(word, "connect"))
		connect_to(a[0], a[1], a[2], a[3], a[4]);
	else if (!strcmp(word, "listen"))
		vt_listen(&pair), answer("%u", ntohs(rdma_get_src_port(pair.listen)));
	else
		FAIL("what is %s?", word);
}

static void script(void)
{
	struct sockaddr_un to = { .sun_family = AF_UNIX };
	int i, fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
	char line[200];

	snprintf(to.sun_path, sizeof(to.sun_path), "%s", getenv("SCRIPT"));
	CHECK_EQ(connect(fd, (struct sockaddr *)&to, sizeof(to)), 0);
	CHECK(in = fdopen(fd, "r"));
	CHECK(out = fdopen(dup(fd), "w"));
	for (i = 0; i < AREAS; i++)
		CHECK(area[i] = aligned_alloc(4096, AREA));
	while (fgets(line, sizeof(line), in))
		obey(line);
	if (pair.listen)
		CHECK_EQ(rdma_destroy_id(pair.listen), 0);
	if (pair.lch)
		rdma_destroy_event_channel(pair.lch);
	for (i = 0; i < AREAS; i++)
		free(area[i]);
}

static const struct vt_case cases[] = { { "script", script }, {} };

int main(int argc, char **argv) { return vt_main(argc, argv, cases); }
