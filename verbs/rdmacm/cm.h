/*
 * What the files of librdmacm share. The daemon keeps the state of connections; the library keeps
 * what programs see of it: ids, channels, and events that have been given and wait to be
 * acknowledged.
 *
 * One lock, cm_lock, guards all of it. It is held over the rpc that fetches an event until the
 * event has been given to its id: else a second thread could fetch the next event of a new id
 * before the first thread has made the id. It comes before any lock of libibverbs, and is never
 * held in a wait.
 */
#ifndef VRNIC_CM_H
#define VRNIC_CM_H

#include <errno.h>

#include "ibverbs/ibverbs.h"
#include "rdmacm.h"

/*
 * What an event carries of the peer's data: its length is an octet. The rest of what MPA brings is
 * cut off.
 */
#define CM_MAX_PRIVATE 255

/* The port of a device; it has one. */
#define CM_PORT 1

extern pthread_mutex_t cm_lock;
extern pthread_cond_t cm_acked; /* some event has been acknowledged */

/*
 * Takes cm_lock, and puts off what cancels the thread until cm_leave, to which it returns what to
 * give.
 */
int cm_enter(void);
void cm_leave(int state);

struct cm_chan {
	struct rdma_event_channel ch;
	struct vrnic_session *s;
	uint32_t handle;
	/* cm_lock */
	/* ids, threads in rdma_get_cm_event, and the program until it destroys the channel */
	unsigned int refs;
	unsigned int ids;
	bool gone;   /* the program has destroyed it: the descriptor is closed */
	atomic_bool silent; /* the session is dead, and all of it told: there are no more events */
	bool buried; /* channel.c's */
	int hush;    /* the other end of a silent one's pipe, or -1 */
};

/*
 * The daemon keeps the state of an id (vnic/internal/cm/state.go has the table); here is what a
 * program has asked for and been told of it.
 */
struct cm_id {
	struct rdma_cm_id id;
	struct vrnic_entry entry; /* in the table of ids, if handle is not 0 */
	struct vrnic_session *s;
	uint32_t handle; /* the daemon's; 0: of a port space that no device has */
	bool sync;	 /* the channel is the id's own, and calls wait for their event */
	bool bound;
	bool connecting; /* rdma_connect or rdma_accept has been tried */
	/* cm_lock */
	struct cm_chan *chan;
	uint32_t given; /* events given to the program, and how many of them it has acknowledged */
	uint32_t acked;
	uint32_t qpn; /* of the QP that it was last asked to connect */
	bool connected; /* ESTABLISHED was given, or the program established, and DISCONNECTED not */
	bool disconnected; /* DISCONNECTED was given */
	bool removed; /* DEVICE_REMOVAL was given, or nothing is to be */
	/* of a connection request: what the peer allows and asks for */
	uint8_t responder_resources;
	uint8_t initiator_depth;
	/*
	 * of rdma_create_ep: how QPs of the listener's requests are made; and what goes before the private
	 * data
	 */
	struct ibv_qp_init_attr *ep_attr;
	struct ibv_pd *ep_pd;
	void *connect;
	size_t connect_len;
	struct cm_group *groups; /* that it has joined; cm_lock */
	struct ibv_sa_path_rec path; /* route.path_rec, on RoCE */
};

struct cm_event {
	struct rdma_cm_event ev;
	struct cm_id *owner; /* whose it is to be acknowledged to: of a connection request, the listener */
	struct cm_group *group; /* and the group that it tells of, or NULL */
	uint8_t private[CM_MAX_PRIVATE];
};

static inline struct cm_chan *to_cm_chan(struct rdma_event_channel *ch)
{
	return container_of(ch, struct cm_chan, ch);
}

static inline struct cm_id *to_cm_id(struct rdma_cm_id *id)
{
	return container_of(id, struct cm_id, id);
}

static inline struct cm_event *to_cm_event(struct rdma_cm_event *ev)
{
	return container_of(ev, struct cm_event, ev);
}

/* The way out of a call: err is 0 or an errno. */
static inline int cm_return(int err)
{
	if (!err)
		return 0;
	errno = err;
	return -1;
}

/* channel.c */
struct cm_chan *cm_chan_new(struct vrnic_session *s); /* NULL with errno */
void cm_chan_destroy(struct cm_chan *ch);
int cm_chan_silence(struct cm_chan *ch); /* 0 or an errno; with cm_lock held */
void cm_chan_destroy_locked(struct cm_chan *ch); /* these with cm_lock held */
void cm_chan_add_id(struct cm_chan *ch, struct cm_id *id);
void cm_chan_drop_id(struct cm_chan *ch);
void cm_chan_put(struct cm_chan *ch);

/*
 * id_table.c. All but cm_id_new, which takes it, are called with cm_lock held. Those that return an
 * int: 0 or an errno.
 */

