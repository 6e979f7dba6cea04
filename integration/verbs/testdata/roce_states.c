/* Which attributes each step of a queue pair of RoCE wants, what they may be, and what may be posted when. */
#include "roce.h"

/* A modify that is refused leaves all as it was. */
static void refused(struct end *e, struct ibv_qp_attr attr, int mask, int want)
{
	struct ibv_qp_attr before = query(e->qp), after;

	CHECK_EQ(ibv_modify_qp(e->qp, &attr, mask), want);
	after = query(e->qp);
	CHECK(!memcmp(&before, &after, sizeof(before)));
}

/* Each step wants what it requires and takes what is optional, and nothing else. */
static void transitions(void)
{
	static const enum ibv_qp_type types[] = { IBV_QPT_RC, IBV_QPT_UC, IBV_QPT_UD };
	static const enum ibv_qp_state from[] = { IBV_QPS_RESET, IBV_QPS_INIT, IBV_QPS_RTR, IBV_QPS_RTS, IBV_QPS_SQD };
	struct ibv_qp_attr attr;

	open_ends();
	new_qp(&b, IBV_QPT_RC);
	attr = good(&b, b.qp->qp_num, PSN_A, PSN_B);
	for (size_t t = 0; t < 3; t++) {
		for (size_t f = 0; f < 5; f++) {
			for (int to = IBV_QPS_INIT; to <= IBV_QPS_SQE; to++) {
				const struct step *s = find_step(types[t], from[f], to);

				new_qp(&a, types[t]);
				advance(&a, attr, from[f]);
				attr.qp_state = to;
				attr.cur_qp_state = from[f];
				for (int bit = 1; bit <= 20; bit++) {
					int m = 1 << bit, mask = IBV_QP_STATE | (s ? s->required : 0);

					if (s && s->optional & m)
						continue;
					refused(&a, attr, mask ^ m, EINVAL);
				}
				if (!s) {
					refused(&a, attr, IBV_QP_STATE, EINVAL);
					drop(&a);
					continue;
				}
				/* Nobody has an alternate path. */
				if (s->optional & ALT)
					refused(&a, attr, IBV_QP_STATE | s->required | ALT, EINVAL);
				CHECK_EQ(ibv_modify_qp(a.qp, &attr, IBV_QP_STATE | s->required | (s->optional & ~ALT)), 0);
				CHECK_EQ(a.qp->state, to);
				CHECK_EQ(query(a.qp).qp_state, to);
				drop(&a);
			}
		}
	}
	drop(&b);
	close_ends();
}

