/* The port of a device: its attributes, and its tables of GIDs and partitions. */
#include <arpa/inet.h>
#include <errno.h>
#include <string.h>

#include "objects.h"

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
