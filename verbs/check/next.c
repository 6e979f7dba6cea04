/*
 * The functions that ours stand in front of. They are looked for in the libraries themselves: a
 * program may have loaded those by dlopen(3), where RTLD_NEXT does not find them.
 */
#include <dlfcn.h>

#include "check.h"

static struct next_ibverbs ibverbs;
static struct next_rdmacm rdmacm;

static void *library(const char *name)
{
	void *lib = dlopen(name, RTLD_NOW | RTLD_NOLOAD);

	return lib ? lib : dlopen(name, RTLD_NOW);
}

#define LOOK_UP(of, field) of field = (__typeof__(of field))dlsym(lib, #field + 1)

static void look_up(void)
{
	void *lib = library("libibverbs.so.1");

	LOOK_UP(ibverbs, .ibv_open_device);
	LOOK_UP(ibverbs, .ibv_close_device);
	LOOK_UP(ibverbs, .ibv_alloc_pd);
	LOOK_UP(ibverbs, .ibv_dealloc_pd);
	LOOK_UP(ibverbs, .ibv_reg_mr);
	LOOK_UP(ibverbs, .ibv_reg_mr_iova);
	LOOK_UP(ibverbs, .ibv_reg_mr_iova2);
	LOOK_UP(ibverbs, .ibv_rereg_mr);
	LOOK_UP(ibverbs, .ibv_dereg_mr);
	LOOK_UP(ibverbs, .ibv_create_comp_channel);
	LOOK_UP(ibverbs, .ibv_destroy_comp_channel);
	LOOK_UP(ibverbs, .ibv_create_cq);
	LOOK_UP(ibverbs, .ibv_resize_cq);
	LOOK_UP(ibverbs, .ibv_destroy_cq);
	LOOK_UP(ibverbs, .ibv_get_cq_event);
	LOOK_UP(ibverbs, .ibv_ack_cq_events);
	LOOK_UP(ibverbs, .ibv_create_srq);
	LOOK_UP(ibverbs, .ibv_destroy_srq);
	LOOK_UP(ibverbs, .ibv_create_qp);
	LOOK_UP(ibverbs, .ibv_modify_qp);
	LOOK_UP(ibverbs, .ibv_query_qp);
	LOOK_UP(ibverbs, .ibv_destroy_qp);
	LOOK_UP(ibverbs, .ibv_create_ah);
	LOOK_UP(ibverbs, .ibv_destroy_ah);
	LOOK_UP(ibverbs, .ibv_get_async_event);
	LOOK_UP(ibverbs, .ibv_ack_async_event);
	LOOK_UP(ibverbs, .ibv_get_device_name);
	LOOK_UP(ibverbs, .vrnic_mr_lent);
	LOOK_UP(ibverbs, .vrnic_tell_placing);
}

static void look_up_cm(void)
{
	void *lib = library("librdmacm.so.1");

	LOOK_UP(rdmacm, .rdma_create_event_channel);
	LOOK_UP(rdmacm, .rdma_destroy_event_channel);
	LOOK_UP(rdmacm, .rdma_create_id);
	LOOK_UP(rdmacm, .rdma_destroy_id);
	LOOK_UP(rdmacm, .rdma_create_ep);
	LOOK_UP(rdmacm, .rdma_destroy_ep);
	LOOK_UP(rdmacm, .rdma_create_qp);
	LOOK_UP(rdmacm, .rdma_create_qp_ex);
	LOOK_UP(rdmacm, .rdma_get_request);
	LOOK_UP(rdmacm, .rdma_get_cm_event);
	LOOK_UP(rdmacm, .rdma_ack_cm_event);
	LOOK_UP(rdmacm, .rdma_disconnect);
	LOOK_UP(rdmacm, .rdma_migrate_id);
	LOOK_UP(rdmacm, .rdma_connect);
	LOOK_UP(rdmacm, .rdma_accept);
}

const struct next_ibverbs *next(void)
{
	static pthread_once_t once = PTHREAD_ONCE_INIT;

	pthread_once(&once, look_up);
	return &ibverbs;
}

/* Not with the other one: many programs have one library only. */
const struct next_rdmacm *next_cm(void)
{
	static pthread_once_t once = PTHREAD_ONCE_INIT;

	pthread_once(&once, look_up_cm);
	return &rdmacm;
}
