/* Devices: the list of them, opening, attributes, and asynchronous events. */
#include <arpa/inet.h>
#include <endian.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "objects.h"

#define MAX_READS 128	 /* programs and librdmacm hold the number in eight bits */

/*
 * One for each name that a daemon had; it stays, since programs may keep it as long as they like.
 */
struct vrnic_device {
	struct verbs_device v;
	struct vrnic_device *next;
	uint32_t index; /* when last listed */
	uint64_t guid;
	struct ibv_context *cm; /* what all ids of rdma_cm share, or NULL */
};

/* before all others but open_lock */
static pthread_mutex_t device_lock = PTHREAD_MUTEX_INITIALIZER;
static struct vrnic_device *devices;

/* Another thread of the parent may have held the lock when this process was forked. */
static void in_child(void) { pthread_mutex_init(&device_lock, NULL); }
__attribute__((constructor)) static void watch_forks(void) { pthread_atfork(NULL, NULL, in_child); }

static struct vrnic_device *to_vdev(struct ibv_device *device)
{
	return container_of(device, struct vrnic_device, v.device);
}

/*
 * The list.
 */

static bool is_roce(const struct vrnic_query_device_reply *rep)
{
	return rep->node_type == VRNIC_NODE_CA;
}

/* The names of its files, which `vrnic exec` makes for the devices that the program may have. */
static void name_files(struct ibv_device *v, struct vrnic_session *s, uint32_t index)
{
	char name[IBV_SYSFS_NAME_MAX];
	uint32_t i;
	int n = 0;

	for (i = 0; i < index; i++)
		n += vrnic_device_allowed(s, i);
	snprintf(name, sizeof(name), "uverbs%d", n);
	if (!strcmp(v->dev_name, name)) /* a program may be reading it */
		return;
	snprintf(v->dev_name, sizeof(v->dev_name), "%s", name);
	snprintf(v->dev_path, sizeof(v->dev_path), "/sys/class/infiniband_verbs/%s", name);
	snprintf(v->ibdev_path, sizeof(v->ibdev_path), "/sys/class/infiniband/%s", v->name);
}

/* The device of a description, made if it is new, or NULL: device_lock is held. */
static struct vrnic_device *find_device(struct vrnic_session *s, uint32_t index,
					const struct vrnic_query_device_reply *rep)
{
	static const char ops[sizeof(void *)]; /* nobody else's: docs/decisions.md#V2 */
	struct vrnic_device *d;
	struct ibv_device *v;

	for (d = devices; d; d = d->next)
		if (!strcmp(d->v.device.name, rep->name))
			goto found;
	d = calloc(1, sizeof(*d));
	if (!d)
		return NULL;
	v = &d->v.device;
	snprintf(v->name, sizeof(v->name), "%s", rep->name);
	d->v.ops = ops;
	d->v.refcount = 1;
	d->v.entry.next = d->v.entry.prev = &d->v.entry;
	d->next = devices;
	devices = d;
found:
	/* Another daemon may have a device of another kind by that name. */
	d->v.device.node_type = is_roce(rep) ? IBV_NODE_CA : IBV_NODE_RNIC;
	d->v.device.transport_type = is_roce(rep) ? IBV_TRANSPORT_IB : IBV_TRANSPORT_IWARP;
	d->index = index;
	d->guid = rep->guid;
	name_files(&d->v.device, s, index);
	return d;
}

struct ibv_device **ibv_get_device_list(int *num_devices)
{
	struct vrnic_session *s = vrnic_session();
	struct vrnic_query_device_reply rep;
	struct ibv_device **list;
	struct vrnic_device *d;
	int found = 0;
	uint32_t i, n;

	if (num_devices)
		*num_devices = 0;
	if (!s)
		return NULL;
	vrnic_look(s);
	n = vrnic_num_devices(s);
	list = calloc(n + 1, sizeof(*list));
	if (!list)
		return NULL;
	pthread_mutex_lock(&device_lock);
	for (i = 0; i < n; i++) {
		if (!vrnic_device_allowed(s, i) || vrnic_query_device(s, i, &rep))
			continue;
		d = find_device(s, i, &rep);
		if (d)
			list[found++] = &d->v.device;
	}
	pthread_mutex_unlock(&device_lock);
	if (!found && vrnic_dead(s)) {
		free(list);
		errno = EIO;
		return NULL;
	}
	if (num_devices)
		*num_devices = found;
	return list;
}

