/* librdmacm: connections. */
#include <string.h>

#include "cm.h"

/*
 * The program moves the QP to RTR and RTS itself (rdma_init_qp_attr), and messages have its number
 * only, as with librdmacm. On iWARP all QPs are moved by connecting.
 */
static bool moves_itself(const struct cm_id *id)
{
	return cm_is_roce(id) && !cm_is_ud(id) && !id->id.qp;
}

/*
 * The QP that is to be connected: the id's, or one that the program made itself and names by
 * number.
 */
static int find_qp(struct cm_id *id, uint16_t op, const struct rdma_conn_param *param,
		   struct vrnic_cm_connect_request *req)
{
	if (!id->handle || !id->id.verbs)
		return EINVAL;
	if (id->id.qp) {
		id->qpn = req->param.qpn = id->id.qp->qp_num;
		req->param.srq = id->id.qp->srq != NULL;
		req->pd = id->id.qp->pd->handle;
		return 0;
	}
	/* who asks for the address of datagrams needs none to send them from */
	if (cm_is_ud(id) && op == VRNIC_OP_CM_CONNECT && (!param || !param->qp_num))
		return 0;
	if (!param)
		return EINVAL;
	id->qpn = req->param.qpn = param->qp_num;
	req->param.srq = param->srq;
	if (moves_itself(id))
		return 0; /* the daemon looks whether it is there */
	return vrnic_find_qp(id->id.verbs, param->qp_num, &req->pd);
}

/* The private data: what rdma_getaddrinfo found that must come first, and the program's. */
static int fill_private(struct cm_id *id, const struct rdma_conn_param *param,
			struct vrnic_conn_param *p)
{
	size_t len = param && param->private_data ? param->private_data_len : 0;

	if (id->connect_len + len > sizeof(p->private))
		return EINVAL;
	if (id->connect_len)
		memcpy(p->private, id->connect, id->connect_len);
	if (len)
		memcpy(p->private + id->connect_len, param->private_data, len);
	p->private_len = id->connect_len + len;
	return 0;
}

/*
 * How many Reads: RDMA_MAX_... means as many as limit says, more than the device allows is an
 * error.
 */
static int fill_reads(struct cm_id *id, const struct rdma_conn_param *param, uint8_t ird_limit,
		      uint8_t ord_limit,
		      struct vrnic_conn_param *p)
{
	uint8_t ird = param ? param->responder_resources : RDMA_MAX_RESP_RES;
	uint8_t ord = param ? param->initiator_depth : RDMA_MAX_INIT_DEPTH;

	if (ird == RDMA_MAX_RESP_RES)
		ird = ird_limit;
	else if (ird > cm_max_ird(id->id.verbs))
		return EINVAL;
	if (ord == RDMA_MAX_INIT_DEPTH)
		ord = ord_limit;
	else if (ord > cm_max_ord(id->id.verbs))
		return EINVAL;
	p->ird = ird;
	p->ord = ord;
	return 0;
}

static uint8_t least(uint8_t a, uint8_t b) { return a < b ? a : b; }

static int join(struct cm_id *id, uint16_t op, const struct rdma_conn_param *param)
{
	struct vrnic_cm_connect_request req = { .id = id->handle };
	bool sync = id->sync, answers = op == VRNIC_OP_CM_CONNECT && moves_itself(id);
	uint8_t ird, ord;
	int err = find_qp(id, op, param, &req);

	if (err)
		return cm_return(err);
	ird = cm_max_ird(id->id.verbs);
	ord = cm_max_ord(id->id.verbs);
	if (op == VRNIC_OP_CM_ACCEPT) {
		ird = least(ird, id->responder_resources);
		ord = least(ord, id->initiator_depth);
	}
	err = fill_reads(id, param, ird, ord, &req.param);
	if (!err)
		err = fill_private(id, param, &req.param);
	if (err)
		return cm_return(err);
	req.param.flow_control = param ? param->flow_control : 0;
	req.param.retry = param ? param->retry_count : 7;
	req.param.rnr_retry = param ? param->rnr_retry_count : 7;
	id->connecting = true; /* before another thread can have the event, and disconnect */
	err = vrnic_rpc(id->s, op, &req, sizeof(req), NULL, 0, -1, NULL, 0);
	if (err)
		return cm_return(err);
	/* who has the event may have destroyed the id; who answers for datagrams gets none */
	if (!sync)
		return 0;
	if (op == VRNIC_OP_CM_ACCEPT && cm_is_ud(id)) {
		cm_drop_event(id);
		return 0;
	}
	return cm_complete(id, answers ? RDMA_CM_EVENT_CONNECT_RESPONSE : RDMA_CM_EVENT_ESTABLISHED);
}

