/* Devices and objects: what they say of themselves, how they are counted, what is refused. */
#include "vt.h"

/* In no public header; ibv_devinfo calls it. */
int ibv_read_sysfs_file(const char *dir, const char *file, char *buf, size_t size);

/* What programs look at in attributes before they use a device. */
static void attributes(void)
{
	struct ibv_context *ctx = vt_open_device();
	struct ibv_device_attr attr;
	struct ibv_device_attr_ex ex;
	struct ibv_query_device_ex_input in = {};
	struct ibv_port_attr port;
	union ibv_gid gid, zero = {};
	struct ibv_gid_entry entry;
	uint16_t pkey;
	int n;

	CHECK_EQ(ctx->device->node_type, IBV_NODE_RNIC);
	CHECK_EQ(ctx->device->transport_type, IBV_TRANSPORT_IWARP);
	CHECK(!strncmp(ibv_get_device_name(ctx->device), "vrnic", 5));
	CHECK(ibv_get_device_guid(ctx->device));
	CHECK(ctx->num_comp_vectors >= 1);
	CHECK(ctx->async_fd >= 0);

	CHECK_EQ(ibv_query_device(ctx, &attr), 0);
	CHECK(attr.max_qp > 0 && attr.max_cq > 0 && attr.max_mr > 0 && attr.max_pd > 0 && attr.max_srq > 0);
	CHECK(attr.max_qp_wr >= 384 && attr.max_sge >= 4 && attr.max_cqe >= 4096 && attr.max_srq_wr >= 512);
	CHECK(attr.max_mr_size >= 1ull << 30);
	CHECK(attr.phys_port_cnt == 1 && attr.max_pkeys >= 1);
	/* librdmacm's parameters are octets: 128 and more would not come through. */
	CHECK(attr.max_qp_rd_atom >= 16 && attr.max_qp_rd_atom <= 128);
	CHECK(attr.max_qp_init_rd_atom >= 16 && attr.max_qp_init_rd_atom <= 128);
	CHECK(attr.atomic_cap != IBV_ATOMIC_GLOB);
	CHECK(attr.vendor_id != 0x02c9 && attr.vendor_id != 0x15b3); /* no Mellanox: perftest has ways of its own with those */
	CHECK_EQ(attr.vendor_id, 0xffffff); /* assigned to nobody */

	memset(&ex, 0xee, sizeof(ex));
	CHECK_EQ(ibv_query_device_ex(ctx, &in, &ex), 0);
	CHECK_EQ(ex.orig_attr.max_qp, attr.max_qp);
	CHECK_EQ(ex.raw_packet_caps, 0);

	CHECK_EQ(ibv_query_port(ctx, 1, &port), 0);
	CHECK_EQ(port.state, IBV_PORT_ACTIVE);
	CHECK_EQ(port.link_layer, IBV_LINK_LAYER_ETHERNET);
	CHECK(port.gid_tbl_len >= 1 && port.pkey_tbl_len >= 1);
	CHECK(port.max_msg_sz >= 1u << 30);
	CHECK(port.active_mtu >= IBV_MTU_256 && port.active_mtu <= IBV_MTU_4096);
	CHECK_EQ(ibv_query_port(ctx, 2, &port), EINVAL);
	CHECK_EQ(ibv_query_port(ctx, 0, &port), EINVAL);
	CHECK_EQ(ibv_query_gid(ctx, 1, 0, &gid), 0);
	CHECK(memcmp(&gid, &zero, sizeof(gid)));
	CHECK_EQ(ibv_query_gid_ex(ctx, 1, 0, &entry, 0), 0);
	CHECK(!memcmp(&gid, &entry.gid, sizeof(gid)));
	CHECK(ibv_query_gid(ctx, 1, 10000, &gid) != 0);
	CHECK_EQ(ibv_query_pkey(ctx, 1, 0, &pkey), 0);
	CHECK_EQ(pkey, 0xffff);

	/* The macro of ibv_query_port gives the size of its struct; who was built before port_cap_flags2 has 48 octets. */
	{
		struct {
			char old[48];
			char after[16];
		} small;

		memset(&small, 0x77, sizeof(small));
		CHECK_EQ((ibv_query_port)(ctx, 1, (struct _compat_ibv_port_attr *)&small), 0);
		for (n = 0; n < 16; n++)
			CHECK_EQ(small.after[n], 0x77);
	}
	CHECK_EQ(ibv_close_device(ctx), 0);
}

