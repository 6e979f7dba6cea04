/*
 * The ABI of libibverbs: what a context is, and what programs call through it. Included by ibv.h.
 */
#ifndef VRNIC_IBV_CONTEXT_H
#define VRNIC_IBV_CONTEXT_H

#ifndef VRNIC_IBV_H
#error "include ibv.h"
#endif

/* A slot that stays NULL: programs find that and answer EOPNOTSUPP themselves. */
typedef void verbs_absent(void);

struct ibv_xrcd_init_attr;

/* Called without a look whether they are there. */
struct ibv_context_ops {
	verbs_absent *_compat_query_device;
	int (*_compat_query_port)(struct ibv_context *context, uint8_t port_num,
				  struct ibv_port_attr *attr);
	verbs_absent *_compat_alloc_pd;
	verbs_absent *_compat_dealloc_pd;
	verbs_absent *_compat_reg_mr;
	verbs_absent *_compat_rereg_mr;
	verbs_absent *_compat_dereg_mr;
	struct ibv_mw *(*alloc_mw)(struct ibv_pd *pd, enum ibv_mw_type type);
	int (*bind_mw)(struct ibv_qp *qp, struct ibv_mw *mw, struct ibv_mw_bind *bind);
	int (*dealloc_mw)(struct ibv_mw *mw);
	verbs_absent *_compat_create_cq;
	int (*poll_cq)(struct ibv_cq *cq, int num_entries, struct ibv_wc *wc);
	int (*req_notify_cq)(struct ibv_cq *cq, int solicited_only);
	verbs_absent *_compat_cq_event;
	verbs_absent *_compat_resize_cq;
	verbs_absent *_compat_destroy_cq;
	verbs_absent *_compat_create_srq;
	verbs_absent *_compat_modify_srq;
	verbs_absent *_compat_query_srq;
	verbs_absent *_compat_destroy_srq;
	int (*post_srq_recv)(struct ibv_srq *srq, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad_wr);
	verbs_absent *_compat_create_qp;
	verbs_absent *_compat_query_qp;
	verbs_absent *_compat_modify_qp;
	verbs_absent *_compat_destroy_qp;
	int (*post_send)(struct ibv_qp *qp, struct ibv_send_wr *wr, struct ibv_send_wr **bad_wr);
	int (*post_recv)(struct ibv_qp *qp, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad_wr);
	verbs_absent *_compat_create_ah;
	verbs_absent *_compat_destroy_ah;
	verbs_absent *_compat_attach_mcast;
	verbs_absent *_compat_detach_mcast;
	verbs_absent *_compat_async_event;
};
IBV_SIZE(ibv_context_ops, 256);
IBV_OFFSET(ibv_context_ops, alloc_mw, 56);
IBV_OFFSET(ibv_context_ops, poll_cq, 88);
IBV_OFFSET(ibv_context_ops, post_srq_recv, 160);
IBV_OFFSET(ibv_context_ops, post_send, 200);

/* abi_compat of a context that lies in a verbs_context. */
#define VERBS_ABI_IS_EXTENDED ((void *)UINTPTR_MAX)

struct ibv_context {
	struct ibv_device *device;
	struct ibv_context_ops ops;
	int cmd_fd;
	int async_fd;
	int num_comp_vectors;
	pthread_mutex_t mutex;
	void *abi_compat;
};
IBV_OFFSET(ibv_context, ops, 8);
IBV_OFFSET(ibv_context, cmd_fd, 264);
IBV_OFFSET(ibv_context, mutex, 280);

struct ibv_values_ex {
	uint32_t comp_mask;
	struct timespec raw_clock;
};
IBV_SIZE(ibv_values_ex, 24);

enum ibv_values_mask {
	IBV_VALUES_MASK_RAW_CLOCK = 1 << 0,
	IBV_VALUES_MASK_RESERVED = 1 << 1,
};

struct ibv_td_init_attr {
	uint32_t comp_mask;
};

struct ibv_td {
	struct ibv_context *context;
};

enum ibv_parent_domain_init_attr_mask {
	IBV_PARENT_DOMAIN_INIT_ATTR_ALLOCATORS = 1 << 0,
	IBV_PARENT_DOMAIN_INIT_ATTR_PD_CONTEXT = 1 << 1,
};