/*
 * Asks the daemon for an id on ch. Those of port spaces that no device has are ids, too, which can
 * never be bound.
 */
int cm_id_new(struct cm_chan *ch, void *context, enum rdma_port_space ps, enum ibv_qp_type type,
	      struct cm_id **out);

/*
 * Makes the id of a connection request of listener; if that fails the daemon has been told to
 * refuse the peer.
 */
int cm_id_child(struct cm_id *listener, uint32_t handle, struct cm_id **child);
void cm_id_refuse(struct cm_id *child);

struct cm_id *cm_id_find(struct vrnic_session *s, uint32_t handle);

/* The next id of a channel after one, or the first for NULL. */
struct cm_id *cm_id_each(struct cm_chan *ch, struct cm_id *after);

/* Moves id to another channel, its events that wait included. */
int cm_id_move(struct cm_id *id, struct cm_chan *to);

/* Ends id in the daemon, and takes back the tokens of events that nobody will fetch. */
int cm_id_end(struct cm_id *id);

/*
 * Ends id for this library: the daemon has forgotten it, and all its events have been acknowledged.
 */
void cm_id_free(struct cm_id *id);

/* id.c: rdma_create_id for all kinds of QPs; channel NULL: a synchronous id. */
int cm_create_id(struct rdma_event_channel *channel, struct rdma_cm_id **id, void *context,
		 enum rdma_port_space ps,
		 enum ibv_qp_type type);

/* event.c. Waits until all events given so far have been acknowledged: a cancellation point. */
void cm_wait_acks(struct cm_id *id);

/*
 * For a synchronous id: waits for the event that ends the operation and keeps it in id->event; 0 if
 * it is want, else -1 and errno. Nothing for other ids. If the program has made the channel
 * non-blocking, errno is EAGAIN, and calling it again goes on with that.
 */
int cm_complete(struct cm_id *id, enum rdma_cm_event_type want);
void cm_drop_event(struct cm_id *id); /* acknowledges id->event */
/* makes id->event of a listener's */
void cm_own_event(struct cm_id *id, struct rdma_cm_event *event);

/*
 * group.c: the groups of an id. With cm_lock held.
 */
struct cm_group {
	struct cm_group *next;
	struct cm_id *id;
	uint64_t uid;	/* what the daemon calls it in events */
	void *context;	/* what the program does */
	struct vrnic_sock_addr addr;
	bool attached;	/* the QP of its id, to gid */
	union ibv_gid gid;
	uint32_t given; /* events given to the program, and how many of them it has acknowledged */
	uint32_t acked;
};

struct cm_group *cm_group_find(struct cm_id *id, uint64_t uid); /* or NULL */
void cm_group_unlink(struct cm_group *g);
/* What an event of a group does: the QP of its id is attached to the group. */
void cm_group_event(struct cm_group *g, const struct vrnic_cm_event *e, struct cm_event *ev);
void cm_groups_free(struct cm_id *id);

/* device.c */
static inline bool cm_is_roce(const struct cm_id *id)
{
	return id->id.verbs && to_vctx(id->id.verbs)->roce;
}

/* of datagrams */
static inline bool cm_is_ud(const struct cm_id *id)
{
	return id->id.qp_type == IBV_QPT_UD;
}

/* has the way of a RoCE id in its route, from its addresses */
void cm_fill_route(struct cm_id *id);
/* false: not an IP address */
bool cm_to_ring(const struct sockaddr *sa, struct vrnic_sock_addr *a);
void cm_from_ring(const struct vrnic_sock_addr *a, struct sockaddr_storage *sa);
/* gives id its device, unless it has one: 0 or an errno */
int cm_attach(struct cm_id *id, uint32_t device);
/* fills addresses and device as the daemon has them: 0 or an errno */
int cm_query(struct cm_id *id);
uint8_t cm_max_ird(struct ibv_context *verbs);
uint8_t cm_max_ord(struct ibv_context *verbs);

/*
 * rdma_cm takes the address of the loopback interface for an unspecified one, unless a device has
 * such an address. cm_source makes one of it, and finds the source that a connection to dst (NULL:
 * any) may have; src is what the program wants, family 0 if nothing. cm_local_destination makes an
 * address of a device of a dst that is this host. 0, or ENODEV.
 */
bool cm_any(struct vrnic_session *s, const struct vrnic_sock_addr *a);
int cm_source(struct vrnic_session *s, struct vrnic_sock_addr *src,
	      const struct vrnic_sock_addr *dst);
int cm_local_destination(struct vrnic_session *s, const struct vrnic_sock_addr *src,
			 struct vrnic_sock_addr *dst);

/* option.c: what the environment sets for a new id. 0 or an errno. */
int cm_default_options(struct cm_id *id);

#endif