/* A list of devices may be freed while they are open, and asked for again. */
static void lists(void)
{
	int n1 = -1, n2 = -1;
	struct ibv_device **l1 = ibv_get_device_list(&n1), **l2 = ibv_get_device_list(&n2);
	struct ibv_context *a, *b;
	char line[64];

	CHECK(l1 && l2 && n1 >= 1 && n1 == n2);
	CHECK(!l1[n1]);
	for (int i = 0; i < n1; i++)
		CHECK(l1[i] == l2[i]); /* programs compare them */
	CHECK(a = ibv_open_device(l1[0]));
	CHECK(b = ibv_open_device(l1[0]));
	CHECK(a != b && a->async_fd != b->async_fd);
	ibv_free_device_list(l1);
	ibv_free_device_list(l2);
	CHECK(a->device->name[0]);
	CHECK(!strcmp(a->device->name, b->device->name));
	/* ibv_devinfo asks for a file of sysfs that there is not, or gets a line. */
	n1 = ibv_read_sysfs_file(a->device->ibdev_path, "board_id", line, sizeof(line));
	CHECK(n1 == -1 || (n1 >= 0 && (size_t)n1 < sizeof(line)));
	CHECK_EQ(ibv_fork_init(), 0);
	CHECK_EQ(ibv_close_device(a), 0);
	CHECK_EQ(ibv_close_device(b), 0);
}

/* What a queue pair is created with is at least what was asked for, and is written back. */
static void capacities(void)
{
	struct ibv_context *ctx = vt_open_device();
	struct ibv_pd *pd = ibv_alloc_pd(ctx);
	struct ibv_cq *cq = ibv_create_cq(ctx, 10, NULL, NULL, 0);
	static const struct ibv_qp_cap asked[] = {
		{ 1, 1, 1, 1, 0 }, { 1, 1, 1, 1, 2 }, { 384, 384, 4, 4, 0 }, { 0, 0, 0, 0, 0 }, { 17, 3, 3, 2, 100 }, { 1, 0, 1, 0, 500 },
	};
	struct ibv_qp_init_attr attr = { .send_cq = cq, .recv_cq = cq, .qp_type = IBV_QPT_RC };
	struct ibv_device_attr dev;
	struct ibv_qp *qp;

	CHECK(pd && cq);
	for (unsigned i = 0; i < sizeof(asked) / sizeof(asked[0]); i++) {
		struct ibv_qp_attr a;
		struct ibv_qp_init_attr got;

		attr.cap = asked[i];
		CHECK(qp = ibv_create_qp(pd, &attr));
		CHECK(attr.cap.max_send_wr >= asked[i].max_send_wr && attr.cap.max_recv_wr >= asked[i].max_recv_wr);
		CHECK(attr.cap.max_send_sge >= asked[i].max_send_sge && attr.cap.max_recv_sge >= asked[i].max_recv_sge);
		CHECK(attr.cap.max_send_sge >= 1);
		CHECK(attr.cap.max_inline_data >= 64 && attr.cap.max_inline_data >= asked[i].max_inline_data);
		CHECK_EQ(ibv_query_qp(qp, &a, IBV_QP_CAP | IBV_QP_STATE, &got), 0);
		CHECK(!memcmp(&got.cap, &attr.cap, sizeof(got.cap)));
		CHECK(!memcmp(&a.cap, &attr.cap, sizeof(a.cap)));
		CHECK(got.send_cq == cq && got.recv_cq == cq && got.qp_type == IBV_QPT_RC);
		CHECK_EQ(qp->state, IBV_QPS_INIT); /* as of siw: rdma-core's test_query_rc_qp wants it */
		CHECK_EQ(a.qp_state, IBV_QPS_INIT);
		CHECK_EQ(ibv_destroy_qp(qp), 0);
	}
	CHECK_EQ(ibv_query_device(ctx, &dev), 0);
	attr.cap = (struct ibv_qp_cap){ dev.max_qp_wr + 1, 1, 1, 1, 0 };
	CHECK(!ibv_create_qp(pd, &attr));
	attr.cap = (struct ibv_qp_cap){ 1, dev.max_qp_wr + 1, 1, 1, 0 };
	CHECK(!ibv_create_qp(pd, &attr));
	attr.cap = (struct ibv_qp_cap){ 1, 1, dev.max_sge + 1, 1, 0 };
	CHECK(!ibv_create_qp(pd, &attr));
	attr.cap = (struct ibv_qp_cap){ 1, 1, 1, 1, 1 << 20 };
	CHECK(!ibv_create_qp(pd, &attr));
	attr.cap = (struct ibv_qp_cap){ 1, 1, 1, 1, 0 };
	attr.qp_type = IBV_QPT_UD;
	CHECK(!ibv_create_qp(pd, &attr));
	attr.qp_type = IBV_QPT_UC;
	CHECK(!ibv_create_qp(pd, &attr));
	CHECK(!ibv_create_cq(ctx, dev.max_cqe + 1, NULL, NULL, 0));
	CHECK(!ibv_create_cq(ctx, 0, NULL, NULL, 0));
	CHECK(!ibv_create_cq(ctx, 10, NULL, NULL, ctx->num_comp_vectors));
	CHECK_EQ(ibv_destroy_cq(cq), 0);
	CHECK_EQ(ibv_dealloc_pd(pd), 0);
	CHECK_EQ(ibv_close_device(ctx), 0);
}

