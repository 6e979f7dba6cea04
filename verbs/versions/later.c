/*
 * What rdma-core has given libibverbs behind release 44: regions by attributes, buffers of the
 * library's, the speed of a port. What takes hardware that an RNIC in user space does not have says
 * EOPNOTSUPP, as rdma-core does for providers without it.
 */
#include <errno.h>
#include <stdbool.h>
#include <stdlib.h>

#include "later.h"
#include "vrnic_alloc.h"

/* Parameters are for the reader. */
#pragma GCC diagnostic ignored "-Wunused-parameter"

static void *refuse(int err)
{
	errno = err;
	return NULL;
}

/*
 * Buffers: memory that is shared with the daemon from the start.
 */

struct ibv_buf {
	struct ibv_pd *pd;
	void *addr;
	size_t length;
};

void *ibv_alloc_buf(struct ibv_pd *pd, size_t size, struct ibv_buf **out)
{
	struct ibv_buf *b = malloc(sizeof(*b));
	int err;

	if (!b)
		return NULL;
	b->pd = pd;
	b->addr = vrnic_alloc(size);
	b->length = size;
	if (!b->addr) {
		err = errno;
		free(b);
		return refuse(err);
	}
	*out = b;
	return b->addr;
}

void ibv_free_buf(struct ibv_buf *b)
{
	vrnic_free(b->addr);
	free(b);
}

int ibv_export_buf_dmabuf_fd(struct ibv_buf *b)
{
	errno = ENODATA; /* no dma-buf is behind any */
	return -1;
}

/* Whether a region of attr is one of the buffer that it names. */
static bool in_buf(const struct ibv_pd *pd, const struct ibv_mr_init_attr *attr)
{
	const struct ibv_buf *b = attr->buf;
	size_t off = (uintptr_t)attr->addr - (uintptr_t)b->addr;

	if (pd != b->pd || !(attr->comp_mask & IBV_REG_MR_MASK_ADDR) ||
	    (attr->comp_mask & (IBV_REG_MR_MASK_FD | IBV_REG_MR_MASK_FD_OFFSET)))
		return false;
	return (uintptr_t)attr->addr >= (uintptr_t)b->addr && off <= b->length &&
	       attr->length <= b->length - off;
}

/*
 * Regions.
 */

struct ibv_mr *ibv_reg_mr_ex(struct ibv_pd *pd, struct ibv_mr_init_attr *attr)
{
	const uint64_t dmabuf = IBV_REG_MR_MASK_FD | IBV_REG_MR_MASK_FD_OFFSET | IBV_REG_MR_MASK_IOVA;
	uint64_t has = attr->comp_mask;

	if (has & IBV_REG_MR_MASK_BUF) {
		if (!in_buf(pd, attr))
			return refuse(EINVAL);
		has &= ~(uint64_t)IBV_REG_MR_MASK_BUF;
	}
	if (has & ~(dmabuf | IBV_REG_MR_MASK_ADDR))
		return refuse(EOPNOTSUPP);
	if (has & IBV_REG_MR_MASK_FD) {
		if (has != dmabuf)
			return refuse(EINVAL);
		return ibv_reg_dmabuf_mr(pd, attr->fd_offset, attr->length, attr->iova, attr->fd,
					 attr->access);
	}
	if (!(has & IBV_REG_MR_MASK_ADDR) || (has & IBV_REG_MR_MASK_FD_OFFSET))
		return refuse(EINVAL);
	return ibv_reg_mr_iova2(pd, attr->addr, attr->length, has & IBV_REG_MR_MASK_IOVA ?
				attr->iova : (uintptr_t)attr->addr, attr->access);
}

struct ibv_mr *ibv_reg_buf_mr(struct ibv_pd *pd, struct ibv_buf *buf, void *addr, size_t length,
			      int access)
{
	struct ibv_mr_init_attr attr = {
		.length = length,
		.access = access,
		.comp_mask = IBV_REG_MR_MASK_BUF | IBV_REG_MR_MASK_ADDR,
		.addr = addr,
		.buf = buf,
	};

	return ibv_reg_mr_ex(pd, &attr);
}

/*
 * Ports.
 */

/* Lanes of a width, and units of 100 Mb/s that a lane has at a speed; both numbers are bits. */
static unsigned int lanes(unsigned int width)
{
	static const unsigned int n[] = { 1, 4, 8, 12, 2 };

	for (size_t i = 0; i < sizeof(n) / sizeof(n[0]); i++)
		if (width == 1u << i)
			return n[i];
	return 0;
}

static unsigned int lane_speed(unsigned int speed)
{
	static const unsigned int n[] = { 25, 50, 100, 100, 140, 250, 500, 1000, 2000 };

	for (size_t i = 0; i < sizeof(n) / sizeof(n[0]); i++)
		if (speed == 1u << i)
			return n[i];
	return 0;
}

int ibv_query_port_speed(struct ibv_context *context, uint32_t port_num, uint64_t *speed)
{
	struct ibv_port_attr a;
	int err;

	if (port_num > UINT8_MAX)
		return EINVAL;
	err = ibv_query_port(context, port_num, &a);
	if (!err)
		*speed = (uint64_t)lanes(a.active_width) * lane_speed(a.active_speed);
	return err;
}

/*
 * What is not there: handles for hints to the bus, memory on the device, counters of completions.
 */

struct ibv_dmah *ibv_alloc_dmah(struct ibv_context *context, struct ibv_dmah_init_attr *attr)
{
	return refuse(EOPNOTSUPP);
}

int ibv_dealloc_dmah(struct ibv_dmah *dmah) { return EOPNOTSUPP; }

int ibv_dm_export_dmabuf_fd(struct ibv_dm *dm)
{
	errno = EOPNOTSUPP;
	return -1;
}

int _ibv_query_comp_cntr_caps(struct ibv_context *context, struct ibv_comp_cntr_caps *caps,
			      size_t size)
{
	return EOPNOTSUPP;
}

struct ibv_comp_cntr *ibv_create_comp_cntr(struct ibv_context *context,
					   struct ibv_comp_cntr_init_attr *attr)
{
	return refuse(EOPNOTSUPP);
}

int ibv_destroy_comp_cntr(struct ibv_comp_cntr *cntr) { return EOPNOTSUPP; }
int ibv_set_comp_cntr(struct ibv_comp_cntr *cntr, uint64_t value) { return EOPNOTSUPP; }
int ibv_set_err_comp_cntr(struct ibv_comp_cntr *cntr, uint64_t value) { return EOPNOTSUPP; }
int ibv_inc_comp_cntr(struct ibv_comp_cntr *cntr, uint64_t amount) { return EOPNOTSUPP; }
int ibv_inc_err_comp_cntr(struct ibv_comp_cntr *cntr, uint64_t amount) { return EOPNOTSUPP; }
int ibv_read_comp_cntr(struct ibv_comp_cntr *cntr, uint64_t *value) { return EOPNOTSUPP; }
int ibv_read_err_comp_cntr(struct ibv_comp_cntr *cntr, uint64_t *value) { return EOPNOTSUPP; }

int ibv_qp_attach_comp_cntr(struct ibv_qp *qp, struct ibv_comp_cntr *cntr,
			    struct ibv_qp_attach_comp_cntr_attr *attr)
{
	return EOPNOTSUPP;
}
