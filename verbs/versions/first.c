/*
 * The forms that functions had at IBVERBS_1.0, with structures of their own, which are not served
 * (docs/decisions.md#V25): a program of 2006 starts, is told that there is no RDMA here, and has no
 * object that it could pass on.
 */
#include <errno.h>
#include <stddef.h>
#include <stdint.h>

#define EXPORT __attribute__((visibility("default")))

#define FIRST(type, name, value)						\
	__asm__(".symver first_" #name "," #name "@IBVERBS_1.0");		\
	EXPORT type first_##name(void);						\
	type first_##name(void)							\
	{									\
		errno = ENOSYS;							\
		return value;							\
	}

#define FIRST_NOTHING(name)							\
	__asm__(".symver first_" #name "," #name "@IBVERBS_1.0");		\
	EXPORT void first_##name(void);						\
	void first_##name(void) {}

__asm__(".symver first_ibv_get_device_list,ibv_get_device_list@IBVERBS_1.0");
EXPORT void *first_ibv_get_device_list(int *num_devices);
void *first_ibv_get_device_list(int *num_devices)
{
	if (num_devices)
		*num_devices = 0;
	errno = ENOSYS;
	return NULL;
}

FIRST_NOTHING(ibv_free_device_list)
FIRST(void *, ibv_get_device_name, NULL)
FIRST(uint64_t, ibv_get_device_guid, 0)
FIRST(void *, ibv_open_device, NULL)
FIRST(int, ibv_close_device, -1)
FIRST(int, ibv_get_async_event, -1)
FIRST_NOTHING(ibv_ack_async_event)
FIRST(int, ibv_query_device, ENOSYS)
FIRST(int, ibv_query_port, ENOSYS)
FIRST(int, ibv_query_gid, -1)
FIRST(int, ibv_query_pkey, -1)
FIRST(void *, ibv_alloc_pd, NULL)
FIRST(int, ibv_dealloc_pd, ENOSYS)
FIRST(void *, ibv_reg_mr, NULL)
FIRST(int, ibv_dereg_mr, ENOSYS)
FIRST(void *, ibv_create_cq, NULL)
FIRST(int, ibv_resize_cq, ENOSYS)
FIRST(int, ibv_destroy_cq, ENOSYS)
FIRST(int, ibv_get_cq_event, -1)
FIRST_NOTHING(ibv_ack_cq_events)
FIRST(void *, ibv_create_srq, NULL)
FIRST(int, ibv_modify_srq, ENOSYS)
FIRST(int, ibv_query_srq, ENOSYS)
FIRST(int, ibv_destroy_srq, ENOSYS)
FIRST(void *, ibv_create_qp, NULL)
FIRST(int, ibv_modify_qp, ENOSYS)
FIRST(int, ibv_query_qp, ENOSYS)
FIRST(int, ibv_destroy_qp, ENOSYS)
FIRST(void *, ibv_create_ah, NULL)
FIRST(int, ibv_destroy_ah, ENOSYS)
FIRST(int, ibv_attach_mcast, ENOSYS)
FIRST(int, ibv_detach_mcast, ENOSYS)
