/*
 * What rdma-core has given libibverbs behind release 44, of whose headers this is compiled: regions
 * by attributes, buffers of the library's, the speed of a port.
 */
#define _GNU_SOURCE
#include "vt.h"

#include <dlfcn.h>

struct mr_attr {
	size_t length;
	int access;
	uint64_t comp_mask, iova;
	void *addr;
	int fd;
	uint64_t fd_offset;
	void *dmah, *buf;
};

enum { IOVA = 1, ADDR = 2, FD = 4, FD_OFFSET = 8, DMAH = 16, BUF = 32 };

static struct ibv_mr *(*reg_mr_ex)(struct ibv_pd *, struct mr_attr *);
static void *(*alloc_buf)(struct ibv_pd *, size_t, void **);
static struct ibv_mr *(*reg_buf_mr)(struct ibv_pd *, void *, void *, size_t, int);
static void (*free_buf)(void *);
static int (*query_port_speed)(struct ibv_context *, uint32_t, uint64_t *);
static struct vt_pair p;

/* The peer's Write arrives in a region. */
static void write_to(struct ibv_mr *mr, uint64_t at, char *mem, uint32_t n)
{
	struct vt_side there = p.b;

	there.buf = (char *)(uintptr_t)at;
	there.mr = mr;
	vt_fill(p.a.buf, n, 3);
	vt_rdma(&p.a, 1, IBV_WR_RDMA_WRITE, 0, n, &there, 0);
	vt_rdma(&p.a, 2, IBV_WR_RDMA_READ, 20000, 1, &there, 0); /* it has arrived then */
	vt_wc(p.a.scq, 1, IBV_WC_SUCCESS, IBV_WC_RDMA_WRITE);
	vt_wc(p.a.scq, 2, IBV_WC_SUCCESS, IBV_WC_RDMA_READ);
	vt_verify(mem, n, 3);
}

static const int rights = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE |
			  IBV_ACCESS_REMOTE_READ;

static void regions(void)
{
	static char mem[8192];
	struct mr_attr attr = { sizeof(mem), rights, ADDR, .addr = mem };
	struct ibv_mr *mr;

	vt_open(&p, &(struct vt_opts){ 0 });
	CHECK(mr = reg_mr_ex(p.b.pd, &attr));
	CHECK(mr->addr == mem && mr->length == sizeof(mem) && mr->pd == p.b.pd);
	write_to(mr, (uintptr_t)mem, mem, 4000);
	CHECK_EQ(ibv_dereg_mr(mr), 0);
	attr.comp_mask |= IOVA;
	attr.iova = 0x1000;
	CHECK(mr = reg_mr_ex(p.b.pd, &attr));
	write_to(mr, 0x1000, mem, 5000);
	CHECK_EQ(ibv_dereg_mr(mr), 0);

	attr.comp_mask = IOVA;
	CHECK_NULL(reg_mr_ex(p.b.pd, &attr), EINVAL);
	attr.comp_mask = ADDR | FD_OFFSET;
	CHECK_NULL(reg_mr_ex(p.b.pd, &attr), EINVAL);
	attr.comp_mask = ADDR | FD;
	CHECK_NULL(reg_mr_ex(p.b.pd, &attr), EINVAL);
	attr.comp_mask = FD | FD_OFFSET | IOVA;
	CHECK_NULL(reg_mr_ex(p.b.pd, &attr), EOPNOTSUPP);
	attr.comp_mask = ADDR | DMAH;
	CHECK_NULL(reg_mr_ex(p.b.pd, &attr), EOPNOTSUPP);
	vt_close(&p);
}

static void buffers(void)
{
	struct ibv_mr *mr;
	struct ibv_pd *other;
	void *buf = NULL;
	char *mem;

	vt_open(&p, &(struct vt_opts){ 0 });
	CHECK(mem = alloc_buf(p.b.pd, 100000, &buf));
	CHECK(buf && (uintptr_t)mem % 4096 == 0);
	CHECK(mr = reg_buf_mr(p.b.pd, buf, mem + 100, 99900, rights));
	write_to(mr, (uintptr_t)mem + 100, mem + 100, 9000);
	CHECK_EQ(ibv_dereg_mr(mr), 0);

	CHECK_NULL(reg_buf_mr(p.b.pd, buf, mem + 100, 99901, rights), EINVAL);
	CHECK_NULL(reg_buf_mr(p.b.pd, buf, mem - 1, 10, rights), EINVAL);
	CHECK_NULL(reg_buf_mr(p.b.pd, buf, mem + 100001, 0, rights), EINVAL);
	CHECK(other = ibv_alloc_pd(p.b.id->verbs));
	CHECK_NULL(reg_buf_mr(other, buf, mem, 10, rights), EINVAL);
	CHECK_EQ(ibv_dealloc_pd(other), 0);
	free_buf(buf);
	vt_close(&p);
}

static void speed(void)
{
	uint64_t n = 0;

	vt_open(&p, &(struct vt_opts){ 0 });
	CHECK_EQ(query_port_speed(p.b.id->verbs, 1, &n), 0);
	CHECK_EQ(n, 1000); /* 4 lanes of EDR */
	CHECK_EQ(query_port_speed(p.b.id->verbs, 2, &n), EINVAL);
	CHECK_EQ(query_port_speed(p.b.id->verbs, 257, &n), EINVAL);
	vt_close(&p);
}

int main(int argc, char **argv)
{
	static const struct vt_case cases[] = {
		{ "regions", regions }, { "buffers", buffers }, { "speed", speed }, {},
	};

	CHECK(reg_mr_ex = dlvsym(RTLD_DEFAULT, "ibv_reg_mr_ex", "IBVERBS_1.15"));
	CHECK(query_port_speed = dlvsym(RTLD_DEFAULT, "ibv_query_port_speed", "IBVERBS_1.16"));
	CHECK(alloc_buf = dlvsym(RTLD_DEFAULT, "ibv_alloc_buf", "IBVERBS_1.17"));
	CHECK(free_buf = dlvsym(RTLD_DEFAULT, "ibv_free_buf", "IBVERBS_1.17"));
	CHECK(reg_buf_mr = dlvsym(RTLD_DEFAULT, "ibv_reg_buf_mr", "IBVERBS_1.17"));
	return vt_main(argc, argv, cases);
}