/* What is in use is not destroyed. */
static void busy(void)
{
	struct ibv_context *ctx = vt_open_device();
	struct ibv_pd *pd = ibv_alloc_pd(ctx);
	struct ibv_comp_channel *ch = ibv_create_comp_channel(ctx);
	struct ibv_cq *cq1 = ibv_create_cq(ctx, 10, NULL, ch, 0), *cq2 = ibv_create_cq(ctx, 10, NULL, ch, 0);
	struct ibv_srq_init_attr sattr = { .attr = { 10, 1, 0 } };
	struct ibv_srq *srq = ibv_create_srq(pd, &sattr);
	struct ibv_qp_init_attr attr = { .send_cq = cq1, .recv_cq = cq2, .srq = srq, .qp_type = IBV_QPT_RC, .cap = { 1, 0, 1, 0, 0 } };
	static char mem[4096];
	struct ibv_mr *mr;
	struct ibv_qp *qp;

	CHECK(pd && ch && cq1 && cq2 && srq);
	CHECK(qp = ibv_create_qp(pd, &attr));
	CHECK_EQ(ibv_destroy_cq(cq1), EBUSY);
	CHECK_EQ(ibv_destroy_cq(cq2), EBUSY);
	CHECK_EQ(ibv_destroy_srq(srq), EBUSY);
	CHECK_EQ(ibv_dealloc_pd(pd), EBUSY);
	CHECK_EQ(ibv_destroy_comp_channel(ch), EBUSY);
	CHECK_EQ(ibv_destroy_qp(qp), 0);
	CHECK_EQ(ibv_dealloc_pd(pd), EBUSY);
	CHECK_EQ(ibv_destroy_srq(srq), 0);
	CHECK(mr = ibv_reg_mr(pd, mem, sizeof(mem), 0));
	CHECK_EQ(ibv_dealloc_pd(pd), EBUSY);
	CHECK_EQ(ibv_dereg_mr(mr), 0);
	CHECK_EQ(ibv_dealloc_pd(pd), 0);
	CHECK_EQ(ibv_destroy_cq(cq1), 0);
	CHECK_EQ(ibv_destroy_comp_channel(ch), EBUSY);
	CHECK_EQ(ibv_destroy_cq(cq2), 0);
	CHECK_EQ(ibv_destroy_comp_channel(ch), 0);
	CHECK_EQ(ibv_close_device(ctx), 0);
}

