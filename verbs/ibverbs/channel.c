/* Completion channels: the events that CQs raise, in the order in which they come. */
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <stdlib.h>
#include <unistd.h>

#include "objects.h"

static inline struct vrnic_chan *to_vchan(struct ibv_comp_channel *ch)
{
	return container_of(ch, struct vrnic_chan, ch);
}

/*
 * Checks line 0 of a channel's memory and finds the ring: false, and the session is dead, if it
 * makes no sense.
 */
static bool open_ring(struct vrnic_chan *ch)
{
	char *mem = ch->map.mem;
	uint32_t magic = load_acquire(vrnic_word(mem, VRNIC_CHAN_MAGIC));
	uint32_t handle = load_acquire(vrnic_word(mem, VRNIC_CHAN_HANDLE));
	uint32_t size = load_acquire(vrnic_word(mem, VRNIC_CHAN_SIZE));
	uint32_t off = load_acquire(vrnic_word(mem, VRNIC_CHAN_OFF));

	if (magic != VRNIC_MAGIC_CHANNEL || handle != ch->handle || !size || (size & (size - 1)) ||
	    size > VRNIC_MAX_DEPTH ||
	    off % 4 || off > ch->map.len || 4 * (size_t)size > ch->map.len - off) {
		vrnic_corrupt(ch->s, "memory of a completion channel");
		return false;
	}
	ch->slots = vrnic_word(mem, off);
	ch->mask = size - 1;
	ch->prod = vrnic_word(mem, VRNIC_CHAN_PROD);
	ch->cons_word = vrnic_word(mem, VRNIC_CHAN_CONS);
	return true;
}

struct ibv_comp_channel *ibv_create_comp_channel(struct ibv_context *context)
{
	struct vrnic_context *c = to_vctx(context);
	struct vrnic_create_chan_request req = { .ctx = c->handle };
	struct vrnic_create_chan_reply rep;
	struct vrnic_chan *ch = calloc(1, sizeof(*ch));
	int fds[2], err;

	if (!ch)
		return NULL;
	err = vrnic_rpc(c->s, VRNIC_OP_CREATE_CHAN, &req, sizeof(req), &rep, sizeof(rep), -1, fds, 2);
	if (err) {
		free(ch);
		errno = err;
		return NULL;
	}
	ch->s = c->s;
	ch->handle = rep.chan;
	ch->ch.context = context;
	ch->ch.fd = fds[0];
	pthread_mutex_init(&ch->lock, NULL);
	err = vrnic_map_fd(c->s, fds[1], VRNIC_CHAN_CONS + 64, &ch->map);
	if (err)
		vrnic_rpc_handle(c->s, VRNIC_OP_DESTROY_CHAN, rep.chan, NULL, 0);
	if (err || !vrnic_check_pipe(c->s, ch->ch.fd) || !open_ring(ch)) {
		err = vrnic_dead(c->s) ? EIO : err;
		vrnic_unmap(&ch->map);
		vrnic_close(ch->ch.fd);
		pthread_mutex_destroy(&ch->lock);
		free(ch);
		errno = err;
		return NULL;
	}
	return &ch->ch;
}

/*
 * A thread may be on its way into a wait on a channel that another one destroys. What it finds must
 * still be a channel, so the last ones are kept, and for ever those in which threads wait.
 */
static void bury(struct vrnic_chan *ch)
{
	static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
	static struct vrnic_chan *graves[64];
	static unsigned int next;
	struct vrnic_chan *old;

	pthread_mutex_lock(&lock);
	old = graves[next % (sizeof(graves) / sizeof(graves[0]))];
	graves[next++ % (sizeof(graves) / sizeof(graves[0]))] = ch;
	pthread_mutex_unlock(&lock);
	if (!old || atomic_load(&old->waiters))
		return;
	vrnic_unmap(&old->map);
	vrnic_table_free(&old->cqs);
	pthread_mutex_destroy(&old->lock);
	free(old);
}

int ibv_destroy_comp_channel(struct ibv_comp_channel *channel)
{
	struct vrnic_chan *ch = to_vchan(channel);

	pthread_mutex_lock(&ch->lock);
	if (channel->refcnt) {
		pthread_mutex_unlock(&ch->lock);
		return EBUSY;
	}
	ch->gone = true;
	pthread_mutex_unlock(&ch->lock);
	/*
	 * In this order: a thread that waits on the channel learns from it that it is not the daemon that
	 * has gone.
	 */
	vrnic_close(channel->fd);
	vrnic_rpc_handle(ch->s, VRNIC_OP_DESTROY_CHAN, ch->handle, NULL, 0);
	bury(ch);
	return 0;
}

void vrnic_chan_attach(struct vrnic_chan *ch, struct vrnic_cq *cq)
{
	pthread_mutex_lock(&ch->lock);
	vrnic_table_add(&ch->cqs, &cq->in_chan, cq->cq.handle);
	ch->ch.refcnt++;
	pthread_mutex_unlock(&ch->lock);
}

/*
 * How many entries the ring has, with the lock held; 0 also if that makes no sense, and then the
 * session is dead.
 */
static uint32_t pending(struct vrnic_chan *ch)
{
	uint32_t n;

	if (vrnic_dead(ch->s))
		return 0;
	n = load_acquire(ch->prod) - ch->cons;
	if (n <= ch->mask + 1)
		return n;
	vrnic_corrupt(ch->s, "more events on a channel than there is room for");
	return 0;
}

/*
 * Takes the entries of a CQ off the ring, which the daemon has forgotten, and returns how many
 * there were. What is left is moved up, so that what is gone takes no room.
 */
