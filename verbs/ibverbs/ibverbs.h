/*
 * The room of libibverbs: devices, memory, completion queues, queue pairs, and the making and
 * taking of work requests. ibv.h is what programs have of it; this is what librdmacm has beside
 * that, of symbol version VRNIC_1. Nothing here is locked by who calls it.
 */
#ifndef VRNIC_IBVERBS_H
#define VRNIC_IBVERBS_H

#include "core/core.h"
#include "abi/ibv.h"

struct vrnic_device;

/* A context is of one device and one session. All but what obj_lock guards stays as it was made. */
struct vrnic_context {
	struct verbs_context v; /* v.context, its last member, is what the program has */
	struct vrnic_session *s;
	struct vrnic_device *dev; /* device.c's */
	uint32_t dev_index;    /* what the daemon calls the device */
	uint32_t handle;       /* and this context */
	bool roce;	       /* the device speaks RoCE, not iWARP */
	atomic_bool fatal;     /* IBV_EVENT_DEVICE_FATAL has been given */
	atomic_bool gone;      /* closed */
	atomic_uint waiters;   /* threads in ibv_get_async_event */
	struct vrnic_query_device_reply attr; /* as it was when the device was opened */
	pthread_mutex_t obj_lock; /* what follows; taken last of all */
	struct vrnic_table objs; /* by handle */
};

static inline struct vrnic_context *to_vctx(struct ibv_context *c)
{
	return container_of(c, struct vrnic_context, v.context);
}

/*
 * For librdmacm: the context that all ids of a process share for device number index, opened when
 * first asked for; NULL with errno. And the number of a context's device.
 */
VRNIC_EXPORT struct ibv_context *vrnic_cm_context(struct vrnic_session *s, uint32_t index);
VRNIC_EXPORT uint32_t vrnic_device_index(struct ibv_context *c);

/*
 * For librdmacm, to which a program may name a QP by its number only: the daemon's handle of its
 * PD. Numbers are unique in a device, so the context is asked, too. 0 or ENOENT.
 */
VRNIC_EXPORT int vrnic_find_qp(struct ibv_context *c, uint32_t qpn, uint32_t *pd_handle);

/* For librdmacm: the QP is RTS now, and its peer is about to be. */
VRNIC_EXPORT void vrnic_qp_connected(struct ibv_context *c, uint32_t qpn);

/* Attributes as the daemon has them, as programs do; of a QP's all but the state. */
VRNIC_EXPORT void vrnic_from_ah_attr(const struct vrnic_ah_attr *r, struct ibv_ah_attr *a);
VRNIC_EXPORT void vrnic_from_qp_attr(const struct vrnic_qp_attr *r, struct ibv_qp_attr *a);

#endif