/* Queue pairs that are to be connected as InfiniBand's are: refused at once. */
static void no_infiniband(void)
{
	struct ibv_context *ctx = vt_open_device();
	struct ibv_pd *pd = ibv_alloc_pd(ctx);
	struct ibv_cq *cq = ibv_create_cq(ctx, 10, NULL, NULL, 0);
	struct ibv_qp_init_attr attr = { .send_cq = cq, .recv_cq = cq, .qp_type = IBV_QPT_RC, .cap = { 1, 1, 1, 1, 0 } };
	struct ibv_qp_attr a = { .qp_state = IBV_QPS_INIT, .port_num = 1, .qp_access_flags = IBV_ACCESS_REMOTE_WRITE };
	struct ibv_qp *qp = ibv_create_qp(pd, &attr);
	uint64_t begin = vt_now_ms();

	CHECK(qp);
	(void)ibv_modify_qp(qp, &a, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS);
	a.qp_state = IBV_QPS_RTR;
	a.path_mtu = IBV_MTU_1024;
	a.ah_attr.port_num = 1;
	a.ah_attr.is_global = 1;
	CHECK_EQ(ibv_modify_qp(qp, &a, IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER), EINVAL);
	a.qp_state = IBV_QPS_RTS;
	CHECK(ibv_modify_qp(qp, &a, IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC) != 0);
	CHECK(vt_now_ms() < begin + VT_PATIENCE);
	CHECK_EQ(ibv_destroy_qp(qp), 0);
	/* Nor are there address handles, multicast, XRC. */
	{
		struct ibv_ah_attr ah = { .port_num = 1 };
		struct ibv_xrcd_init_attr xrc = { .comp_mask = IBV_XRCD_INIT_ATTR_FD | IBV_XRCD_INIT_ATTR_OFLAGS, .fd = -1 };

		CHECK(!ibv_create_ah(pd, &ah));
		CHECK(!ibv_open_xrcd(ctx, &xrc));
	}
	CHECK_EQ(ibv_destroy_cq(cq), 0);
	CHECK_EQ(ibv_dealloc_pd(pd), 0);
	CHECK_EQ(ibv_close_device(ctx), 0);
}

