/*
 * Where datagrams go to: address handles, and multicast groups. An RNIC has neither, and its daemon
 * says so.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "objects.h"

/* The daemon finds out where the peer is, and it takes as long as that. */
struct ibv_ah *ibv_create_ah(struct ibv_pd *pd, struct ibv_ah_attr *attr)
{
	struct vrnic_context *c = to_vctx(pd->context);
	struct vrnic_create_ah_request req = { .pd = pd->handle, .attr = vrnic_to_ah_attr(attr) };
	struct vrnic_create_ah_reply rep;
	struct vrnic_ah *ah;
	int err;

	if (!c->roce) {
		errno = EOPNOTSUPP;
		return NULL;
	}
	ah = calloc(1, sizeof(*ah));
	if (!ah)
		return NULL;
	err = vrnic_rpc(c->s, VRNIC_OP_CREATE_AH, &req, sizeof(req), &rep, sizeof(rep), -1, NULL, 0);
	if (err) {
		free(ah);
		errno = err;
		return NULL;
	}
	atomic_fetch_add(&to_vpd(pd)->users, 1);
	ah->key = rep.key;
	ah->ah.context = pd->context;
	ah->ah.pd = pd;
	ah->ah.handle = rep.ah;
	return &ah->ah;
}

int ibv_destroy_ah(struct ibv_ah *ah)
{
	struct vrnic_session *s = to_vctx(ah->context)->s;
	int err = vrnic_rpc_handle(s, VRNIC_OP_DESTROY_AH, ah->handle, NULL, 0);

	if (err && !vrnic_dead(s))
		return err;
	atomic_fetch_sub(&to_vpd(ah->pd)->users, 1);
	free(to_vah(ah));
	return 0;
}

/*
 * The way back.
 */

/* What an IPv4 header is as far as the way back needs it, in network order. */
struct ipv4 {
	uint8_t version_ihl;
	uint8_t tos;
	uint8_t more[10];
	uint8_t src[4];
	uint8_t dst[4];
};
_Static_assert(sizeof(struct ipv4) == 20, "an IPv4 header without options");

/*
 * Whether what is in front of a datagram is an IPv4 header, which then is in the last 20 of the 40
 * octets: of IPv6's two addresses there, it would have to be a valid one.
 */
static bool is_ipv4(const struct ibv_grh *grh, struct ipv4 *h)
{
	uint32_t sum = 0;
	uint16_t w[10];

	memcpy(h, (const char *)grh + sizeof(*grh) - sizeof(*h), sizeof(*h));
	if (h->version_ihl != 0x45)
		return false;
	memcpy(w, h, sizeof(w));
	for (size_t i = 0; i < sizeof(w) / sizeof(w[0]); i++)
		sum += w[i];
	while (sum >> 16)
		sum = (sum & 0xffff) + (sum >> 16);
	return sum == 0xffff;
}

static void mapped(union ibv_gid *gid, const uint8_t addr[4])
{
	memset(gid, 0, sizeof(*gid));
	gid->raw[10] = gid->raw[11] = 0xff;
	memcpy(gid->raw + 12, addr, 4);
}

/* The index of one of the port's own GIDs: 0 or an errno. */
static int find_gid(struct ibv_context *context, uint8_t port_num, const union ibv_gid *gid,
		    uint8_t *index)
{
	struct ibv_port_attr port;
	union ibv_gid have;
	int err = ibv_query_port(context, port_num, &port);

	for (int i = 0; !err && i < port.gid_tbl_len && i <= UINT8_MAX; i++) {
		if (ibv_query_gid(context, port_num, i, &have) || memcmp(&have, gid, sizeof(have)))
			continue;
		*index = (uint8_t)i;
		return 0;
	}
	return err ? err : ENOENT;
}

/*
 * How far the datagram had still to go says nothing of the way back: the hop limit is the default.
 */
int ibv_init_ah_from_wc(struct ibv_context *context, uint8_t port_num, struct ibv_wc *wc,
			struct ibv_grh *grh, struct ibv_ah_attr *attr)
{
	union ibv_gid own;
	uint32_t flow;
	struct ipv4 h;
	int err;