int rdma_connect(struct rdma_cm_id *id, struct rdma_conn_param *param)
{
	return join(to_cm_id(id), VRNIC_OP_CM_CONNECT, param);
}

int rdma_accept(struct rdma_cm_id *id, struct rdma_conn_param *param)
{
	return join(to_cm_id(id), VRNIC_OP_CM_ACCEPT, param);
}

/*
 * The program has moved its QP to RTS, behind CONNECT_RESPONSE. The connection of an RNIC of iWARP
 * is complete when the initiator has the reply: there is nothing to do, QP or not.
 */
int rdma_establish(struct rdma_cm_id *rid)
{
	struct cm_id *id = to_cm_id(rid);
	int err, state;

	if (!id->connecting)
		return cm_return(EINVAL);
	if (!cm_is_roce(id))
		return 0;
	if (!moves_itself(id))
		return cm_return(EINVAL);
	state = cm_enter(); /* DISCONNECTED is given behind it */
	err = vrnic_rpc_handle(id->s, VRNIC_OP_CM_ESTABLISH, id->handle, NULL, 0);
	id->connected = !err;
	cm_leave(state);
	return cm_return(err);
}

/*
 * The QP of an id that has accepted has got something: the peer is ready, which it says itself,
 * too. On iWARP there is nothing to be told.
 */
int rdma_notify(struct rdma_cm_id *rid, enum ibv_event_type event)
{
	struct cm_id *id = to_cm_id(rid);

	if (!id->handle || !id->id.verbs || (cm_is_roce(id) && event != IBV_EVENT_COMM_EST))
		return cm_return(EINVAL);
	return cm_return(vrnic_rpc_handle(id->s, VRNIC_OP_CM_NOTIFY, id->handle, NULL, 0));
}

int rdma_reject(struct rdma_cm_id *rid, const void *private_data, uint8_t private_data_len)
{
	struct cm_id *id = to_cm_id(rid);
	struct vrnic_cm_reject_request req = { .id = id->handle };

	if (!id->handle)
		return cm_return(EINVAL);
	if (private_data && private_data_len) {
		memcpy(req.private, private_data, private_data_len);
		req.private_len = private_data_len;
	}
	return cm_return(vrnic_rpc(id->s, VRNIC_OP_CM_REJECT, &req, sizeof(req), NULL, 0, -1, NULL, 0));
}

/*
 * Both sides may do it at the same time: of a connection that has ended already it is a success,
 * and there is the event still to come, or it has come.
 */
int rdma_disconnect(struct rdma_cm_id *rid)
{
	struct cm_id *id = to_cm_id(rid);
	bool connected, disconnected, sync = id->sync;
	int err, state;

	if (!id->handle || !id->connecting)
		return cm_return(EINVAL);
	err = vrnic_rpc_handle(id->s, VRNIC_OP_CM_DISCONNECT, id->handle, NULL, 0);
	if (err && err != ENOTCONN)
		return cm_return(err);
	if (!err && !sync)
		return 0; /* who has the event may have destroyed the id */
	state = cm_enter();
	connected = id->connected;
	disconnected = id->disconnected;
	cm_leave(state);
	if (disconnected)
		return 0;
	if (err && !connected) /* nor has it been */
		return cm_return(EINVAL);
	return cm_complete(id, RDMA_CM_EVENT_DISCONNECTED);
}

int rdma_reject_ece(struct rdma_cm_id *id, const void *private_data, uint8_t private_data_len)
{
	return rdma_reject(id, private_data, private_data_len);
}