/* What is posted where it cannot be: the exact errors. */
static void posting(void)
{
	struct vt_pair p;
	struct ibv_sge sge[6];
	struct ibv_send_wr wr, *bad;
	struct ibv_recv_wr rwr, *rbad;
	struct ibv_qp_init_attr attr;
	struct ibv_qp_attr a;
	struct ibv_qp *qp;
	int n;

	vt_open(&p, &(struct vt_opts){ .send_wr = 8, .recv_wr = 8, .send_sge = 2, .recv_sge = 2 });
	CHECK_EQ(ibv_query_qp(p.a.qp, &a, IBV_QP_CAP, &attr), 0);
	for (int i = 0; i < 6; i++)
		sge[i] = vt_sge(&p.a, 0, 10);
	wr = (struct ibv_send_wr){ .wr_id = 1, .sg_list = sge, .num_sge = 1, .opcode = IBV_WR_SEND, .send_flags = IBV_SEND_SIGNALED };
	rwr = (struct ibv_recv_wr){ .wr_id = 1, .sg_list = sge, .num_sge = 1 };
#define POST_FAILS(err) do { bad = NULL; CHECK_EQ(ibv_post_send(p.a.qp, &wr, &bad), err); CHECK(bad == &wr); } while (0)
	wr.opcode = 77;
	POST_FAILS(EINVAL);
	wr.opcode = IBV_WR_SEND;
	wr.num_sge = attr.cap.max_send_sge + 1;
	if (wr.num_sge <= 6)
		POST_FAILS(EINVAL);
	wr.num_sge = -1;
	POST_FAILS(EINVAL);
	wr.num_sge = 1;
	sge[0].length = attr.cap.max_inline_data + 1;
	wr.send_flags |= IBV_SEND_INLINE;
	POST_FAILS(EINVAL);
	sge[0].length = 10;
	wr.send_flags = IBV_SEND_SIGNALED;

	/* Receives up to what there is room for. */
	for (n = 0; !(ibv_post_recv(p.a.qp, &rwr, &rbad)); n++)
		CHECK(n < 10000);
	CHECK_EQ(n, attr.cap.max_recv_wr);
	rbad = NULL;
	CHECK_EQ(ibv_post_recv(p.a.qp, &rwr, &rbad), ENOMEM);
	CHECK(rbad == &rwr);

	/* A QP that is not connected takes receives, and no sends. */
	attr = (struct ibv_qp_init_attr){ .send_cq = p.a.scq, .recv_cq = p.a.rcq, .qp_type = IBV_QPT_RC, .cap = { 4, 4, 1, 1, 0 } };
	CHECK(qp = ibv_create_qp(p.a.pd, &attr));
	bad = NULL;
	CHECK_EQ(ibv_post_send(qp, &wr, &bad), EINVAL);
	CHECK(bad == &wr);
	a = (struct ibv_qp_attr){ .qp_state = IBV_QPS_INIT };
	CHECK_EQ(ibv_modify_qp(qp, &a, IBV_QP_STATE), 0);
	CHECK_EQ(ibv_post_recv(qp, &rwr, &rbad), 0);
	CHECK_EQ(ibv_post_send(qp, &wr, &bad), EINVAL);
	/* Moved to error its receive flushes, and what is posted then does too. */
	a.qp_state = IBV_QPS_ERR;
	CHECK_EQ(ibv_modify_qp(qp, &a, IBV_QP_STATE), 0);
	CHECK_EQ(vt_wc(p.a.rcq, 1, IBV_WC_WR_FLUSH_ERR, -1).qp_num, qp->qp_num);
	CHECK_EQ(ibv_query_qp(qp, &a, IBV_QP_STATE, &attr), 0);
	CHECK_EQ(a.qp_state, IBV_QPS_ERR);
	wr.wr_id = 22;
	CHECK_EQ(ibv_post_send(qp, &wr, &bad), 0);
	vt_wc(p.a.scq, 22, IBV_WC_WR_FLUSH_ERR, -1);
	rwr.wr_id = 23;
	CHECK_EQ(ibv_post_recv(qp, &rwr, &rbad), 0);
	vt_wc(p.a.rcq, 23, IBV_WC_WR_FLUSH_ERR, -1);
	CHECK_EQ(ibv_destroy_qp(qp), 0);
	vt_close(&p);
}

/* A QP is destroyed before its id, and after: the library must not follow id->qp. */
static void destroy_orders(void)
{
	for (int order = 0; order < 3; order++) {
		struct vt_pair p;

		vt_open(&p, &(struct vt_opts){ 0 });
		vt_disconnect(&p);
		switch (order) {
		case 0: /* rping's client */
			CHECK_EQ(ibv_destroy_qp(p.a.qp), 0);
			CHECK_EQ(rdma_destroy_id(p.a.id), 0);
			break;
		case 1: /* rping's server */
			CHECK_EQ(rdma_destroy_id(p.a.id), 0);
			CHECK_EQ(ibv_destroy_qp(p.a.qp), 0);
			break;
		default:
			rdma_destroy_qp(p.a.id);
			CHECK(!p.a.id->qp);
			CHECK_EQ(rdma_destroy_id(p.a.id), 0);
		}
		p.a.qp = NULL;
		p.a.id = NULL;
		vt_free(&p);
	}
}

