/* What contexts have for programs while they are looked at. */
#include "check.h"

const struct context_ours context_ours = {
	.ops = {
		.alloc_mw = check_alloc_mw,
		.dealloc_mw = check_dealloc_mw,
		.poll_cq = check_poll_cq,
		.post_srq_recv = check_post_srq_recv,
		.post_send = check_post_send,
		.post_recv = check_post_recv,
	},
	.v = {
		.create_cq_ex = check_create_cq_ex,
		.create_qp_ex = check_create_qp_ex,
		.create_srq_ex = check_create_srq_ex,
		.alloc_parent_domain = check_alloc_parent_domain,
	},
};
