/* Queue pairs that the test connects by itself, address handles and groups. */
#include <errno.h>
#include <netinet/in.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#include "probe.h"

struct ibv_ah *ahs[MAX_AH];

/* qp TYPE: "ok CONN QPN"; TYPE is one of enum ibv_qp_type */
int do_qp(void)
{
	struct conn *c = free_slot();

	if (!c)
		return fail("no room for a QP");
	if (make_qp(c, num(1))) {
		free_conn(c);
		return -1;
	}
	say("ok %d %u", (int)(c - conns), c->qp->qp_num);
	return 0;
}

/* gid INDEX: "ok OCTETS" */
int do_gid(void)
{
	union ibv_gid gid;

	if (ibv_query_gid(verbs, 1, num(1), &gid))
		return fail_errno("ibv_query_gid");
	say("ok ");
	say_hex(gid.raw, sizeof(gid.raw));
	return 0;
}

static void set_path(struct ibv_ah_attr *ah, const char *gid, int index)
{
	ah->is_global = 1;
	ah->port_num = 1;
	ah->grh.hop_limit = 64;
	ah->grh.sgid_index = index;
	unhex(gid, ah->grh.dgid.raw, sizeof(ah->grh.dgid.raw));
}

/* modify CONN NAME=VALUE...: the attributes of ibv_modify_qp, by its mask's names in small letters;
 * av is the peer's GID, and sgid the index of the own one */
int do_modify(void)
{
	struct conn *c = conn_of(1);
	struct ibv_qp_attr a = { .cur_qp_state = 0 };
	int mask = 0, sgid = 0;
	const char *gid = NULL;

	if (!c)
		return -1;
	for (int i = 2; i < n_words; i++) {
		char *value = strchr(words[i], '=');
		uint64_t v;

		if (!value)
			return fail("%s has no value", words[i]);
		*value++ = 0;
		v = strtoull(value, NULL, 0);
#define ATTR(name, bit, field)                        \
	if (!strcmp(words[i], name)) {                \
		a.field = v;                          \
		mask |= bit;                          \
		continue;                             \
	}
		ATTR("state", IBV_QP_STATE, qp_state)
		ATTR("cur_state", IBV_QP_CUR_STATE, cur_qp_state)
		ATTR("en_sqd_async_notify", IBV_QP_EN_SQD_ASYNC_NOTIFY, en_sqd_async_notify)
		ATTR("access_flags", IBV_QP_ACCESS_FLAGS, qp_access_flags)
		ATTR("pkey_index", IBV_QP_PKEY_INDEX, pkey_index)
		ATTR("port", IBV_QP_PORT, port_num)
		ATTR("qkey", IBV_QP_QKEY, qkey)
		ATTR("path_mtu", IBV_QP_PATH_MTU, path_mtu)
		ATTR("timeout", IBV_QP_TIMEOUT, timeout)
		ATTR("retry_cnt", IBV_QP_RETRY_CNT, retry_cnt)
		ATTR("rnr_retry", IBV_QP_RNR_RETRY, rnr_retry)
		ATTR("rq_psn", IBV_QP_RQ_PSN, rq_psn)
		ATTR("max_qp_rd_atomic", IBV_QP_MAX_QP_RD_ATOMIC, max_rd_atomic)
		ATTR("min_rnr_timer", IBV_QP_MIN_RNR_TIMER, min_rnr_timer)
		ATTR("sq_psn", IBV_QP_SQ_PSN, sq_psn)
		ATTR("max_dest_rd_atomic", IBV_QP_MAX_DEST_RD_ATOMIC, max_dest_rd_atomic)
		ATTR("dest_qpn", IBV_QP_DEST_QPN, dest_qp_num)
#undef ATTR
		if (!strcmp(words[i], "av"))
			gid = value;
		else if (!strcmp(words[i], "sgid"))
			sgid = v;
		else
			return fail("no attribute %s", words[i]);
	}
	if (gid) {
		set_path(&a.ah_attr, gid, sgid);
		mask |= IBV_QP_AV;
	}
	if ((errno = ibv_modify_qp(c->qp, &a, mask)))
		return fail_errno("ibv_modify_qp");
	say("ok");
	return 0;
}

/* query CONN: "ok STATE RQ_PSN SQ_PSN DRAINING" */
int do_query(void)
{
	struct conn *c = conn_of(1);
	struct ibv_qp_init_attr init;
	struct ibv_qp_attr a;

	if (!c)
		return -1;
	if ((errno = ibv_query_qp(c->qp, &a, IBV_QP_STATE | IBV_QP_RQ_PSN | IBV_QP_SQ_PSN, &init)))
		return fail_errno("ibv_query_qp");
	say("ok %d %u %u %d", a.qp_state, a.rq_psn, a.sq_psn, a.sq_draining);
	return 0;
}

/* ah GID SGID_INDEX: "ok AH" */
int do_ah(void)
{
	struct ibv_ah_attr attr = { .sl = 0 };
	int i = 0;

	while (i < MAX_AH && ahs[i])
		i++;
	if (i == MAX_AH)
		return fail("no room for an AH");
	set_path(&attr, word(1), num(2));
	ahs[i] = ibv_create_ah(pds[0], &attr);
	if (!ahs[i])
		return fail_errno("ibv_create_ah");
	say("ok %d", i);
	return 0;
}

/* unah AH */
int do_unah(void)
{
	if (num(1) >= MAX_AH || !ahs[num(1)])
		return fail("no AH %s", word(1));
	if ((errno = ibv_destroy_ah(ahs[num(1)])))
		return fail_errno("ibv_destroy_ah");
	ahs[num(1)] = NULL;
	say("ok");
	return 0;
}

/* has IPv6 take packets to a group, which verbs leave to the program */
static int join(const union ibv_gid *gid)
{
	static int s = -1;
	struct ipv6_mreq m;

	if (s < 0)
		s = socket(AF_INET6, SOCK_DGRAM, 0);
	memset(&m, 0, sizeof(m));
	memcpy(&m.ipv6mr_multiaddr, gid->raw, sizeof(gid->raw));
	return setsockopt(s, IPPROTO_IPV6, IPV6_JOIN_GROUP, &m, sizeof(m));
}

/* attach CONN GID; detach CONN GID: a multicast group of IPv6 */
int do_group(void)
{
	struct conn *c = conn_of(1);
	union ibv_gid gid;

	if (!c)
		return -1;
	unhex(word(2), gid.raw, sizeof(gid.raw));
	if (!strcmp(word(0), "attach") && join(&gid))
		return fail_errno("IPV6_JOIN_GROUP");
	if (!strcmp(word(0), "attach"))
		errno = ibv_attach_mcast(c->qp, &gid, 0);
	else
		errno = ibv_detach_mcast(c->qp, &gid, 0);
	if (errno)
		return fail_errno(word(0));
	say("ok");
	return 0;
}