struct ibv_parent_domain_init_attr {
	struct ibv_pd *pd;
	struct ibv_td *td;
	uint32_t comp_mask;
	void *(*alloc)(struct ibv_pd *pd, void *pd_context, size_t size, size_t alignment,
		       uint64_t resource_type);
	void (*free)(struct ibv_pd *pd, void *pd_context, void *ptr, uint64_t resource_type);
	void *pd_context;
};
IBV_SIZE(ibv_parent_domain_init_attr, 48);

enum ibv_advise_mr_advice {
	IBV_ADVISE_MR_ADVICE_PREFETCH = 0,
	IBV_ADVISE_MR_ADVICE_PREFETCH_WRITE = 1,
	IBV_ADVISE_MR_ADVICE_PREFETCH_NO_FAULT = 2,
};

enum {
	IBV_ADVISE_MR_FLAG_FLUSH = 1 << 0,
};

/*
 * It grows upwards: sz says how much there is, and a program calls what lies within that and is
 * not NULL.
 */
struct verbs_context {
	int (*query_port)(struct ibv_context *context, uint8_t port_num, struct ibv_port_attr *attr,
			  size_t attr_len);
	int (*advise_mr)(struct ibv_pd *pd, enum ibv_advise_mr_advice advice, uint32_t flags,
			 struct ibv_sge *sg_list, uint32_t num_sges);
	struct ibv_mr *(*alloc_null_mr)(struct ibv_pd *pd);
	verbs_absent *read_counters;
	verbs_absent *attach_counters_point_flow;
	verbs_absent *create_counters;
	verbs_absent *destroy_counters;
	verbs_absent *reg_dm_mr;
	verbs_absent *alloc_dm;
	verbs_absent *free_dm;
	verbs_absent *modify_flow_action_esp;
	verbs_absent *destroy_flow_action;
	verbs_absent *create_flow_action_esp;
	verbs_absent *modify_qp_rate_limit;
	struct ibv_pd *(*alloc_parent_domain)(struct ibv_context *context,
					      struct ibv_parent_domain_init_attr *attr);
	int (*dealloc_td)(struct ibv_td *td);
	struct ibv_td *(*alloc_td)(struct ibv_context *context, struct ibv_td_init_attr *attr);
	int (*modify_cq)(struct ibv_cq *cq, struct ibv_modify_cq_attr *attr);
	verbs_absent *post_srq_ops;
	verbs_absent *destroy_rwq_ind_table;
	verbs_absent *create_rwq_ind_table;
	verbs_absent *destroy_wq;
	verbs_absent *modify_wq;
	verbs_absent *create_wq;
	int (*query_rt_values)(struct ibv_context *context, struct ibv_values_ex *values);
	struct ibv_cq_ex *(*create_cq_ex)(struct ibv_context *context, struct ibv_cq_init_attr_ex *attr);
	void *priv;
	int (*query_device_ex)(struct ibv_context *context, const struct ibv_query_device_ex_input *input,
			       struct ibv_device_attr_ex *attr, size_t attr_size);
	verbs_absent *ibv_destroy_flow;
	verbs_absent *ABI_placeholder2;
	verbs_absent *ibv_create_flow;
	verbs_absent *ABI_placeholder1;
	verbs_absent *open_qp;
	struct ibv_qp *(*create_qp_ex)(struct ibv_context *context, struct ibv_qp_init_attr_ex *attr);
	int (*get_srq_num)(struct ibv_srq *srq, uint32_t *srq_num);
	struct ibv_srq *(*create_srq_ex)(struct ibv_context *context, struct ibv_srq_init_attr_ex *attr);
	struct ibv_xrcd *(*open_xrcd)(struct ibv_context *context, struct ibv_xrcd_init_attr *attr);
	verbs_absent *close_xrcd;
	uint64_t _ABI_placeholder3;
	size_t sz;
	struct ibv_context context;	/* the last field */
};
IBV_OFFSET(verbs_context, create_cq_ex, 200);
IBV_OFFSET(verbs_context, priv, 208);
IBV_OFFSET(verbs_context, query_device_ex, 216);
IBV_OFFSET(verbs_context, create_qp_ex, 264);
IBV_OFFSET(verbs_context, create_srq_ex, 280);
IBV_OFFSET(verbs_context, sz, 312);
IBV_OFFSET(verbs_context, context, 320);

#ifdef __x86_64__ /* elsewhere glibc's mutexes have another size */
IBV_SIZE(ibv_context, 328);
IBV_OFFSET(ibv_context, abi_compat, 320);
IBV_SIZE(verbs_context, 648);
#endif

#endif