static uint32_t cancel(struct vrnic_chan *ch, uint32_t handle)
{
	uint32_t n = pending(ch), end = ch->cons + n, to = end, i, h, found = 0;

	for (i = end; i-- != ch->cons;) {
		h = load_acquire(&ch->slots[i & ch->mask]);
		if (h == handle)
			found++;
		else if (h)
			store_release(&ch->slots[--to & ch->mask], h);
	}
	if (n) {
		ch->cons = to;
		store_release(ch->cons_word, to);
	}
	return found;
}

uint32_t vrnic_chan_detach(struct vrnic_chan *ch, struct vrnic_cq *cq)
{
	uint32_t given;

	pthread_mutex_lock(&ch->lock);
	vrnic_table_remove(&ch->cqs, &cq->in_chan);
	/*
	 * Another thread may have read the token and wait for the lock: it finds nothing, and reads again.
	 */
	vrnic_take_tokens(ch->ch.fd, cancel(ch, cq->cq.handle));
	ch->ch.refcnt--;
	given = cq->comp_given;
	pthread_mutex_unlock(&ch->lock);
	return given;
}

/* Has the next completion raise another event: whether the program has asked for that already. */
static bool event_taken(struct vrnic_cq *cq)
{
	uint32_t arm;

	pthread_mutex_lock(&cq->arm_lock);
	arm = atomic_fetch_and(cq->arm, ~VRNIC_ARM_QUEUED);
	pthread_mutex_unlock(&cq->arm_lock);
	return arm & (VRNIC_ARM_NEXT | VRNIC_ARM_SOLICITED);
}

/* The CQ whose event is the oldest, or NULL. */
static struct vrnic_cq *next_event(struct vrnic_chan *ch)
{
	uint32_t n = pending(ch), h;
	struct vrnic_entry *e;

	while (n--) {
		h = load_acquire(&ch->slots[ch->cons & ch->mask]);
		store_release(ch->cons_word, ++ch->cons);
		if (!h)
			continue;
		e = vrnic_table_find(&ch->cqs, h);
		/*
		 * After the entry has been taken, so that the next one finds room, and before the program has
		 * the event: the next completion raises another.
		 */
		if (e)
			return vrnic_chan_give(vrnic_chan_cq(e), event_taken(vrnic_chan_cq(e)));
		vrnic_corrupt(ch->s, "an event of a CQ that is not on the channel");
		break;
	}
	return NULL;
}

/*
 * On a dead session each CQ that is armed has an event once: the program polls, and finds what was
 * posted flushed. Only once, or a program that arms again after each event would go round for ever.
 */
static struct vrnic_cq *last_event(struct vrnic_chan *ch)
{
	struct vrnic_entry *e = NULL;

	while ((e = vrnic_table_each(&ch->cqs, e)))
		if (atomic_load(&vrnic_chan_cq(e)->armed) && !vrnic_chan_cq(e)->last_given) {
			vrnic_chan_cq(e)->last_given = true;
			return vrnic_chan_give(vrnic_chan_cq(e), false);
		}
	return NULL;
}

/*
 * Looks at the ring for a moment before the thread sleeps: to be woken takes longer, where there is
 * a processor for the daemon beside this one and its peer's.
 */
static void look(struct vrnic_chan *ch)
{
	int64_t end = 0, t;
	int flags;

	if (!ch->s->spin)
		return;
	flags = fcntl(ch->ch.fd, F_GETFL);
	if (flags < 0 || (flags & O_NONBLOCK))
		return;
	while (!vrnic_dead(ch->s) && load_acquire(ch->prod) == load_acquire(ch->cons_word)) {
		t = vrnic_now();
		if (!end)
			end = t + VRNIC_SPIN_NS;
		if (t >= end)
			return;
		sched_yield();
	}
}

/* Waits for an event: NULL with errno. */
static VRNIC_CANCELLED struct vrnic_cq *wait_event(struct vrnic_chan *ch)
{
	struct vrnic_cq *cq;
	bool gone;
	int r;

	do {
		cq = vrnic_chan_sleep(ch, &r);
		if (cq || r) {
			errno = r;
			return cq;
		}
		look(ch);
		/* A cancellation point, and no lock is held. */
		r = vrnic_wait_token(ch->s, ch->ch.fd);
		if (r < 0)
			return NULL;
		pthread_mutex_lock(&ch->lock);
		cq = r ? last_event(ch) : next_event(ch);
		gone = ch->gone;
		pthread_mutex_unlock(&ch->lock);
		while (gone)
			pause();
		if (r && !cq) {
			errno = EIO;
			return NULL;
		}
	} while (!cq);
	return cq;
}

int ibv_get_cq_event(struct ibv_comp_channel *channel, struct ibv_cq **ibcq, void **cq_context)
{
	struct vrnic_chan *ch = to_vchan(channel);
	struct vrnic_cq *cq;

	atomic_fetch_add(&ch->waiters, 1);
	pthread_cleanup_push(vrnic_stop_waiting, &ch->waiters);
	cq = wait_event(ch);
	pthread_cleanup_pop(1);
	if (!cq)
		return -1;
	*ibcq = &cq->cq;
	*cq_context = cq->cq.cq_context;
	return 0;
}

void ibv_ack_cq_events(struct ibv_cq *cq, unsigned int nevents)
{
	pthread_mutex_lock(&cq->mutex);
	cq->comp_events_completed += nevents;
	pthread_cond_signal(&cq->cond);
	pthread_mutex_unlock(&cq->mutex);
}
