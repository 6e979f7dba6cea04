/*
 * docs/direct.md#sleeping. A thread that waits is woken by the peers whose messages it waits for.
 * It says so for as long as it sleeps here, and the event is its own to give then. For all others,
 * such as programs that poll the channel's descriptor themselves, the daemon raises it.
 */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>

#include "pair/mark.h"
#include "queue.h"

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
	for ((e) = NULL; ((e) = vrnic_table_each(&(ch)->cqs, (e))) && ((cq) = vrnic_chan_cq(e), true);) \
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
		vrnic_chan_give(cq, false);
	pthread_mutex_unlock(&ch->lock);
	return cq;
}

VRNIC_CANCELLED struct vrnic_cq *vrnic_chan_sleep(struct vrnic_chan *ch, int *err)
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