/* What the attributes may be. */
static void values(void)
{
	struct ibv_device_attr dev;
	struct ibv_port_attr port;
	struct ibv_qp_attr attr, bad;
	int rtr, rts;

	open_ends();
	CHECK_EQ(ibv_query_device(a.ctx, &dev), 0);
	CHECK_EQ(ibv_query_port(a.ctx, 1, &port), 0);
	new_qp(&b, IBV_QPT_RC);
	attr = good(&b, b.qp->qp_num, PSN_A, PSN_B);
	new_qp(&a, IBV_QPT_RC);
#define WRONG(field, value, mask, want)                        \
	do {                                                   \
		bad = attr;                                    \
		bad.field = (value);                           \
		refused(&a, bad, (mask), (want));              \
	} while (0)
	attr.qp_state = IBV_QPS_INIT;
	WRONG(port_num, 0, IBV_QP_STATE | PKEY | PORT | ACC, EINVAL);
	WRONG(port_num, 2, IBV_QP_STATE | PKEY | PORT | ACC, EINVAL);
	WRONG(pkey_index, 1, IBV_QP_STATE | PKEY | PORT | ACC, EINVAL);
	advance(&a, attr, IBV_QPS_INIT);
	attr.qp_state = IBV_QPS_RTR;
	rtr = IBV_QP_STATE | find_step(IBV_QPT_RC, IBV_QPS_INIT, IBV_QPS_RTR)->required;
	WRONG(path_mtu, 0, rtr, EINVAL);
	WRONG(path_mtu, 6, rtr, EINVAL);
	if (port.active_mtu < IBV_MTU_4096)
		WRONG(path_mtu, port.active_mtu + 1, rtr, EINVAL);
	WRONG(min_rnr_timer, 32, rtr, EINVAL);
	WRONG(max_dest_rd_atomic, dev.max_qp_rd_atom + 1, rtr, EINVAL);
	WRONG(ah_attr.is_global, 0, rtr, EINVAL);
	WRONG(ah_attr.port_num, 0, rtr, EINVAL);
	WRONG(ah_attr.port_num, 2, rtr, EINVAL);
	WRONG(ah_attr.grh.sgid_index, port.gid_tbl_len - 1, rtr, EINVAL);
	/* PSNs have 24 bits, and so has the number of a QP; dlid means nothing. */
	attr.rq_psn |= 0xab000000;
	attr.dest_qp_num |= 0xcd000000;
	attr.ah_attr.dlid = 77;
	CHECK_EQ(go(&a, IBV_QPS_RTR, attr), 0);
	CHECK_EQ(query(a.qp).rq_psn, PSN_B);
	CHECK_EQ(query(a.qp).dest_qp_num, b.qp->qp_num);
	attr.qp_state = IBV_QPS_RTS;
	rts = IBV_QP_STATE | find_step(IBV_QPT_RC, IBV_QPS_RTR, IBV_QPS_RTS)->required;
	WRONG(timeout, 32, rts, EINVAL);
	WRONG(retry_cnt, 8, rts, EINVAL);
	WRONG(rnr_retry, 8, rts, EINVAL);
	WRONG(max_rd_atomic, dev.max_qp_init_rd_atom + 1, rts, EINVAL);
	WRONG(cur_qp_state, IBV_QPS_INIT, rts | CUR, EINVAL);
	attr.sq_psn |= 0xef000000;
	CHECK_EQ(go(&a, IBV_QPS_RTS, attr), 0);
	CHECK_EQ(query(a.qp).sq_psn, PSN_A);
	drop(&a);
	drop(&b);
	close_ends();
}

/* Nobody answers for the address: the step fails, and the QP stays where it was. */
static void nobody_there(void)
{
	struct ibv_qp_attr attr, after;
	int err;

	open_ends();
	new_qp(&a, IBV_QPT_RC);
	attr = good(&b, 0x1234, PSN_A, PSN_B);
	attr.ah_attr.grh.dgid.raw[15] = 200;
	advance(&a, attr, IBV_QPS_INIT);
	attr.qp_state = IBV_QPS_RTR;
	err = ibv_modify_qp(a.qp, &attr, IBV_QP_STATE | find_step(IBV_QPT_RC, IBV_QPS_INIT, IBV_QPS_RTR)->required);
	CHECK(err == EHOSTUNREACH || err == ETIMEDOUT || err == ENETUNREACH);
	after = query(a.qp);
	CHECK_EQ(after.qp_state, IBV_QPS_INIT);
	drop(&a);
	close_ends();
}

