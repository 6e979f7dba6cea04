/* Completion channels: the events that CQs raise, in the order in which they come. */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#include "pair/mark.h"
#include "queue.h"

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
	if (vrnic_map_fd(c->s, fds[1], VRNIC_CHAN_CONS + 64, &ch->map) ||
	    !vrnic_check_pipe(c->s, ch->ch.fd) || !open_ring(ch)) {
		vrnic_unmap(&ch->map);
		vrnic_close(ch->ch.fd);
		pthread_mutex_destroy(&ch->lock);
		free(ch);
		errno = EIO;
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

static struct vrnic_cq *cq_of(struct vrnic_entry *e)
{
	return container_of(e, struct vrnic_cq, in_chan);
}

/*
 * Counts an event of cq as given to the program, which may ask for the next one: the channel's lock
 * is held.
 */
static struct vrnic_cq *give(struct vrnic_cq *cq, bool armed)
{
	atomic_store(&cq->armed, armed);
	cq->comp_given++;
	return cq;
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
			return give(cq_of(e), event_taken(cq_of(e)));
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
		if (atomic_load(&cq_of(e)->armed) && !cq_of(e)->last_given) {
			cq_of(e)->last_given = true;
			return give(cq_of(e), false);
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

/*
 * docs/direct.md#sleeping. A thread that waits is woken by the peers whose messages it waits for.
 * It says so for as long as it sleeps here, and the event is its own to give then. For all others,
 * such as programs that poll the channel's descriptor themselves, the daemon raises it.
 */

/* As many peers wake who waits at most; the others' messages are the daemon's to tell of. */
#define MOST 64

#define WANTS (VRNIC_ARM_NEXT | VRNIC_ARM_SOLICITED)

static bool is_of(const struct vrnic_direct *d, const struct vrnic_cq *cq)
{
	return d->qp->qp.recv_cq == &cq->cq;
}

/* A thread that sleeps, and what it waits for: first the channel's own descriptor. */
struct sleep {
	struct vrnic_chan *ch;
	struct pollfd fds[1 + MOST];
	unsigned int n;
	bool looked; /* octets may be there that poll has not told of */
};

static void wait_for(struct sleep *s, int fd)
{
	s->fds[s->n++] = (struct pollfd){ .fd = fd, .events = POLLIN };
}

/* With cq->arm_lock held: tells peers that who waits hears them. */
static void lie_down(struct sleep *s, struct vrnic_cq *cq)
{
	uint32_t i, n = atomic_load_explicit(&cq->ndirects, memory_order_relaxed);
	struct vrnic_direct *d;

	cq->sleep += VRNIC_WANT_SLEEP;
	for (i = 0; i < n && s->n <= MOST; i++) {
		d = cq->directs[i];
		if (!is_of(d, cq))
			continue;
		if (!vrnic_wake_ask(&d->sleeper, cq->s, d->qp->qp.handle, VRNIC_OP_DIRECT_SLEEP))
			continue;
		d->asleep = true;
		d->slot = s->n;
		wait_for(s, d->sleeper.fd);
	}
	vrnic_direct_arm(cq);
}

/* With cq->arm_lock held: takes that back. */
static void get_up(struct sleep *s, struct vrnic_cq *cq)
{
	uint32_t i, n = atomic_load_explicit(&cq->ndirects, memory_order_relaxed);
	struct vrnic_direct *d;

	for (i = 0; i < n; i++) {
		d = cq->directs[i];
		if (!is_of(d, cq) || !d->asleep) /* whose receives are another CQ's, others may wait for */
			continue;
		d->asleep = false;
		if (s->looked || s->fds[d->slot].revents)
			vrnic_wake_drain(&d->sleeper);
	}
	vrnic_direct_arm(cq);
}

static bool wants(const struct vrnic_cq *cq, bool asked)
{
	uint32_t arm = atomic_load(cq->arm);

	return arm & VRNIC_ARM_NEXT || (arm & VRNIC_ARM_SOLICITED && asked);
}

/* Takes the event that the daemon has not raised: true, and it is the caller's to give. */
static bool claim(struct vrnic_cq *cq)
{
	uint32_t arm = atomic_fetch_and(cq->arm, ~WANTS);

	return arm & WANTS && !(arm & VRNIC_ARM_QUEUED);
}

/* With cq->arm_lock held: what has come of d since it was looked at last, as two bits. */
static unsigned int heard_of(const struct vrnic_direct *d, struct vrnic_pair_heard *now)
{
	*now = vrnic_pair_heard(&d->in);
	return (now->plain != d->heard.plain) | (now->asked != d->heard.asked) << 1;
}

/*
 * With cq->arm_lock held: whether a message has come that is an event of cq, which is given to the
 * caller, or if it has one already to the daemon.
 */
static bool hear(struct vrnic_cq *cq, bool give)
{
	uint32_t i, n = atomic_load_explicit(&cq->ndirects, memory_order_relaxed);
	struct vrnic_pair_heard now;
	struct vrnic_direct *d;
	unsigned int new;

	for (i = 0; i < n; i++) {
		d = cq->directs[i];
		if (!is_of(d, cq))
			continue;
		new = heard_of(d, &now);
		d->heard = now;
		if (!new || !wants(cq, new & 2))
			continue;
		if (give && claim(cq)) {
			vrnic_direct_arm(cq);
			return true;
		}
		if (!give) {
			vrnic_pair_pass(&d->in);
			vrnic_ring(cq->s, d->qp->bell);
		}
	}
	return false;
}

/* Each CQ of ch that has QPs with a direct path. */
#define EACH_CQ(ch, e, cq)                                                                 \
	for ((e) = NULL; ((e) = vrnic_table_each(&(ch)->cqs, (e))) && ((cq) = cq_of(e), true);) \
		if (atomic_load_explicit(&(cq)->ndirects, memory_order_relaxed))

/* With ch->lock held. */
static struct vrnic_cq *wake_up(struct sleep *s, bool give)
{
	struct vrnic_cq *cq, *heard = NULL;
	struct vrnic_entry *e;

	EACH_CQ(s->ch, e, cq) {
		pthread_mutex_lock(&cq->arm_lock);
		get_up(s, cq);
		pthread_mutex_unlock(&cq->arm_lock);
	}
	/* A peer that has not seen it is one that has counted its message before. */
	atomic_thread_fence(memory_order_seq_cst);
	VRNIC_MARK(AWAKE);
	EACH_CQ(s->ch, e, cq) {
		pthread_mutex_lock(&cq->arm_lock);
		if (hear(cq, give && !heard))
			heard = cq;
		pthread_mutex_unlock(&cq->arm_lock);
	}
	return heard;
}

static bool fall_asleep(struct sleep *s)
{
	struct vrnic_chan *ch = s->ch;
	struct vrnic_entry *e;
	struct vrnic_cq *cq;

	s->n = 0;
	wait_for(s, ch->ch.fd);
	if (vrnic_dead(ch->s) || ch->gone || load_acquire(ch->prod) != ch->cons)
		return false;
	EACH_CQ(ch, e, cq) {
		pthread_mutex_lock(&cq->arm_lock);
		lie_down(s, cq);
		pthread_mutex_unlock(&cq->arm_lock);
	}
	return s->n > 1;
}

/* The cancellation of a thread: what it has heard is for others. */
static void cancelled(void *arg)
{
	struct sleep *s = arg;

	pthread_mutex_lock(&s->ch->lock);
	wake_up(s, false);
	pthread_mutex_unlock(&s->ch->lock);
}

/*
 * Whether a call that waited and that a signal has interrupted ends with EINTR. read(2) does if the
 * signal's handler was set without SA_RESTART. poll(2) always does, and does not say by which one:
 * any such handler will do.
 */
static bool ends_calls(void)
{
	struct sigaction a;
	int sig;

	for (sig = 1; sig < NSIG; sig++)
		if (!sigaction(sig, NULL, &a) && a.sa_handler != SIG_DFL && a.sa_handler != SIG_IGN &&
		    !(a.sa_flags & SA_RESTART))
			return true;
	return false;
}

/* Whether there is something to get up for. */
static bool rings(struct sleep *s)
{
	struct vrnic_chan *ch = s->ch;
	struct vrnic_pair_heard now;
	struct vrnic_entry *e;
	struct vrnic_cq *cq;
	bool any;
	uint32_t i;

	pthread_mutex_lock(&ch->lock);
	any = vrnic_dead(ch->s) || load_acquire(ch->prod) != ch->cons;
	EACH_CQ(ch, e, cq) {
		pthread_mutex_lock(&cq->arm_lock);
		for (i = 0; i < atomic_load_explicit(&cq->ndirects, memory_order_relaxed); i++)
			any |= is_of(cq->directs[i], cq) && heard_of(cq->directs[i], &now);
		pthread_mutex_unlock(&cq->arm_lock);
	}
	pthread_mutex_unlock(&ch->lock);
	return any;
}

/* Looks for a moment, where there are processors for it, as who waits for the daemon does. */
static bool hears_soon(struct sleep *s)
{
	int64_t end;

	s->looked = s->ch->s->spin;
	if (!s->looked)
		return false;
	for (end = vrnic_now() + VRNIC_SPIN_NS; vrnic_now() < end; sched_yield())
		if (rings(s))
			return true;
	return false;
}

/* NULL, and *err is not 0: a signal has come. NULL and 0: there may be a token, or nothing. */
static VRNIC_CANCELLED struct vrnic_cq *sleep_once(struct sleep *s, int *err)
{
	struct vrnic_chan *ch = s->ch;
	struct vrnic_cq *cq = NULL;
	bool asleep;

	*err = 0;
	pthread_mutex_lock(&ch->lock);
	asleep = fall_asleep(s);
	pthread_mutex_unlock(&ch->lock);
	if (!asleep)
		return NULL;
	VRNIC_MARK(ASLEEP);
	pthread_cleanup_push(cancelled, s);
	if (!hears_soon(s) && poll(s->fds, s->n, -1) < 0)
		*err = errno;
	pthread_cleanup_pop(0);
	pthread_mutex_lock(&ch->lock);
	cq = wake_up(s, true);
	if (cq)
		give(cq, false);
	pthread_mutex_unlock(&ch->lock);
	return cq;
}

/*
 * Waits for a token of ch, or for a peer to wake who waits. NULL and *err 0: there is a token to be
 * read, or it has to be waited for otherwise; else an errno. A cancellation point.
 */
static VRNIC_CANCELLED struct vrnic_cq *sleep_on(struct vrnic_chan *ch, int *err)
{
	struct sleep s = { .ch = ch };
	struct vrnic_cq *cq;
	int flags;

	*err = 0;
	if (!atomic_load_explicit(&ch->directs, memory_order_relaxed) || atomic_load(&ch->waiters) != 1)
		return NULL;
	flags = fcntl(ch->ch.fd, F_GETFL);
	if (flags < 0 || (flags & O_NONBLOCK))
		return NULL;
	do {
		cq = sleep_once(&s, err);
		if (cq || (*err == EINTR && ends_calls()))
			return cq;
	} while (s.n > 1 && (!*err || *err == EINTR) && !s.fds[0].revents &&
		 load_acquire(ch->prod) == load_acquire(ch->cons_word));
	*err = 0;
	return NULL;
}

/* Waits for an event: NULL with errno. */
static VRNIC_CANCELLED struct vrnic_cq *wait_event(struct vrnic_chan *ch)
{
	struct vrnic_cq *cq;
	bool gone;
	int r;

	do {
		cq = sleep_on(ch, &r);
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