void ibv_free_device_list(struct ibv_device **list)
{
	free(list);
}

const char *ibv_get_device_name(struct ibv_device *device)
{
	return device->name;
}

int ibv_get_device_index(struct ibv_device *device)
{
	return to_vdev(device)->index;
}

ibv_be64 ibv_get_device_guid(struct ibv_device *device)
{
	return htobe64(to_vdev(device)->guid);
}

/*
 * Contexts.
 */

static int clip(uint32_t v)
{
	return v < INT32_MAX ? (int)v : INT32_MAX;
}

static void device_attr(const struct vrnic_query_device_reply *q, struct ibv_device_attr *a)
{
	uint64_t reads = q->card ? q->max_reads : (uint64_t)q->max_qp * q->max_ird;
	uint64_t attached = q->card ? q->max_members : (uint64_t)q->max_groups * q->max_group_qps;

	memset(a, 0, sizeof(*a));
	snprintf(a->fw_ver, sizeof(a->fw_ver), "%s", q->fw_version);
	a->node_guid = a->sys_image_guid = htobe64(q->guid);
	a->max_mr_size = q->max_mr_len;
	a->page_size_cap = q->card ? q->page_sizes : ~(uint64_t)4095;
	a->vendor_id = q->vendor_id;
	a->vendor_part_id = q->part_id;
	a->hw_ver = q->hw_version;
	a->max_qp = clip(q->max_qp);
	a->max_qp_wr = clip(q->max_qp_wr);
	a->device_cap_flags = q->cap_flags;
	a->max_sge = clip(q->max_sge);
	a->max_sge_rd = clip(q->card ? q->max_read_sge : q->max_sge);
	a->max_cq = clip(q->max_cq);
	a->max_cqe = clip(q->max_cqe);
	a->max_mr = clip(q->max_mr);
	a->max_pd = clip(q->max_pd);
	a->max_qp_rd_atom = q->max_ird < MAX_READS ? q->max_ird : MAX_READS;
	a->max_qp_init_rd_atom = q->max_ord < MAX_READS ? q->max_ord : MAX_READS;
	a->max_res_rd_atom = reads < INT32_MAX ? (int)reads : INT32_MAX;
	a->atomic_cap = q->atomic_cap;
	a->max_mw = clip(q->max_mw);
	a->max_srq = clip(q->max_srq);
	a->max_srq_wr = clip(q->max_srq_wr);
	a->max_srq_sge = clip(q->max_srq_sge);
	a->max_ah = clip(q->max_ah);
	a->max_mcast_grp = clip(q->max_groups);
	a->max_mcast_qp_attach = clip(q->max_group_qps);
	a->max_total_mcast_qp_attach = attached < INT32_MAX ? (int)attached : INT32_MAX;
	a->max_pkeys = q->card ? (uint16_t)q->max_pkeys : 1;
	a->local_ca_ack_delay = (uint8_t)q->ack_delay;
	a->phys_port_cnt = 1;
}

int ibv_query_device(struct ibv_context *context, struct ibv_device_attr *attr)
{
	struct vrnic_context *c = to_vctx(context);

	if (vrnic_peer_gone(c->s))
		return EIO;
	device_attr(&c->attr, attr);
	return 0;
}

/*
 * Memory of the program's is reached by the program's addresses, page by page as messages come: all
 * regions are as those that are paged on demand.
 */
static void odp_caps(const struct vrnic_context *c, struct ibv_odp_caps *caps)
{
	if (c->attr.card & VRNIC_CARD_UNPAGED)
		return;
	const uint32_t messages = IBV_ODP_SUPPORT_SEND | IBV_ODP_SUPPORT_RECV | IBV_ODP_SUPPORT_SRQ_RECV;

	caps->general_caps = IBV_ODP_SUPPORT;
	caps->per_transport_caps.rc_odp_caps = messages | IBV_ODP_SUPPORT_WRITE | IBV_ODP_SUPPORT_READ |
					       IBV_ODP_SUPPORT_ATOMIC;
	if (!c->roce)
		return;
	caps->per_transport_caps.uc_odp_caps = messages | IBV_ODP_SUPPORT_WRITE;
	caps->per_transport_caps.ud_odp_caps = messages;
}