/* Which state takes what. */
static void posting(void)
{
	struct ibv_qp_attr attr, reset = { .qp_state = IBV_QPS_RESET }, err = { .qp_state = IBV_QPS_ERR };
	struct ibv_send_wr wr[3] = { 0 }, *bad;
	struct ibv_sge sge[3];

	open_ends();
	new_qp(&b, IBV_QPT_RC);
	new_qp(&a, IBV_QPT_RC);
	attr = good(&b, b.qp->qp_num, PSN_A, PSN_B);
	CHECK_EQ(post_recv(&a, 1, 64), EINVAL);
	CHECK_EQ(post(&a, 1, IBV_WR_SEND, 64), EINVAL);
	refused(&a, err, IBV_QP_STATE, EINVAL);
	CHECK_EQ(go(&a, IBV_QPS_INIT, attr), 0);
	CHECK_EQ(post_recv(&a, 2, 64), 0);
	CHECK_EQ(post(&a, 2, IBV_WR_SEND, 64), EINVAL);
	CHECK_EQ(go(&a, IBV_QPS_RTR, attr), 0);
	CHECK_EQ(post_recv(&a, 3, 64), 0);
	CHECK_EQ(post(&a, 3, IBV_WR_SEND, 64), EINVAL);
	/* RESET forgets it all, and there is room for as many as before. */
	CHECK_EQ(ibv_modify_qp(a.qp, &reset, IBV_QP_STATE), 0);
	CHECK_EQ(query(a.qp).qp_state, IBV_QPS_RESET);
	CHECK_EQ(query(a.qp).dest_qp_num, 0);
	vt_no_wc(a.rcq);
	advance(&a, attr, IBV_QPS_RTS);
	advance(&b, good(&a, a.qp->qp_num, PSN_B, PSN_A), IBV_QPS_RTS);
	for (int i = 0; i < 8; i++)
		CHECK_EQ(post_recv(&a, 10 + i, 64), 0);
	CHECK_EQ(post_recv(&a, 18, 64), ENOMEM);
	/* A list is posted up to the bad one. */
	for (int i = 0; i < 3; i++) {
		sge[i] = sge_of(&a, 0, 16);
		wr[i] = (struct ibv_send_wr){ .wr_id = 20 + i, .opcode = IBV_WR_SEND, .sg_list = sge, .num_sge = i == 1 ? 40 : 1,
					      .next = i < 2 ? &wr[i + 1] : NULL };
		CHECK_EQ(post_recv(&b, 30 + i, 64), 0);
	}
	CHECK_EQ(ibv_post_send(a.qp, wr, &bad), EINVAL);
	CHECK(bad == &wr[1]);
	vt_wc(a.scq, 20, IBV_WC_SUCCESS, IBV_WC_SEND);
	vt_wc(b.rcq, 30, IBV_WC_SUCCESS, IBV_WC_RECV);
	wr[0].next = NULL;
	wr[0].send_flags = IBV_SEND_INLINE;
	sge[0].length = 1 << 20;
	CHECK_EQ(ibv_post_send(a.qp, wr, &bad), EINVAL);
	wr[0] = (struct ibv_send_wr){ .opcode = IBV_WR_ATOMIC_FETCH_AND_ADD, .sg_list = sge, .num_sge = 1 };
	sge[0].length = 8;
	wr[0].wr.atomic.remote_addr = (uintptr_t)b.buf + 4;
	CHECK_EQ(ibv_post_send(a.qp, wr, &bad), EINVAL);
	/* ERR: what was posted flushes, once each and in order, and so does what is posted then. */
	CHECK_EQ(ibv_modify_qp(a.qp, &err, IBV_QP_STATE), 0);
	for (int i = 0; i < 8; i++)
		vt_wc(a.rcq, 10 + i, IBV_WC_WR_FLUSH_ERR, 0);
	CHECK_EQ(post(&a, 40, IBV_WR_SEND, 64), 0);
	CHECK_EQ(post_recv(&a, 41, 64), 0);
	vt_wc(a.scq, 40, IBV_WC_WR_FLUSH_ERR, 0);
	vt_wc(a.rcq, 41, IBV_WC_WR_FLUSH_ERR, 0);
	CHECK_EQ(ibv_modify_qp(a.qp, &err, IBV_QP_STATE), 0);
	attr.qp_state = IBV_QPS_INIT;
	refused(&a, attr, IBV_QP_STATE | PKEY | PORT | ACC, EINVAL);
	CHECK_EQ(ibv_modify_qp(a.qp, &reset, IBV_QP_STATE), 0);
	part();
	close_ends();
}

