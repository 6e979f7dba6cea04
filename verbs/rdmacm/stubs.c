/*
 * What librdmacm.so.1 must export and does not have: what only InfiniBand has. Programs are bound
 * to all their symbols when they start.
 */
#include <errno.h>

#include "rdmacm.h"

static int fails(int err)
{
	errno = err;
	return -1;
}

int rdma_set_local_ece(struct rdma_cm_id *id, struct ibv_ece *ece)
{
	(void)id, (void)ece;
	return fails(EOPNOTSUPP);
}

int rdma_get_remote_ece(struct rdma_cm_id *id, struct ibv_ece *ece)
{
	(void)id, (void)ece;
	return fails(EOPNOTSUPP);
}