static int query_device_ex(struct ibv_context *context,
			   const struct ibv_query_device_ex_input *input,
			   struct ibv_device_attr_ex *attr, size_t attr_size)
{
	struct ibv_device_attr_ex a = { 0 };
	int err;

	if ((input && input->comp_mask) ||
	    attr_size < offsetof(struct ibv_device_attr_ex, comp_mask) + sizeof(a.comp_mask))
		return EINVAL;
	err = ibv_query_device(context, &a.orig_attr);
	if (err)
		return err;
	/* Completions carry CLOCK_MONOTONIC in nanoseconds; the frequency is in kHz. */
	if (!(to_vctx(context)->attr.card & VRNIC_CARD_CLOCKLESS)) {
		a.completion_timestamp_mask = UINT64_MAX;
		a.hca_core_clock = 1000000;
	}
	a.device_cap_flags_ex = a.orig_attr.device_cap_flags;
	a.phys_port_cnt_ex = 1;
	odp_caps(to_vctx(context), &a.odp_caps);
	memset(attr, 0, attr_size);
	memcpy(attr, &a, attr_size < sizeof(a) ? attr_size : sizeof(a));
	return 0;
}

static int query_rt_values(struct ibv_context *context, struct ibv_values_ex *values)
{
	struct timespec now;

	(void)context;
	if (values->comp_mask & ~(uint32_t)IBV_VALUES_MASK_RAW_CLOCK)
		return EINVAL;
	if (values->comp_mask) {
		clock_gettime(CLOCK_MONOTONIC, &now);
		/* One number, as completions have it. */
		values->raw_clock.tv_sec = 0;
		values->raw_clock.tv_nsec = now.tv_sec * INT64_C(1000000000) + now.tv_nsec;
	}
	return 0;
}

static void set_ops(struct verbs_context *v)
{
	struct ibv_context_ops *ops = &v->context.ops;

	ops->_compat_query_port = ibv_query_port;
	ops->alloc_mw = vrnic_alloc_mw;
	ops->bind_mw = vrnic_bind_mw;
	ops->dealloc_mw = vrnic_dealloc_mw;
	ops->poll_cq = vrnic_poll_cq;
	ops->req_notify_cq = vrnic_req_notify_cq;
	ops->post_srq_recv = vrnic_post_srq_recv;
	ops->post_send = vrnic_post_send;
	ops->post_recv = vrnic_post_recv;

	v->query_port = vrnic_query_port;
	v->advise_mr = vrnic_advise_mr;
	v->alloc_parent_domain = vrnic_alloc_parent_domain;
	v->alloc_td = vrnic_alloc_td;
	v->dealloc_td = vrnic_dealloc_td;
	v->query_rt_values = query_rt_values;
	v->create_cq_ex = vrnic_create_cq_ex;
	v->query_device_ex = query_device_ex;
	v->create_qp_ex = vrnic_create_qp_ex;
	v->get_srq_num = vrnic_get_srq_num;
	v->create_srq_ex = vrnic_create_srq_ex;
	v->open_xrcd = vrnic_open_xrcd;
	v->sz = sizeof(*v);
}

/* Opens the device that the daemon of s has under index. */
static struct ibv_context *open_context(struct vrnic_session *s, struct vrnic_device *dev,
					uint32_t index,
					const struct vrnic_query_device_reply *attr)
{
	struct vrnic_ctx_open_request req = { .device = index };
	struct vrnic_ctx_open_reply rep;
	struct vrnic_context *c = calloc(1, sizeof(*c));
	struct ibv_context *ibv;
	int fd, err;

	if (!c)
		return NULL;
	err = vrnic_rpc(s, VRNIC_OP_CTX_OPEN, &req, sizeof(req), &rep, sizeof(rep), -1, &fd, 1);
	if (!err && !vrnic_check_pipe(s, fd)) {
		vrnic_close(fd);
		err = EIO;
	}
	if (err) {
		free(c);
		errno = err;
		return NULL;
	}
	c->s = s;
	c->dev = dev;
	c->dev_index = index;
	c->handle = rep.ctx;
	c->roce = is_roce(attr);
	c->attr = *attr;
	pthread_mutex_init(&c->obj_lock, NULL);
	ibv = &c->v.context;
	ibv->device = &dev->v.device;
	ibv->cmd_fd = -1;
	ibv->async_fd = fd;
	ibv->num_comp_vectors = 1;
	pthread_mutex_init(&ibv->mutex, NULL);
	ibv->abi_compat = VERBS_ABI_IS_EXTENDED;
	set_ops(&c->v);
	return ibv;
}

