/*
 * What libibverbs.so.1 must export and an RNIC in user space has nothing, or next to nothing, to
 * say to. Programs are bound to all their symbols when they start, so each is there, and says no in
 * the way its callers expect.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "ibverbs/abi/ibv.h"
#include "nodes.h"

/* Parameters are for the reader. */
#pragma GCC diagnostic ignored "-Wunused-parameter"

/* ---- public functions ---- */

static void *no_object(void)
{
	errno = EOPNOTSUPP;
	return NULL;
}

/* Objects of another process. */
struct ibv_context *ibv_import_device(int cmd_fd)
{
	return no_object();
}

struct ibv_pd *ibv_import_pd(struct ibv_context *context, uint32_t pd_handle)
{
	return no_object();
}

struct ibv_mr *ibv_import_mr(struct ibv_pd *pd, uint32_t mr_handle)
{
	return no_object();
}

struct ibv_dm *ibv_import_dm(struct ibv_context *context, uint32_t dm_handle)
{
	return no_object();
}

/* Nothing was imported. */
void ibv_unimport_pd(struct ibv_pd *pd) {}
void ibv_unimport_mr(struct ibv_mr *mr) {}
void ibv_unimport_dm(struct ibv_dm *dm) {}

struct ibv_mr *ibv_reg_dmabuf_mr(struct ibv_pd *pd, uint64_t offset, size_t length, uint64_t iova,
				 int fd,
				 int access)
{
	return no_object();
}

/*
 * Structures of the kernel's interface, which rdma-core's librdmacm converts by these. No kernel of
 * ours made one, so the program's side of them is empty.
 */
void ibv_copy_ah_attr_from_kern(struct ibv_ah_attr *dst, struct ibv_kern_ah_attr *src)
{
	memset(dst, 0, sizeof(*dst));
}

void ibv_copy_qp_attr_from_kern(struct ibv_qp_attr *dst, struct ibv_kern_qp_attr *src)
{
	memset(dst, 0, sizeof(*dst));
}

void ibv_copy_path_rec_from_kern(struct ibv_sa_path_rec *dst, struct ibv_kern_path_rec *src)
{
}

void ibv_copy_path_rec_to_kern(struct ibv_kern_path_rec *dst, struct ibv_sa_path_rec *src)
{
}

/* ---- sysfs ---- */

const char *ibv_get_sysfs_path(void)
{
	return "/sys";
}

/* Our devices are not in sysfs. Programs use this for other files there, too. */
int ibv_read_sysfs_file(const char *dir, const char *file, char *buf, size_t size)
{
	char path[4096];
	ssize_t n;
	int fd;

	if (snprintf(path, sizeof(path), "%s/%s", dir, file) >= (int)sizeof(path) || size == 0)
		return -1;
	fd = open(path, O_RDONLY | O_CLOEXEC);
	if (fd < 0)
		return -1;
	n = read(fd, buf, size);
	close(fd);
	if (n <= 0)
		return -1;
	if (buf[n - 1] == '\n')
		buf[--n] = '\0';
	else if ((size_t)n < size)
		buf[n] = '\0';
	else
		return -1;
	return (int)n;
}

/* What providers read of a device that they found in sysfs. */
struct verbs_sysfs_dev;
PRIVATE(ibv_read_ibdev_sysfs_file);
EXPORT int stub_ibv_read_ibdev_sysfs_file(char *buf, size_t size, struct verbs_sysfs_dev *dev,
					  const char *fmt, ...)
{
	(void)buf, (void)size, (void)dev, (void)fmt;
	errno = ENOENT;
	return -1;
}

/* GIDs of an RNIC, and those of entries that are empty, have no version of RoCE. */
PRIVATE(ibv_query_gid_type);
EXPORT int stub_ibv_query_gid_type(struct ibv_context *context, uint8_t port_num,
				   unsigned int index, enum ibv_gid_type_sysfs *type)
{
	struct ibv_gid_entry e;
	int err = _ibv_query_gid_ex(context, port_num, index, &e, 0, sizeof(e));

	if (err && err != ENODATA) {
		errno = err;
		return -1;
	}
	*type = !err && e.gid_type == IBV_GID_TYPE_ROCE_V2 ? IBV_GID_TYPE_SYSFS_ROCE_V2 :
							     IBV_GID_TYPE_SYSFS_IB_ROCE_V1;
	return 0;
}