/* The same without a disconnect: the peer hears of the end. */
static void destroyed_connected(void)
{
	for (int order = 0; order < 2; order++) {
		struct vt_pair p;

		vt_open(&p, &(struct vt_opts){ 0 });
		vt_recv(&p.b, 5, 0, 10);
		if (order == 0)
			CHECK_EQ(ibv_destroy_qp(p.a.qp), 0);
		CHECK_EQ(rdma_destroy_id(p.a.id), 0);
		if (order == 1)
			CHECK_EQ(ibv_destroy_qp(p.a.qp), 0);
		p.a.qp = NULL;
		p.a.id = NULL;
		vt_expect(p.b.ch, RDMA_CM_EVENT_DISCONNECTED, 0);
		vt_wc(p.b.rcq, 5, IBV_WC_WR_FLUSH_ERR, -1);
		vt_free(&p);
	}
}

/* A QP of the program's own that no id knows: its number goes in conn_param. */
static void qp_by_number(void)
{
	struct vt_pair p = {};
	struct rdma_conn_param param = { .responder_resources = 1, .initiator_depth = 1 };
	struct vt_side *sides[2] = { &p.a, &p.b };
	struct rdma_cm_event *ev;
	struct vt_opts o = { 0 };

	vt_listen(&p);
	vt_resolve(&p, &p.a, rdma_get_src_port(p.listen));
	for (int i = 0; i < 2; i++) {
		struct vt_side *s = sides[i];
		struct ibv_qp_init_attr attr = { .qp_type = IBV_QPT_RC, .cap = { 16, 16, 2, 2, 0 }, .sq_sig_all = 1 };
		struct ibv_qp_attr a = { .qp_state = IBV_QPS_INIT };
		int mask = -1;

		if (i == 1) {
			ev = vt_event(p.lch, RDMA_CM_EVENT_CONNECT_REQUEST);
			p.b.id = ev->id;
			CHECK_EQ(rdma_ack_cm_event(ev), 0);
		}
		vt_objects(s, &o, false);
		attr.send_cq = s->scq;
		attr.recv_cq = s->rcq;
		CHECK(s->qp = ibv_create_qp(s->pd, &attr));
		CHECK_EQ(rdma_init_qp_attr(s->id, &a, &mask), 0);
		CHECK_EQ(mask, IBV_QP_STATE | IBV_QP_ACCESS_FLAGS);
		CHECK_EQ(ibv_modify_qp(s->qp, &a, mask), 0);
		a.qp_state = IBV_QPS_RTR;
		CHECK_EQ(rdma_init_qp_attr(s->id, &a, &mask), 0);
		CHECK_EQ(mask, 0);
		CHECK_EQ(ibv_modify_qp(s->qp, &a, mask), 0);
		CHECK(!s->id->qp);
		param.qp_num = s->qp->qp_num;
		CHECK_EQ(i ? rdma_accept(s->id, &param) : rdma_connect(s->id, &param), 0);
	}
	vt_expect(p.lch, RDMA_CM_EVENT_ESTABLISHED, 0);
	/* As with InfiniBand the side that connects may establish by itself. */
	ev = vt_any_event(p.a.ch);
	CHECK(ev->event == RDMA_CM_EVENT_ESTABLISHED || ev->event == RDMA_CM_EVENT_CONNECT_RESPONSE);
	if (ev->event == RDMA_CM_EVENT_CONNECT_RESPONSE)
		CHECK_EQ(rdma_establish(p.a.id), 0);
	CHECK_EQ(rdma_ack_cm_event(ev), 0);
	/* Some ask only now what takes their QP to INIT, as rping -q does. */
	for (int i = 0; i < 2; i++) {
		struct ibv_qp_attr a = { .qp_state = IBV_QPS_INIT };
		int mask = -1;

		CHECK_EQ(rdma_init_qp_attr(sides[i]->id, &a, &mask), 0);
		CHECK_EQ(mask, IBV_QP_ACCESS_FLAGS);
		CHECK_EQ(ibv_modify_qp(sides[i]->qp, &a, mask), 0);
	}
	vt_recv(&p.b, 1, 0, 100);
	vt_fill(p.a.buf, 100, 3);
	vt_send(&p.a, 2, 0, 100);
	vt_wc(p.b.rcq, 1, IBV_WC_SUCCESS, IBV_WC_RECV);
	vt_verify(p.b.buf, 100, 3);
	CHECK_EQ(rdma_disconnect(p.b.id), 0);
	vt_expect(p.a.ch, RDMA_CM_EVENT_DISCONNECTED, 0);
	vt_expect(p.lch, RDMA_CM_EVENT_DISCONNECTED, 0);
	for (int i = 0; i < 2; i++) {
		CHECK_EQ(ibv_destroy_qp(sides[i]->qp), 0);
		sides[i]->qp = NULL;
	}
	vt_free(&p);
}

