/* A program that tries all keys that another one's regions may have, and numbers that are not its own. */
#include "vt.h"

static struct vt_pair p;

/* Keys: a Read of each of some thousands, through connections of its own. Whatever it is the answer is an access error. */
static void keys(void)
{
	for (int round = 0; round < 40; round++) {
		uint32_t own;

		vt_open(&p, &(struct vt_opts){ 0 });
		own = p.b.mr->rkey;
		/* those around its own, and any; the other program's buffers are where heaps are */
		CHECK_EQ(vt_try_send(&p.a, 1, IBV_WR_RDMA_READ, 0, 100, IBV_SEND_SIGNALED, (uintptr_t)p.b.buf,
				     round % 2 ? own ^ (round << 8) : (uint32_t)random()), 0);
		vt_wc(p.a.scq, 1, IBV_WC_REM_ACCESS_ERR, -1);
		vt_expect(p.a.ch, RDMA_CM_EVENT_DISCONNECTED, 0);
		vt_expect(p.b.ch, RDMA_CM_EVENT_DISCONNECTED, 0);
		vt_free(&p);
	}
}

/* QPs of other sessions, by number. */
static void numbers(void)
{
	vt_open(&p, &(struct vt_opts){ 0 });
	for (uint32_t qpn = 1; qpn < 50; qpn++) {
		struct rdma_conn_param param = { .qp_num = qpn };
		struct rdma_cm_id *id;
		struct sockaddr_storage src, dst;

		if (qpn == p.a.qp->qp_num || qpn == p.b.qp->qp_num)
			continue;
		CHECK_EQ(rdma_create_id(p.a.ch, &id, NULL, RDMA_PS_TCP), 0);
		CHECK_EQ(rdma_resolve_addr(id, vt_addr(&vt_client, 0, &src), vt_addr(&vt_server, rdma_get_src_port(p.listen), &dst), 1000), 0);
		vt_expect(p.a.ch, RDMA_CM_EVENT_ADDR_RESOLVED, 0);
		CHECK_EQ(rdma_resolve_route(id, 1000), 0);
		vt_expect(p.a.ch, RDMA_CM_EVENT_ROUTE_RESOLVED, 0);
		CHECK(rdma_connect(id, &param) != 0);
		CHECK_EQ(rdma_destroy_id(id), 0);
	}
	vt_close(&p);
}

static const struct vt_case cases[] = { { "keys", keys }, { "numbers", numbers }, {} };

int main(int argc, char **argv) { return vt_main(argc, argv, cases); }