/* ---- fork ---- */

/* The daemon reaches memory by address: a child's copies are its own, whatever is registered. */
int ibv_fork_init(void)
{
	return 0;
}

enum ibv_fork_status ibv_is_fork_initialized(void)
{
	return IBV_FORK_UNNEEDED;
}

int ibv_dontfork_range(void *base, size_t size)
{
	(void)base, (void)size;
	return 0;
}

int ibv_dofork_range(void *base, size_t size)
{
	(void)base, (void)size;
	return 0;
}

/*
 * ---- the interface of providers: the types are not those that they know, since almost none of the
 * arguments is looked at ----
 */

#define STUB_ERRNO(name)				\
	PRIVATE(name);					\
	EXPORT int stub_##name(void);			\
	int stub_##name(void) { return EOPNOTSUPP; }

#define STUB_NULL(name)					\
	PRIVATE(name);					\
	EXPORT void *stub_##name(void);		\
	void *stub_##name(void) { return no_object(); }

#define STUB_NOTHING(name)				\
	PRIVATE(name);					\
	EXPORT void stub_##name(void);			\
	void stub_##name(void) {}

/* What only later releases have. */
#define STUB_LATER(name)				\
	__asm__(LATER_NODES("stub_" #name, #name));	\
	EXPORT int stub_##name(void);			\
	int stub_##name(void) { return EOPNOTSUPP; }

/*
 * Constructors of providers call these with their drivers. No driver of theirs finds a device here.
 */
#define STUB_REGISTER(name)			\
	EXPORT void name(const void *ops);	\
	void name(const void *ops) {}
STUB_REGISTER(verbs_register_driver_34)
STUB_REGISTER(verbs_register_driver_57)
STUB_REGISTER(verbs_register_driver_59)
STUB_REGISTER(verbs_register_driver_64)
STUB_REGISTER(verbs_register_driver_65)

__asm__(".symver ibv_register_driver,ibv_register_driver@IBVERBS_1.1,remove");
EXPORT void ibv_register_driver(const char *name, void *init);
void ibv_register_driver(const char *name, void *init) {}

/* Read by providers when a device is gone. */
PRIVATE(verbs_allow_disassociate_destroy);
EXPORT extern bool stub_verbs_allow_disassociate_destroy;
bool stub_verbs_allow_disassociate_destroy;

/*
 * Programs ask providers about our devices, and their libraries complain that those are not theirs.
 */
PRIVATE(__verbs_log);
EXPORT void stub___verbs_log(void *context, uint32_t level, const char *fmt, ...);
void stub___verbs_log(void *context, uint32_t level, const char *fmt, ...)
{
}

STUB_NOTHING(verbs_init_cq)
STUB_NOTHING(verbs_set_ops)
STUB_NOTHING(verbs_uninit_context)
STUB_NULL(_verbs_init_and_alloc_context)
STUB_NULL(verbs_open_device)
STUB_ERRNO(execute_ioctl)

PRIVATE(__ioctl_final_num_attrs);
EXPORT unsigned int stub___ioctl_final_num_attrs(unsigned int num_attrs, void *link);
unsigned int stub___ioctl_final_num_attrs(unsigned int num_attrs, void *link)
{
	return num_attrs;
}

STUB_ERRNO(ibv_cmd_advise_mr)
STUB_ERRNO(ibv_cmd_alloc_dm)
STUB_ERRNO(ibv_cmd_alloc_mw)
STUB_ERRNO(ibv_cmd_alloc_pd)
STUB_ERRNO(ibv_cmd_attach_mcast)
STUB_ERRNO(ibv_cmd_close_xrcd)
STUB_ERRNO(ibv_cmd_create_ah)
STUB_ERRNO(ibv_cmd_create_counters)
STUB_ERRNO(ibv_cmd_create_cq)
STUB_ERRNO(ibv_cmd_create_cq_ex)
STUB_ERRNO(ibv_cmd_create_cq_ex2) /* since 53 */
STUB_ERRNO(ibv_cmd_create_flow)
STUB_ERRNO(ibv_cmd_create_flow_action_esp)
STUB_ERRNO(ibv_cmd_create_qp)
STUB_ERRNO(ibv_cmd_create_qp_ex)
STUB_ERRNO(ibv_cmd_create_qp_ex2)
STUB_ERRNO(ibv_cmd_create_rwq_ind_table)
STUB_ERRNO(ibv_cmd_create_srq)
STUB_ERRNO(ibv_cmd_create_srq_ex)
STUB_ERRNO(ibv_cmd_create_wq)
STUB_ERRNO(ibv_cmd_dealloc_mw)
STUB_ERRNO(ibv_cmd_dealloc_pd)
STUB_ERRNO(ibv_cmd_dereg_mr)
STUB_ERRNO(ibv_cmd_destroy_ah)
STUB_ERRNO(ibv_cmd_destroy_counters)
STUB_ERRNO(ibv_cmd_destroy_cq)
STUB_ERRNO(ibv_cmd_destroy_flow)
STUB_ERRNO(ibv_cmd_destroy_flow_action)
STUB_ERRNO(ibv_cmd_destroy_qp)
STUB_ERRNO(ibv_cmd_destroy_rwq_ind_table)
STUB_ERRNO(ibv_cmd_destroy_srq)
STUB_ERRNO(ibv_cmd_destroy_wq)
STUB_ERRNO(ibv_cmd_detach_mcast)
STUB_ERRNO(ibv_cmd_free_dm)
STUB_ERRNO(ibv_cmd_get_context)
STUB_ERRNO(ibv_cmd_modify_cq)
STUB_ERRNO(ibv_cmd_modify_flow_action_esp)
STUB_ERRNO(ibv_cmd_modify_qp)
STUB_ERRNO(ibv_cmd_modify_qp_ex)
STUB_ERRNO(ibv_cmd_modify_srq)
STUB_ERRNO(ibv_cmd_modify_wq)
STUB_ERRNO(ibv_cmd_open_qp)
STUB_ERRNO(ibv_cmd_open_xrcd)
STUB_ERRNO(ibv_cmd_poll_cq)
STUB_ERRNO(ibv_cmd_post_recv)
STUB_ERRNO(ibv_cmd_post_send)
STUB_ERRNO(ibv_cmd_post_srq_recv)
STUB_ERRNO(ibv_cmd_query_context)
STUB_ERRNO(ibv_cmd_query_device_any)
STUB_ERRNO(ibv_cmd_query_mr)
STUB_ERRNO(ibv_cmd_query_port)
STUB_ERRNO(ibv_cmd_query_qp)
STUB_ERRNO(ibv_cmd_query_srq)
STUB_ERRNO(ibv_cmd_read_counters)
STUB_ERRNO(ibv_cmd_reg_dm_mr)
STUB_ERRNO(ibv_cmd_reg_dmabuf_mr)
STUB_ERRNO(ibv_cmd_reg_mr)
STUB_ERRNO(ibv_cmd_req_notify_cq)
STUB_ERRNO(ibv_cmd_rereg_mr)
STUB_ERRNO(ibv_cmd_resize_cq)

STUB_LATER(ibv_cmd_alloc_dmah)
STUB_LATER(ibv_cmd_create_comp_cntr)
STUB_LATER(ibv_cmd_destroy_comp_cntr)
STUB_LATER(ibv_cmd_export_dmabuf_fd)
STUB_LATER(ibv_cmd_free_dmah)
STUB_LATER(ibv_cmd_inc_comp_cntr)
STUB_LATER(ibv_cmd_inc_err_comp_cntr)
STUB_LATER(ibv_cmd_qp_attach_comp_cntr)
STUB_LATER(ibv_cmd_query_comp_cntr_caps)
STUB_LATER(ibv_cmd_query_port_speed)
STUB_LATER(ibv_cmd_read_comp_cntr)
STUB_LATER(ibv_cmd_read_err_comp_cntr)
STUB_LATER(ibv_cmd_reg_mr_ex)
STUB_LATER(ibv_cmd_set_comp_cntr)
STUB_LATER(ibv_cmd_set_err_comp_cntr)
STUB_LATER(ibv_dmabuf_heap_alloc)
STUB_LATER(ibv_dmabuf_heap_cc_shared_init)
STUB_LATER(ibv_dmabuf_heap_destroy)
STUB_LATER(ibv_dmabuf_heap_free)

/* Since 50, for their messages. */
PRIVATE(ibv_wr_opcode_str);
EXPORT const char *stub_ibv_wr_opcode_str(int opcode);
const char *stub_ibv_wr_opcode_str(int opcode)
{
	return "work request";
}