/* Connects the QPs of p, which know no id, by new ids. */
static void connect_by_number(struct vt_pair *p)
{
	struct rdma_conn_param param = { .responder_resources = 1, .initiator_depth = 1, .qp_num = p->a.qp->qp_num };
	struct rdma_cm_event *ev;

	CHECK_EQ(rdma_connect(p->a.id, &param), 0);
	ev = vt_event(p->lch, RDMA_CM_EVENT_CONNECT_REQUEST);
	p->b.id = ev->id;
	CHECK_EQ(rdma_ack_cm_event(ev), 0);
	CHECK(p->b.ch = rdma_create_event_channel());
	CHECK_EQ(rdma_migrate_id(p->b.id, p->b.ch), 0);
	param.qp_num = p->b.qp->qp_num;
	CHECK_EQ(rdma_accept(p->b.id, &param), 0);
	vt_expect(p->b.ch, RDMA_CM_EVENT_ESTABLISHED, 0);
	ev = vt_any_event(p->a.ch);
	CHECK(ev->event == RDMA_CM_EVENT_ESTABLISHED || ev->event == RDMA_CM_EVENT_CONNECT_RESPONSE);
	if (ev->event == RDMA_CM_EVENT_CONNECT_RESPONSE)
		CHECK_EQ(rdma_establish(p->a.id), 0);
	CHECK_EQ(rdma_ack_cm_event(ev), 0);
}

static void drop_id(struct vt_side *s)
{
	struct ibv_qp_attr a = { .qp_state = IBV_QPS_ERR };

	CHECK_EQ(ibv_modify_qp(s->qp, &a, IBV_QP_STATE), 0);
	a.qp_state = IBV_QPS_RESET;
	CHECK_EQ(ibv_modify_qp(s->qp, &a, IBV_QP_STATE), 0);
	CHECK_EQ(rdma_destroy_id(s->id), 0);
	rdma_destroy_event_channel(s->ch);
	s->id = NULL;
	s->ch = NULL;
}

/*
 * QPs that are connected again and again. b polls when two connections are over, and when all are: what has come by
 * them is there, in order.
 */
