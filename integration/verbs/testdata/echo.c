/*
 * echo serve|connect ADDR PORT N: sends back each of N messages of its peer's, and then waits for
 * the end of the connection. It sleeps between them in every second hundred of messages.
 */
#include <arpa/inet.h>

#include "vt.h"

#define DEPTH 8
#define LEN 8192

static struct rdma_cm_id *id;
static struct ibv_comp_channel *channel;
static struct ibv_cq *cq;
static struct ibv_mr *mr;
static char buf[DEPTH][LEN]; /* one for each receive, which its echo is sent from */

static struct rdma_cm_id *await(struct rdma_event_channel *ch, enum rdma_cm_event_type want)
{
	struct rdma_cm_event *ev;
	struct rdma_cm_id *of;

	CHECK_EQ(rdma_get_cm_event(ch, &ev), 0);
	CHECK_EQ(ev->event, want);
	of = ev->id;
	CHECK_EQ(rdma_ack_cm_event(ev), 0);
	return of;
}

static void post(uint64_t i)
{
	struct ibv_sge sge = { (uintptr_t)buf[i], LEN, mr->lkey };
	struct ibv_recv_wr wr = { .wr_id = i, .sg_list = &sge, .num_sge = 1 }, *bad;

	CHECK_EQ(ibv_post_recv(id->qp, &wr, &bad), 0);
}

static void make_qp(void)
{
	struct ibv_qp_init_attr attr = { .qp_type = IBV_QPT_RC, .cap = { DEPTH, DEPTH, 1, 1, 0 } };
	struct ibv_pd *pd = ibv_alloc_pd(id->verbs);

	CHECK(pd && (channel = ibv_create_comp_channel(id->verbs)));
	CHECK(cq = ibv_create_cq(id->verbs, 4 * DEPTH, NULL, channel, 0));
	attr.send_cq = attr.recv_cq = cq;
	CHECK_EQ(rdma_create_qp(id, pd, &attr), 0);
	CHECK(mr = ibv_reg_mr(pd, buf, sizeof(buf), IBV_ACCESS_LOCAL_WRITE));
	for (uint64_t i = 0; i < DEPTH; i++)
		post(i);
}

/* Its next completion; asleep until it comes, or not. */
static void next(struct ibv_wc *wc, bool asleep)
{
	struct ibv_cq *of;
	void *context;
	int n;

	while (!(n = ibv_poll_cq(cq, 1, wc))) {
		if (!asleep)
			continue;
		CHECK_EQ(ibv_req_notify_cq(cq, 0), 0);
		if ((n = ibv_poll_cq(cq, 1, wc)))
			break;
		CHECK_EQ(ibv_get_cq_event(channel, &of, &context), 0);
		ibv_ack_cq_events(of, 1);
	}
	CHECK_EQ(n, 1);
	CHECK_EQ(wc->status, IBV_WC_SUCCESS);
}

int main(int argc, char **argv)
{
	struct sockaddr_in at = { .sin_family = AF_INET };
	struct rdma_event_channel *ch = rdma_create_event_channel();
	struct rdma_conn_param param = { .responder_resources = 1, .initiator_depth = 1 };
	struct rdma_cm_id *listener = NULL;
	uint32_t echoed = 0, n;
	struct ibv_wc wc;

	CHECK(argc == 5 && ch && inet_pton(AF_INET, argv[2], &at.sin_addr) == 1);
	at.sin_port = htons(atoi(argv[3]));
	n = atoi(argv[4]);
	CHECK_EQ(rdma_create_id(ch, &id, NULL, RDMA_PS_TCP), 0);
	if (!strcmp(argv[1], "serve")) {
		listener = id;
		CHECK_EQ(rdma_bind_addr(listener, (struct sockaddr *)&at), 0);
		CHECK_EQ(rdma_listen(listener, 1), 0);
		id = await(ch, RDMA_CM_EVENT_CONNECT_REQUEST);
		make_qp();
		CHECK_EQ(rdma_accept(id, &param), 0);
	} else {
		CHECK_EQ(rdma_resolve_addr(id, NULL, (struct sockaddr *)&at, VT_PATIENCE), 0);
		await(ch, RDMA_CM_EVENT_ADDR_RESOLVED);
		CHECK_EQ(rdma_resolve_route(id, VT_PATIENCE), 0);
		await(ch, RDMA_CM_EVENT_ROUTE_RESOLVED);
		make_qp();
		CHECK_EQ(rdma_connect(id, &param), 0);
	}
	await(ch, RDMA_CM_EVENT_ESTABLISHED);
	while (echoed < n) {
		next(&wc, echoed / 100 % 2);
		if (wc.opcode == IBV_WC_RECV) {
			struct ibv_sge sge = { (uintptr_t)buf[wc.wr_id], wc.byte_len, mr->lkey };
			struct ibv_send_wr wr = { .wr_id = wc.wr_id, .sg_list = &sge, .num_sge = 1,
						  .opcode = IBV_WR_SEND, .send_flags = IBV_SEND_SIGNALED }, *bad;

			CHECK_EQ(ibv_post_send(id->qp, &wr, &bad), 0);
		} else { /* its memory can be received in again */
			post(wc.wr_id);
			echoed++;
		}
	}
	await(ch, RDMA_CM_EVENT_DISCONNECTED);
	puts("ok echo");
	return 0;
}
