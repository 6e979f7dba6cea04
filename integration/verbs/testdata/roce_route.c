/* What an id of rdma_cm on a device of RoCE knows of the way to its peer: nobody is asked for it. */
#include "vt.h"

#include <arpa/inet.h>

/* The GID of an address. */
static union ibv_gid gid_of(const struct sockaddr_storage *ss)
{
	union ibv_gid gid = { .raw = { [10] = 0xff, 0xff } };

	if (ss->ss_family == AF_INET)
		memcpy(gid.raw + 12, &((const struct sockaddr_in *)ss)->sin_addr, 4);
	else
		memcpy(gid.raw, &((const struct sockaddr_in6 *)ss)->sin6_addr, 16);
	return gid;
}

static bool same(union ibv_gid x, union ibv_gid y)
{
	return !memcmp(&x, &y, sizeof(x));
}

/* An address is resolved to the device that has a route there, and the route to a path of that device's port. */
static void route(void)
{
	union ibv_gid to = gid_of(&vt_server), from;
	struct ibv_sa_path_rec *path;
	struct ibv_port_attr port;
	struct rdma_event_channel *ch;
	struct sockaddr_storage dst;
	struct rdma_cm_id *id;
	bool own = false;

	CHECK(ch = rdma_create_event_channel());
	CHECK_EQ(rdma_create_id(ch, &id, NULL, RDMA_PS_TCP), 0);
	CHECK(!id->verbs && !id->route.num_paths);
	CHECK_EQ(rdma_resolve_addr(id, NULL, vt_addr(&vt_server, htons(7), &dst), 2000), 0);
	vt_expect(ch, RDMA_CM_EVENT_ADDR_RESOLVED, 0);
	CHECK(id->verbs);
	CHECK_EQ(id->port_num, 1);
	CHECK_EQ(rdma_resolve_route(id, 2000), 0);
	vt_expect(ch, RDMA_CM_EVENT_ROUTE_RESOLVED, 0);
	CHECK_EQ(ibv_query_port(id->verbs, 1, &port), 0);
	from = gid_of((struct sockaddr_storage *)rdma_get_local_addr(id));
	for (int i = 0; i < port.gid_tbl_len && !own; i++) {
		union ibv_gid gid;

		CHECK_EQ(ibv_query_gid(id->verbs, 1, i, &gid), 0);
		own = same(gid, from);
	}
	CHECK(own);
	CHECK_EQ(id->route.num_paths, 1);
	CHECK(path = id->route.path_rec);
	CHECK(same(path->dgid, to) && same(path->sgid, from));
	CHECK(same(id->route.addr.addr.ibaddr.dgid, to) && same(id->route.addr.addr.ibaddr.sgid, from));
	CHECK_EQ(path->mtu, port.active_mtu);
	CHECK_EQ(path->packet_life_time, 18);
	CHECK_EQ(path->hop_limit, 64);
	CHECK_EQ(ntohs(path->pkey), 0xffff);
	CHECK_EQ(path->dlid | path->slid | path->sl | path->traffic_class, 0);
	CHECK_EQ(path->reversible, 1);
	/* What the port says of itself: a lane of EDR has 25.78125 Gbit/s. */
	CHECK_EQ(port.active_width, 2);
	CHECK_EQ(port.active_speed, 32);
	CHECK_EQ(ibv_rate_to_mbps(path->rate), 4 * 25781 + 1);
	CHECK_EQ(rdma_destroy_id(id), 0);
	rdma_destroy_event_channel(ch);
}

static const struct vt_case cases[] = { { "route", route }, { 0 } };

int main(int argc, char **argv)
{
	return vt_main(argc, argv, cases);
}