struct ibv_context *ibv_open_device(struct ibv_device *device)
{
	struct vrnic_session *s = vrnic_session();
	struct vrnic_query_device_reply attr;
	int err = ENODEV;
	uint32_t i;

	if (!s)
		return NULL;
	/*
	 * The daemon may be another than when the list was made; and one may have been made anew, under
	 * another number: the last one is there, or none.
	 */
	vrnic_look(s);
	for (i = vrnic_num_devices(s); err == ENODEV && i > 0;)
		if (!strcmp(s->names[--i], device->name))
			err = vrnic_query_device(s, i, &attr);
	if (err) {
		errno = err;
		return NULL;
	}
	return open_context(s, to_vdev(device), i, &attr);
}

/*
 * A thread may be on its way into a wait for events. What it finds must still be a context, so the
 * last ones are kept, and for ever those in which threads wait.
 */
static void bury(struct vrnic_context *c)
{
	static struct vrnic_context *graves[16];
	static unsigned int next;
	struct vrnic_context *old;

	pthread_mutex_lock(&device_lock);
	old = graves[next % (sizeof(graves) / sizeof(graves[0]))];
	graves[next++ % (sizeof(graves) / sizeof(graves[0]))] = c;
	pthread_mutex_unlock(&device_lock);
	if (!old || atomic_load(&old->waiters))
		return;
	vrnic_table_free(&old->objs);
	pthread_mutex_destroy(&old->obj_lock);
	pthread_mutex_destroy(&old->v.context.mutex);
	free(old);
}

int ibv_close_device(struct ibv_context *context)
{
	struct vrnic_context *c = to_vctx(context);

	atomic_store(&c->gone, true);
	/*
	 * In this order: a thread that waits for events learns from it that it is not the daemon that has
	 * gone.
	 */
	vrnic_close(context->async_fd);
	if (vrnic_rpc_handle(c->s, VRNIC_OP_CTX_CLOSE, c->handle, NULL, 0) != EBUSY)
		bury(c);
	/*
	 * Else what the program has left in it lives as long as the session, and so does what it points
	 * to.
	 */
	return 0;
}

struct ibv_context *vrnic_cm_context(struct vrnic_session *s, uint32_t index)
{
	struct vrnic_query_device_reply attr;
	struct ibv_context *c = NULL;
	struct vrnic_device *d;
	int err, old;

	if (index >= vrnic_num_devices(s)) /* rdma_cm tells of one that has come later */
		vrnic_look(s);
	err = vrnic_query_device(s, index, &attr);
	if (err) {
		errno = err;
		return NULL;
	}
	pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &old);
	pthread_mutex_lock(&device_lock);
	d = find_device(s, index, &attr);
	if (d) {
		/* Another session's stays, in the hands of whoever has got it. */
		if (!d->cm || to_vctx(d->cm)->s != s)
			d->cm = open_context(s, d, index, &attr);
		c = d->cm;
	}
	pthread_mutex_unlock(&device_lock);
	pthread_setcancelstate(old, NULL);
	return c;
}

uint32_t vrnic_device_index(struct ibv_context *c)
{
	return to_vctx(c)->dev_index;
}

/*
 * The port: its attributes, and its tables of GIDs and partitions.
 */

int vrnic_query_port(struct ibv_context *context, uint8_t port_num, struct ibv_port_attr *attr,
		     size_t attr_len)
{
	struct vrnic_context *c = to_vctx(context);
	struct vrnic_query_port_request req = { .device = c->dev_index, .port = port_num };
	struct vrnic_query_port_reply rep;
	struct ibv_port_attr a = { 0 };
	int err = vrnic_rpc(c->s, VRNIC_OP_QUERY_PORT, &req, sizeof(req), &rep, sizeof(rep), -1, NULL, 0);

	if (err)
		return err;
	a.state = rep.state;
	a.max_mtu = rep.max_mtu;
	a.active_mtu = rep.active_mtu;
	a.gid_tbl_len = rep.gids;
	a.port_cap_flags = rep.cap_flags;
	a.max_msg_sz = rep.max_msg;
	a.pkey_tbl_len = 1;
	a.max_vl_num = 1;
	a.active_width = rep.width;
	a.active_speed = rep.speed;
	a.phys_state = rep.phys_state;
	a.link_layer = rep.link_layer;
	a.flags = c->roce ? IBV_QPF_GRH_REQUIRED : 0;
	memset(attr, 0, attr_len);
	memcpy(attr, &a, attr_len < sizeof(a) ? attr_len : sizeof(a));
	return 0;
}

