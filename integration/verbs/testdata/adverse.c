/*
 * What programs believe that the standards do not promise, and what they can do instead: "order" is
 * that completions of two queue pairs come in the order in which their requests were over, "events"
 * that an event says that there is a completion still, "numbers" that those of queue pairs are small.
 * A wrong case says "torn" if it was not so.
 */
#include "vt.h"

#define ROUNDS 40

static struct vt_pair p, q;
static struct ibv_cq *own; /* what q's a would have */

/* q's a has the completion queues of p's a. */
static void open_two(struct vt_opts o)
{
	struct rdma_conn_param param = { .responder_resources = 4, .initiator_depth = 4, .retry_count = 7,
					 .rnr_retry_count = 7 };
	struct rdma_cm_event *ev;

	vt_open(&p, &o);
	q.o = o;
	vt_listen(&q);
	vt_resolve(&q, &q.a, rdma_get_src_port(q.listen));
	vt_objects(&q.a, &o, false);
	own = q.a.scq;
	q.a.scq = p.a.scq;
	vt_qp(&q.a, &o);
	CHECK_EQ(rdma_connect(q.a.id, &param), 0);
	ev = vt_event(q.lch, RDMA_CM_EVENT_CONNECT_REQUEST);
	q.b.id = ev->id;
	rdma_ack_cm_event(ev);
	CHECK(q.b.ch = rdma_create_event_channel());
	CHECK_EQ(rdma_migrate_id(q.b.id, q.b.ch), 0);
	vt_objects(&q.b, &o, false);
	vt_qp(&q.b, &o);
	CHECK_EQ(rdma_accept(q.b.id, &param), 0);
	vt_expect(q.a.ch, RDMA_CM_EVENT_ESTABLISHED, 0);
	vt_expect(q.b.ch, RDMA_CM_EVENT_ESTABLISHED, 0);
}

static void close_two(void)
{
	vt_disconnect(&q);
	rdma_destroy_qp(q.a.id);
	q.a.qp = NULL;
	q.a.scq = own;
	vt_free(&q);
	vt_close(&p);
}

/* The octets of a Write of p are there before that of q is posted. */
static void write_two(int i)
{
	uint64_t late = vt_now_ms() + VT_PATIENCE;

	p.a.buf[0] = (char)i;
	vt_rdma(&p.a, 100 + i, IBV_WR_RDMA_WRITE, 0, 1, &p.b, 0);
	while (((volatile char *)p.b.buf)[0] != (char)i)
		if (vt_now_ms() > late)
			FAIL("the octet does not come");
	vt_rdma(&q.a, 200 + i, IBV_WR_RDMA_WRITE, 0, 1, &q.b, 0);
}

static void take_two(int i, struct ibv_wc *one, struct ibv_wc *two)
{
	write_two(i);
	*one = vt_poll(p.a.scq);
	*two = vt_poll(p.a.scq);
	CHECK(one->status == IBV_WC_SUCCESS && two->status == IBV_WC_SUCCESS);
}

static void order_wrong(void)
{
	struct ibv_wc one, two;
	int i;

	open_two((struct vt_opts){ 0 });
	for (i = 1; i <= ROUNDS; i++) {
		take_two(i, &one, &two);
		if (one.wr_id != (uint64_t)(100 + i)) {
			printf("torn\n");
			break;
		}
	}
	close_two();
}

/* By wr_id, or qp_num, in whatever order. */
static void order_right(void)
{
	struct ibv_wc one, two;
	int i;

	open_two((struct vt_opts){ 0 });
	for (i = 1; i <= ROUNDS; i++) {
		take_two(i, &one, &two);
		CHECK_EQ(one.wr_id + two.wr_id, 300 + 2 * i);
		CHECK((one.wr_id < 200) == (one.qp_num == p.a.qp->qp_num));
	}
	close_two();
}

static void take_event(void)
{
	struct ibv_cq *cq;
	void *context;

	CHECK_EQ(ibv_get_cq_event(p.a.cc, &cq, &context), 0);
	ibv_ack_cq_events(cq, 1);
}

static void write_armed(int i)
{
	CHECK_EQ(ibv_req_notify_cq(p.a.scq, 0), 0);
	vt_rdma(&p.a, i, IBV_WR_RDMA_WRITE, 0, 1, &p.b, 0);
}

/* The first is polled for, and its event taken if it is there already; the second is on its way. */
static void two_writes(int i)
{
	write_armed(i);
	vt_wc(p.a.scq, i, IBV_WC_SUCCESS, IBV_WC_RDMA_WRITE);
	usleep(1000);
	if (vt_readable(p.a.cc->fd, 0))
		take_event();
	write_armed(1000 + i);
}

/* It polls for one completion, takes the event of that if it is there, and waits for the next one's. */
static void events_wrong(void)
{
	struct ibv_wc wc;
	int i;

	vt_open(&p, &(struct vt_opts){ .channel = true });
	for (i = 1; i <= ROUNDS; i++) {
		two_writes(i);
		take_event();
		if (ibv_poll_cq(p.a.scq, 1, &wc) != 1) {
			printf("torn\n");
			vt_wc(p.a.scq, 1000 + i, IBV_WC_SUCCESS, IBV_WC_RDMA_WRITE);
			break;
		}
		CHECK_EQ(wc.status, IBV_WC_SUCCESS);
	}
	vt_close(&p);
}

/* An event says that it is time to poll, and nothing more. */
static void events_right(void)
{
	struct ibv_wc wc;
	int i;

	vt_open(&p, &(struct vt_opts){ .channel = true });
	for (i = 1; i <= ROUNDS; i++) {
		two_writes(i);
		for (;;) {
			take_event();
			CHECK_EQ(ibv_req_notify_cq(p.a.scq, 0), 0);
			if (ibv_poll_cq(p.a.scq, 1, &wc) == 1)
				break;
		}
		CHECK_EQ(wc.status, IBV_WC_SUCCESS);
	}
	vt_close(&p);
}

/* Both completions are of the pair that the function finds by a queue pair's number. */
static void find_two(struct vt_pair *(*find)(uint32_t qp_num))
{
	struct ibv_wc wc[2];
	int i;

	take_two(1, &wc[0], &wc[1]);
	for (i = 0; i < 2; i++)
		CHECK(find(wc[i].qp_num) == (wc[i].wr_id < 200 ? &p : &q));
}

#define NUMBERS 4096

static struct vt_pair *by_number[NUMBERS];

static struct vt_pair *of_table(uint32_t qp_num)
{
	return by_number[qp_num];
}

/* A table has a place for each queue pair that the program will ever have, it believes. */
static void numbers_wrong(void)
{
	open_two((struct vt_opts){ 0 });
	if (p.a.qp->qp_num >= NUMBERS || q.a.qp->qp_num >= NUMBERS) {
		puts("torn");
	} else {
		by_number[p.a.qp->qp_num] = &p;
		by_number[q.a.qp->qp_num] = &q;
		find_two(of_table);
	}
	close_two();
}

static struct vt_pair *of_search(uint32_t qp_num)
{
	return qp_num == p.a.qp->qp_num ? &p : &q;
}

static void numbers_right(void)
{
	open_two((struct vt_opts){ 0 });
	find_two(of_search);
	close_two();
}

static const struct vt_case cases[] = {
	{ "order_wrong", order_wrong }, { "order_right", order_right },
	{ "events_wrong", events_wrong }, { "events_right", events_right },
	{ "numbers_wrong", numbers_wrong }, { "numbers_right", numbers_right }, { NULL, NULL },
};

int main(int argc, char **argv)
{
	return vt_main(argc, argv, cases);
}