/* What a query says is what was set, and the state of now. */
static void queries(void)
{
	struct ibv_qp_init_attr init;
	struct ibv_qp_attr got;

	open_ends();
	join(IBV_QPT_RC);
	CHECK_EQ(ibv_query_qp(a.qp, &got, IBV_QP_STATE, &init), 0);
	CHECK_EQ(got.qp_state, IBV_QPS_RTS);
	CHECK_EQ(got.cur_qp_state, IBV_QPS_RTS);
	CHECK_EQ(got.path_mtu, IBV_MTU_1024);
	CHECK_EQ(got.dest_qp_num, b.qp->qp_num);
	CHECK_EQ(got.rq_psn, PSN_B);
	CHECK_EQ(got.sq_psn, PSN_A);
	CHECK_EQ(got.max_rd_atomic, 4);
	CHECK_EQ(got.max_dest_rd_atomic, 4);
	CHECK_EQ(got.min_rnr_timer, 12);
	CHECK_EQ(got.timeout, 14);
	CHECK_EQ(got.retry_cnt, 7);
	CHECK_EQ(got.rnr_retry, 7);
	CHECK_EQ(got.port_num, 1);
	CHECK_EQ(got.ah_attr.is_global, 1);
	CHECK_EQ(got.ah_attr.grh.sgid_index, GID_INDEX);
	CHECK(!memcmp(&got.ah_attr.grh.dgid, &b.gid, sizeof(b.gid)));
	CHECK_EQ(got.sq_draining, 0);
	CHECK(got.cap.max_send_wr >= 8 && got.cap.max_recv_wr >= 8 && got.cap.max_inline_data >= 64);
	CHECK(init.send_cq == a.scq && init.recv_cq == a.rcq && init.qp_type == IBV_QPT_RC && init.sq_sig_all);
	/* Each packet moves the PSNs on. */
	CHECK_EQ(post_recv(&b, 1, 4096), 0);
	CHECK_EQ(post(&a, 2, IBV_WR_SEND, 3000), 0);
	vt_wc(a.scq, 2, IBV_WC_SUCCESS, IBV_WC_SEND);
	vt_wc(b.rcq, 1, IBV_WC_SUCCESS, IBV_WC_RECV);
	CHECK_EQ(query(a.qp).sq_psn, (PSN_A + 3) & 0xffffff);
	CHECK_EQ(query(b.qp).rq_psn, (PSN_A + 3) & 0xffffff);
	part();
	close_ends();
}

/* What can be made, and what not. */
static void creation(void)
{
	struct ibv_qp_init_attr attr = { 0 };
	struct ibv_qp_init_attr_ex ex = { .qp_type = IBV_QPT_UC };
	struct ibv_device_attr dev;
	uint32_t nums[50];
	struct ibv_qp *qps[50];

	open_ends();
	CHECK_EQ(ibv_query_device(a.ctx, &dev), 0);
	attr.send_cq = a.scq;
	attr.recv_cq = a.rcq;
	attr.qp_type = IBV_QPT_RC;
	attr.cap.max_send_wr = 1 << 30;
	CHECK(!ibv_create_qp(a.pd, &attr) && (errno == EINVAL || errno == ENOMEM));
	attr.cap.max_send_wr = 3;
	attr.cap.max_inline_data = 40;
	for (int i = 0; i < 50; i++) {
		CHECK(qps[i] = ibv_create_qp(a.pd, &attr));
		nums[i] = qps[i]->qp_num;
		CHECK(nums[i] > 1 && nums[i] < 0xffffff);
		for (int k = 0; k < i; k++)
			CHECK(nums[k] != nums[i]);
	}
	CHECK(attr.cap.max_send_wr >= 3 && attr.cap.max_inline_data >= 40);
	for (int i = 0; i < 50; i++)
		CHECK_EQ(ibv_destroy_qp(qps[i]), 0);
	for (int t = IBV_QPT_RAW_PACKET; t <= IBV_QPT_XRC_RECV; t++) {
		attr.qp_type = t;
		CHECK_NULL(ibv_create_qp(a.pd, &attr), EOPNOTSUPP);
	}
	ex.send_cq = a.scq;
	ex.recv_cq = a.rcq;
	ex.pd = a.pd;
	ex.comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS;
	ex.send_ops_flags = IBV_QP_EX_WITH_RDMA_READ;
	CHECK_NULL(ibv_create_qp_ex(a.ctx, &ex), EOPNOTSUPP);
	ex.send_ops_flags = IBV_QP_EX_WITH_RDMA_WRITE | IBV_QP_EX_WITH_SEND_WITH_IMM;
	CHECK(qps[0] = ibv_create_qp_ex(a.ctx, &ex));
	CHECK_EQ(ibv_destroy_qp(qps[0]), 0);
	close_ends();
}