static void connected_again(void)
{
	enum { CONNECTIONS = 6, MESSAGES = 5, SIZE = 100 };
	struct vt_opts o = { 0 };
	struct vt_pair p = {};
	int i, k, polled = 0;

	for (k = 0; k < CONNECTIONS; k++) {
		struct ibv_qp_init_attr attr = { .qp_type = IBV_QPT_RC, .cap = { 64, 64, 2, 2, 0 }, .sq_sig_all = 1 };

		if (!k)
			vt_listen(&p);
		vt_resolve(&p, &p.a, rdma_get_src_port(p.listen));
		if (!k) {
			/* b's objects are of the listener's device, which stays */
			vt_objects(&p.a, &o, false);
			p.b.id = p.listen;
			vt_objects(&p.b, &o, false);
			attr.send_cq = p.a.scq;
			attr.recv_cq = p.a.rcq;
			CHECK(p.a.qp = ibv_create_qp(p.a.pd, &attr));
			attr.send_cq = p.b.scq;
			attr.recv_cq = p.b.rcq;
			CHECK(p.b.qp = ibv_create_qp(p.b.pd, &attr));
		}
		CHECK(p.a.id->verbs == p.a.pd->context && p.listen->verbs == p.b.pd->context);
		connect_by_number(&p);
		for (i = 0; i < MESSAGES; i++)
			vt_recv(&p.b, k * MESSAGES + i, (k * MESSAGES + i) * SIZE, SIZE);
		for (i = 0; i < MESSAGES; i++) {
			vt_fill(p.a.buf, SIZE, k * MESSAGES + i);
			vt_send(&p.a, k, 0, SIZE);
			vt_wc(p.a.scq, k, IBV_WC_SUCCESS, IBV_WC_SEND);
		}
		vt_disconnect(&p);
		drop_id(&p.a);
		drop_id(&p.b);
		if (k != 1 && k != CONNECTIONS - 1)
			continue;
		for (; polled < (k + 1) * MESSAGES; polled++) {
			vt_wc(p.b.rcq, polled, IBV_WC_SUCCESS, IBV_WC_RECV);
			vt_verify(p.b.buf + polled * SIZE, SIZE, polled);
		}
	}
	CHECK_EQ(ibv_destroy_qp(p.a.qp), 0);
	CHECK_EQ(ibv_destroy_qp(p.b.qp), 0);
	p.a.qp = p.b.qp = NULL;
	vt_free(&p);
}

/* What a connected QP is asked for: INIT is refused, SQD disconnects. */
static void modify_connected(void)
{
	struct ibv_qp_attr a = { .qp_state = IBV_QPS_INIT };
	struct ibv_qp_init_attr attr;
	struct vt_pair p;

	vt_open(&p, &(struct vt_opts){ 0 });
	CHECK_EQ(ibv_modify_qp(p.a.qp, &a, IBV_QP_STATE), EINVAL);
	CHECK_EQ(ibv_modify_qp(p.a.qp, &a, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS), EINVAL);
	CHECK_EQ(ibv_query_qp(p.a.qp, &a, IBV_QP_STATE, &attr), 0);
	CHECK_EQ(a.qp_state, IBV_QPS_RTS);
	vt_recv(&p.b, 1, 0, 100);
	vt_recv(&p.a, 2, 0, 100);
	vt_send(&p.a, 3, 0, 100);
	a = (struct ibv_qp_attr){ .qp_state = IBV_QPS_SQD };
	CHECK_EQ(ibv_modify_qp(p.a.qp, &a, IBV_QP_STATE), 0);
	vt_wc(p.b.rcq, 1, IBV_WC_SUCCESS, IBV_WC_RECV);
	vt_wc(p.a.scq, 3, IBV_WC_SUCCESS, IBV_WC_SEND);
	vt_expect(p.a.ch, RDMA_CM_EVENT_DISCONNECTED, 0);
	vt_expect(p.b.ch, RDMA_CM_EVENT_DISCONNECTED, 0);
	vt_wc(p.a.rcq, 2, IBV_WC_WR_FLUSH_ERR, -1);
	CHECK_EQ(ibv_query_qp(p.a.qp, &a, IBV_QP_STATE, &attr), 0);
	CHECK_EQ(a.qp_state, IBV_QPS_ERR);
	vt_free(&p);
}

static const struct vt_case cases[] = {
	{ "attributes", attributes }, { "lists", lists }, { "capacities", capacities }, { "busy", busy },
	{ "no_infiniband", no_infiniband }, { "posting", posting }, { "destroy_orders", destroy_orders },
	{ "destroyed_connected", destroyed_connected }, { "qp_by_number", qp_by_number },
	{ "modify_connected", modify_connected }, { "connected_again", connected_again }, {},
};

int main(int argc, char **argv) { return vt_main(argc, argv, cases); }