	if (!to_vctx(context)->roce) {
		errno = EOPNOTSUPP;
		return -1;
	}
	memset(attr, 0, sizeof(*attr));
	attr->port_num = port_num;
	attr->sl = wc->sl;
	attr->dlid = wc->slid;
	attr->src_path_bits = wc->dlid_path_bits;
	if (!(wc->wc_flags & IBV_WC_GRH))
		return 0;
	attr->is_global = 1;
	if (is_ipv4(grh, &h)) {
		mapped(&attr->grh.dgid, h.src);
		mapped(&own, h.dst);
		attr->grh.traffic_class = h.tos;
	} else {
		flow = ntohl(grh->version_tclass_flow);
		memcpy(&attr->grh.dgid, &grh->sgid, sizeof(own));
		memcpy(&own, &grh->dgid, sizeof(own));
		attr->grh.traffic_class = flow >> 20 & 0xff;
		attr->grh.flow_label = flow & 0xfffff;
	}
	attr->grh.hop_limit = 64;
	err = find_gid(context, port_num, &own, &attr->grh.sgid_index);
	if (!err)
		return 0;
	errno = err;
	return -1;
}

struct ibv_ah *ibv_create_ah_from_wc(struct ibv_pd *pd, struct ibv_wc *wc, struct ibv_grh *grh,
				     uint8_t port_num)
{
	struct ibv_ah_attr attr;

	if (!to_vctx(pd->context)->roce) {
		errno = EOPNOTSUPP;
		return NULL;
	}
	if (ibv_init_ah_from_wc(pd->context, port_num, wc, grh, &attr))
		return NULL;
	return ibv_create_ah(pd, &attr);
}

/*
 * The MAC of where a GID leads to, and no VLAN. Only what a GID says by itself is known here: that
 * of a group, and the link-local one that was made of a MAC. For others the daemon has a neighbour
 * cache, which it asks when a QP is connected or a handle made.
 */
int ibv_resolve_eth_l2_from_gid(struct ibv_context *context, struct ibv_ah_attr *attr,
				uint8_t eth_mac[6], uint16_t *vid)
{
	const uint8_t *gid = attr->grh.dgid.raw;
	static const uint8_t v4[12] = { [10] = 0xff, [11] = 0xff };

	if (!to_vctx(context)->roce)
		return EOPNOTSUPP;
	if (!attr->is_global || attr->port_num != 1)
		return EINVAL;
	if (!memcmp(gid, v4, sizeof(v4)) && gid[12] >> 4 == 0xe) {
		eth_mac[0] = 0x01;
		eth_mac[1] = 0x00;
		eth_mac[2] = 0x5e;
		eth_mac[3] = gid[13] & 0x7f;
		memcpy(eth_mac + 4, gid + 14, 2);
	} else if (gid[0] == 0xff) {
		eth_mac[0] = eth_mac[1] = 0x33;
		memcpy(eth_mac + 2, gid + 12, 4);
	} else if (gid[0] == 0xfe && gid[1] == 0x80 && gid[11] == 0xff && gid[12] == 0xfe) {
		eth_mac[0] = gid[8] ^ 2;
		memcpy(eth_mac + 1, gid + 9, 2);
		memcpy(eth_mac + 3, gid + 13, 3);
	} else {
		return EOPNOTSUPP;
	}
	*vid = 0xffff;
	return 0;
}

/*
 * Multicast.
 */

static int mcast(struct ibv_qp *qp, uint16_t op, const union ibv_gid *gid)
{
	struct vrnic_context *c = to_vctx(qp->context);
	struct vrnic_attach_mcast_request req = { .qp = qp->handle };

	if (!c->roce)
		return EOPNOTSUPP;
	memcpy(req.gid, gid->raw, sizeof(req.gid));
	return vrnic_rpc(c->s, op, &req, sizeof(req), NULL, 0, -1, NULL, 0);
}

int ibv_attach_mcast(struct ibv_qp *qp, const union ibv_gid *gid, uint16_t lid)
{
	(void)lid; /* there are none on Ethernet */
	return mcast(qp, VRNIC_OP_ATTACH_MCAST, gid);
}

int ibv_detach_mcast(struct ibv_qp *qp, const union ibv_gid *gid, uint16_t lid)
{
	(void)lid;
	return mcast(qp, VRNIC_OP_DETACH_MCAST, gid);
}