/* Node, port and GIDs. */
static void device(void)
{
	static const union ibv_gid none;
	struct ibv_gid_entry entry, table[256];
	struct ibv_device_attr dev;
	struct ibv_port_attr port;
	union ibv_gid gid;
	uint16_t pkey;
	ssize_t n;

	open_ends();
	CHECK_EQ(a.ctx->device->node_type, IBV_NODE_CA);
	CHECK_EQ(a.ctx->device->transport_type, IBV_TRANSPORT_IB);
	CHECK_EQ(ibv_query_device(a.ctx, &dev), 0);
	CHECK_EQ(dev.atomic_cap, IBV_ATOMIC_HCA);
	CHECK(dev.max_qp_rd_atom > 0 && dev.max_qp_init_rd_atom > 0 && dev.max_ah > 0 && dev.max_mcast_grp > 0);
	CHECK_EQ(ibv_query_port(a.ctx, 1, &port), 0);
	CHECK_EQ(port.state, IBV_PORT_ACTIVE);
	CHECK_EQ(port.phys_state, 5);
	CHECK_EQ(port.link_layer, IBV_LINK_LAYER_ETHERNET);
	CHECK_EQ(port.max_mtu, IBV_MTU_4096);
	CHECK_EQ(port.active_mtu, IBV_MTU_1024);
	CHECK(!port.lid && !port.sm_lid && !port.lmc && port.pkey_tbl_len == 1);
	CHECK(port.port_cap_flags & 0x10000);
	CHECK_EQ(port.flags, IBV_QPF_GRH_REQUIRED);
	CHECK(port.max_msg_sz >= 8 << 20);
	CHECK(ibv_query_port(a.ctx, 2, &port) != 0);
	CHECK_EQ(ibv_query_port(a.ctx, 1, &port), 0);
	CHECK_EQ(ibv_query_pkey(a.ctx, 1, 0, &pkey), 0);
	CHECK_EQ(pkey, 0xffff);
	/* The link-local one of the MAC, then the addresses as they were given; the rest is empty. */
	CHECK_EQ(ibv_query_gid(a.ctx, 1, 0, &gid), 0);
	CHECK(gid.raw[0] == 0xfe && gid.raw[1] == 0x80 && gid.raw[11] == 0xff && gid.raw[12] == 0xfe);
	CHECK_EQ(ibv_query_gid_ex(a.ctx, 1, 1, &entry, 0), 0);
	CHECK(entry.gid.raw[10] == 0xff && entry.gid.raw[11] == 0xff);
	CHECK(!memcmp(entry.gid.raw + 12, &((struct sockaddr_in *)&vt_server)->sin_addr, 4) ||
	      a.ctx->device != b.ctx->device);
	CHECK_EQ(entry.gid_index, 1);
	CHECK_EQ(entry.gid_type, IBV_GID_TYPE_ROCE_V2);
	CHECK_EQ(ibv_query_gid(a.ctx, 1, port.gid_tbl_len - 1, &gid), 0);
	CHECK(!memcmp(&gid, &none, sizeof(none)));
	CHECK_EQ(ibv_query_gid_ex(a.ctx, 1, port.gid_tbl_len - 1, &entry, 0), ENODATA);
	CHECK(ibv_query_gid(a.ctx, 1, port.gid_tbl_len, &gid) == -1);
	n = ibv_query_gid_table(a.ctx, table, 256, 0);
	CHECK_EQ(n, 3);
	CHECK(table[2].gid_index == 2 && table[2].gid.raw[0] == 0xfd);
	close_ends();
}

static const struct vt_case cases[] = {
	{ "transitions", transitions }, { "values", values },	  { "nobody_there", nobody_there }, { "posting", posting },
	{ "queries", queries },		{ "creation", creation }, { "device", device },		    { 0 },
};

int main(int argc, char **argv)
{
	return vt_main(argc, argv, cases);
}
