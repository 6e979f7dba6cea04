/* Work requests and what becomes of them. */
#include <arpa/inet.h>
#include <errno.h>
#include <inttypes.h>
#include <poll.h>
#include <string.h>

#include "probe.h"

/* recv CONN ID REGION OFF LEN */
int do_recv(void)
{
	struct conn *c = conn_of(1);
	struct region *r = c ? region_of(3) : NULL;
	struct ibv_sge sge;
	struct ibv_recv_wr wr = { .wr_id = num(2), .sg_list = &sge, .num_sge = 1 }, *bad;

	if (!r)
		return -1;
	sge = (struct ibv_sge){ .addr = (uintptr_t)r->buf + num(4), .length = num(5),
	    .lkey = r->mr->lkey };
	if ((errno = ibv_post_recv(c->qp, &wr, &bad)))
		return fail_errno("ibv_post_recv");
	say("ok");
	return 0;
}

/* post CONN OP FLAGS ID REGION OFF LEN ADDR RKEY [IMM COMPARE_ADD SWAP]: ADDR and RKEY of a
 * datagram are an AH and a QP number, and COMPARE_ADD the Q_Key */
int do_post(void)
{
	static const struct { const char *name; enum ibv_wr_opcode op; } ops[] = {
		{ "send", IBV_WR_SEND }, { "sendinv", IBV_WR_SEND_WITH_INV },
		{ "write", IBV_WR_RDMA_WRITE }, { "read", IBV_WR_RDMA_READ },
		{ "sendimm", IBV_WR_SEND_WITH_IMM }, { "writeimm", IBV_WR_RDMA_WRITE_WITH_IMM },
		{ "cas", IBV_WR_ATOMIC_CMP_AND_SWP }, { "faa", IBV_WR_ATOMIC_FETCH_AND_ADD },
	};
	const unsigned int n_ops = sizeof(ops) / sizeof(ops[0]);
	struct conn *c = conn_of(1);
	struct region *r = c ? region_of(5) : NULL;
	struct ibv_sge sge;
	struct ibv_send_wr *bad;
	struct ibv_send_wr wr = { .wr_id = num(4), .sg_list = &sge, .num_sge = 1, .send_flags = num(3) };
	unsigned int i = 0;

	if (!r)
		return -1;
	while (i < n_ops && strcmp(word(2), ops[i].name))
		i++;
	if (i == n_ops)
		return fail("no operation %s", word(2));
	wr.opcode = ops[i].op;
	sge = (struct ibv_sge){ .addr = (uintptr_t)r->buf + num(6), .length = num(7),
	    .lkey = r->mr->lkey };
	wr.imm_data = htonl(num(10));
	switch (wr.opcode) {
	case IBV_WR_ATOMIC_CMP_AND_SWP:
	case IBV_WR_ATOMIC_FETCH_AND_ADD:
		wr.wr.atomic.remote_addr = num(8);
		wr.wr.atomic.rkey = num(9);
		wr.wr.atomic.compare_add = num(11);
		wr.wr.atomic.swap = num(12);
		break;
	default:
		/* libsiw takes the STag of a Send with Invalidate from here, too. */
		wr.wr.rdma.remote_addr = num(8);
		wr.wr.rdma.rkey = num(9);
	}
	if (wr.opcode == IBV_WR_SEND_WITH_INV)
		wr.invalidate_rkey = num(9);
	if (c->qp->qp_type == IBV_QPT_UD) {
		if (num(8) >= MAX_AH || !ahs[num(8)])
			return fail("no AH %s", word(8));
		wr.wr.ud.ah = ahs[num(8)];
		wr.wr.ud.remote_qpn = num(9);
		wr.wr.ud.remote_qkey = num(11);
	}
	if ((errno = ibv_post_send(c->qp, &wr, &bad)))
		return fail_errno("ibv_post_send");
	say("ok");
	return 0;
}

/* poll CONN N MS: takes completions until there are N, or time is up:
 * "ok ID:STATUS:OPCODE:LEN:IMM:SRCQP:FLAGS ..." */
int do_poll(void)
{
	struct conn *c = conn_of(1);
	int want = num(2), got = 0, armed = 0;
	long until = now_ms() + num(3);

	if (!c)
		return -1;
	say("ok");
	while (got < want) {
		struct pollfd p = { .fd = c->channel->fd, .events = POLLIN };
		struct ibv_wc wc;
		struct ibv_cq *cq;
		void *ctx;
		int n = ibv_poll_cq(c->cq, 1, &wc);

		if (n < 0)
			return fail("ibv_poll_cq: %d", n);
		if (n > 0) {
			say(" %" PRIu64 ":%d:%d:%u:%u:%u:%u", wc.wr_id, wc.status, wc.opcode, wc.byte_len,
			    ntohl(wc.imm_data), wc.src_qp, wc.wc_flags);
			got++;
			continue;
		}
		if (!armed) {
			if (ibv_req_notify_cq(c->cq, 0))
				return fail_errno("ibv_req_notify_cq");
			armed = 1;
			continue;
		}
		if (until - now_ms() <= 0 || poll(&p, 1, until - now_ms()) <= 0)
			break;
		if (ibv_get_cq_event(c->channel, &cq, &ctx))
			return fail_errno("ibv_get_cq_event");
		ibv_ack_cq_events(cq, 1);
		armed = 0;
	}
	return 0;
}

/* async MS: "ok TYPE" of the next asynchronous event, "ok" if none comes */
int do_async(void)
{
	struct pollfd p = { .fd = verbs->async_fd, .events = POLLIN };
	struct ibv_async_event e;

	say("ok");
	if (poll(&p, 1, num(1)) <= 0)
		return 0;
	if (ibv_get_async_event(verbs, &e))
		return fail_errno("ibv_get_async_event");
	say(" %d", e.event_type);
	ibv_ack_async_event(&e);
	return 0;
}
