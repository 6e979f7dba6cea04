/* librdmacm: ids and QPs in one call. */
#include <stdlib.h>
#include <string.h>

#include "cm.h"

/* How long an address or a route may take. */
#define RESOLVE_MS 2000

/* The QP is made for each connection request: rdma_get_request does it. */
static int passive(struct cm_id *id, const struct rdma_addrinfo *res, struct ibv_pd *pd,
		   const struct ibv_qp_init_attr *attr)
{
	if (!res->ai_src_addr)
		return cm_return(EINVAL);
	if (rdma_bind_addr(&id->id, res->ai_src_addr))
		return -1;
	if (!attr)
		return 0;
	id->ep_attr = malloc(sizeof(*attr));
	if (!id->ep_attr)
		return -1;
	*id->ep_attr = *attr;
	id->ep_attr->qp_type = res->ai_qp_type;
	id->ep_pd = pd;
	return 0;
}

static int active(struct cm_id *id, const struct rdma_addrinfo *res, struct ibv_pd *pd,
		  struct ibv_qp_init_attr *attr)
{
	if (rdma_resolve_addr(&id->id, res->ai_src_addr, res->ai_dst_addr, RESOLVE_MS) ||
	    rdma_resolve_route(&id->id, RESOLVE_MS))
		return -1;
	if (attr) {
		attr->qp_type = res->ai_qp_type;
		if (rdma_create_qp(&id->id, pd, attr))
			return -1;
	}
	if (!res->ai_connect_len)
		return 0;
	id->connect = malloc(res->ai_connect_len);
	if (!id->connect)
		return -1;
	memcpy(id->connect, res->ai_connect, res->ai_connect_len);
	id->connect_len = res->ai_connect_len;
	return 0;
}

int rdma_create_ep(struct rdma_cm_id **out, struct rdma_addrinfo *res, struct ibv_pd *pd,
		   struct ibv_qp_init_attr *attr)
{
	struct rdma_cm_id *id;
	int err;

	if (!out || !res)
		return cm_return(EINVAL);
	if (cm_create_id(NULL, &id, NULL, res->ai_port_space, res->ai_qp_type))
		return -1;
	if (res->ai_flags & RAI_PASSIVE ? passive(to_cm_id(id), res, pd, attr)
	    : active(to_cm_id(id), res, pd, attr)) {
		err = errno;
		rdma_destroy_ep(id);
		return cm_return(err);
	}
	*out = id;
	return 0;
}

void rdma_destroy_ep(struct rdma_cm_id *id)
{
	if (id->qp)
		rdma_destroy_qp(id);
	if (id->srq)
		rdma_destroy_srq(id);
	rdma_destroy_id(id);
}