/* For programs that were compiled when the structure ended before port_cap_flags2. */
#undef ibv_query_port
int ibv_query_port(struct ibv_context *context, uint8_t port_num, struct ibv_port_attr *attr)
{
	return vrnic_query_port(context, port_num, attr, offsetof(struct ibv_port_attr, port_cap_flags2));
}

/* 0 or an errno. */
static int query_gid(struct ibv_context *context, uint32_t port_num, uint32_t index,
		     struct vrnic_query_gid_reply *rep)
{
	struct vrnic_context *c = to_vctx(context);
	struct vrnic_query_gid_request req = { .device = c->dev_index, .port = port_num, .index = index };

	return vrnic_rpc(c->s, VRNIC_OP_QUERY_GID, &req, sizeof(req), rep, sizeof(*rep), -1, NULL, 0);
}

int ibv_query_gid(struct ibv_context *context, uint8_t port_num, int index, union ibv_gid *gid)
{
	struct vrnic_query_gid_reply rep;
	int err = query_gid(context, port_num, (uint32_t)index, &rep);

	if (err) {
		errno = err;
		return -1;
	}
	memcpy(gid->raw, rep.gid, sizeof(gid->raw));
	return 0;
}

/* There is one partition, the default one. */
int ibv_query_pkey(struct ibv_context *context, uint8_t port_num, int index, ibv_be16 *pkey)
{
	(void)context;
	if (port_num != 1 || index != 0) {
		errno = EINVAL;
		return -1;
	}
	*pkey = htons(0xffff);
	return 0;
}

int ibv_get_pkey_index(struct ibv_context *context, uint8_t port_num, ibv_be16 pkey)
{
	ibv_be16 have;

	for (int i = 0;; i++) {
		if (ibv_query_pkey(context, port_num, i, &have))
			return -1;
		if (have == pkey)
			return i;
	}
}

/*
 * size is what the program knows of an entry. 0 or an errno; ENODATA: the entry is empty. The
 * address may be on no interface of the kernel's, so ndev_ifindex is 0, none.
 */
static int query_gid_entry(struct ibv_context *context, uint32_t port_num, uint32_t index,
			   void *dst, size_t size)
{
	static const union ibv_gid none;
	struct ibv_gid_entry e = {.gid_index = index, .port_num = port_num};
	struct vrnic_query_gid_reply rep;
	int err;

	if (port_num > UINT8_MAX || index > INT32_MAX)
		return EINVAL;
	err = query_gid(context, port_num, index, &rep);
	if (err)
		return err;
	memcpy(e.gid.raw, rep.gid, sizeof(e.gid.raw));
	e.gid_type = rep.type;
	if (!memcmp(&e.gid, &none, sizeof(none)))
		return ENODATA;
	memset(dst, 0, size);
	memcpy(dst, &e, size < sizeof(e) ? size : sizeof(e));
	return 0;
}

int _ibv_query_gid_ex(struct ibv_context *context, uint32_t port_num, uint32_t gid_index,
		      struct ibv_gid_entry *entry, uint32_t flags, size_t entry_size)
{
	if (flags)
		return EOPNOTSUPP;
	return query_gid_entry(context, port_num, gid_index, entry, entry_size);
}

ssize_t _ibv_query_gid_table(struct ibv_context *context, struct ibv_gid_entry *entries,
			     size_t max_entries,
			     uint32_t flags, size_t entry_size)
{
	struct ibv_port_attr port;
	char entry[256];
	size_t n = 0;
	int err;

	if (flags)
		return -EOPNOTSUPP;
	if (entry_size > sizeof(entry))
		return -EINVAL;
	err = ibv_query_port(context, 1, &port);
	if (err)
		return -err;
	for (int i = 0; i < port.gid_tbl_len; i++) {
		err = query_gid_entry(context, 1, (uint32_t)i, entry, entry_size);
		if (err == ENODATA)
			continue;
		if (err)
			return -err;
		if (n == max_entries)
			return -EINVAL;
		memcpy((char *)entries + n++ * entry_size, entry, entry_size);
	}
	return (ssize_t)n;
}
