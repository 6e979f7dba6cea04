/* librdmacm: event channels. */
#include <fcntl.h>
#include <stdlib.h>
#include <unistd.h>

#include "cm.h"

pthread_mutex_t cm_lock = PTHREAD_MUTEX_INITIALIZER;
pthread_cond_t cm_acked = PTHREAD_COND_INITIALIZER;

int cm_enter(void)
{
	int state;

	pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &state);
	pthread_mutex_lock(&cm_lock);
	return state;
}

void cm_leave(int state)
{
	pthread_mutex_unlock(&cm_lock);
	pthread_setcancelstate(state, NULL);
}

/*
 * A fork finds the lists whole: in the child the session is dead, and what it has of ids can be
 * destroyed.
 */
static void before_fork(void) { pthread_mutex_lock(&cm_lock); }
static void after_fork(void) { pthread_mutex_unlock(&cm_lock); }

static void in_child(void)
{
	cm_acked = (pthread_cond_t)PTHREAD_COND_INITIALIZER; /* who waited is not here */
	after_fork();
}

static void watch_forks(void) { pthread_atfork(before_fork, after_fork, in_child); }

struct cm_chan *cm_chan_new(struct vrnic_session *s)
{
	static pthread_once_t once = PTHREAD_ONCE_INIT;
	struct vrnic_cm_create_chan_reply rep;
	struct cm_chan *ch = calloc(1, sizeof(*ch));
	int err;

	if (!ch)
		return NULL;
	pthread_once(&once, watch_forks);
	ch->s = s;
	ch->refs = 1;
	ch->hush = -1;
	err = vrnic_rpc(s, VRNIC_OP_CM_CREATE_CHAN, NULL, 0, &rep, sizeof(rep), -1, &ch->ch.fd, 1);
	if (err) {
		free(ch);
		errno = err;
		return NULL;
	}
	ch->handle = rep.chan;
	return ch;
}

/* The daemon keeps a channel as long as there are ids on it. */
static void forget(struct cm_chan *ch)
{
	if (ch->gone && !ch->ids)
		vrnic_rpc_handle(ch->s, VRNIC_OP_CM_DESTROY_CHAN, ch->handle, NULL, 0);
}

/*
 * rping destroys its channel at its end while another thread is on its way back into
 * rdma_get_cm_event. What that finds must still be a channel, so the last ones are kept. cm_lock.
 */
static struct cm_chan *graves[64];
static unsigned int next_grave;

void cm_chan_put(struct cm_chan *ch)
{
	struct cm_chan **grave = &graves[next_grave % (sizeof(graves) / sizeof(graves[0]))];

	if (--ch->refs || ch->buried)
		return;
	next_grave++;
	if (*grave && !(*grave)->refs) /* else a thread came back, and sits there for ever */
		free(*grave);
	ch->buried = true;
	*grave = ch;
}

/*
 * A thread may sit in rdma_get_cm_event meanwhile. It stays there for ever, and with it what it has
 * of the channel; if it is cancelled it lets go of that. The descriptor is closed first, so that
 * the end of the pipe, which comes then, is not taken for the daemon's.
 */
void cm_chan_destroy_locked(struct cm_chan *ch)
{
	vrnic_close(ch->ch.fd);
	vrnic_close(ch->hush);
	ch->gone = true;
	forget(ch);
	cm_chan_put(ch);
}

/*
 * The pipe of a session that is dead has come to its end, and would be readable for ever. A program
 * that polls the descriptor must not be told of events that there are not, so a pipe that nobody
 * writes to takes its place, with the program's flags.
 */
int cm_chan_silence(struct cm_chan *ch)
{
	int flags = fcntl(ch->ch.fd, F_GETFL), keep = fcntl(ch->ch.fd, F_GETFD), err = 0, p[2];

	if (flags < 0 || keep < 0 || pipe2(p, O_CLOEXEC | (flags & O_NONBLOCK)))
		return errno;
	if (dup3(p[0], ch->ch.fd, keep & FD_CLOEXEC ? O_CLOEXEC : 0) < 0) {
		err = errno;
		vrnic_close(p[1]);
	} else {
		ch->hush = p[1];
		atomic_store(&ch->silent, true);
	}
	vrnic_close(p[0]);
	return err;
}

void cm_chan_destroy(struct cm_chan *ch)
{
	int state = cm_enter();

	cm_chan_destroy_locked(ch);
	cm_leave(state);
}

void cm_chan_add_id(struct cm_chan *ch, struct cm_id *id)
{
	id->chan = ch;
	id->id.channel = &ch->ch;
	ch->refs++;
	ch->ids++;
}

void cm_chan_drop_id(struct cm_chan *ch)
{
	ch->ids--;
	forget(ch);
	cm_chan_put(ch);
}

struct rdma_event_channel *rdma_create_event_channel(void)
{
	struct vrnic_session *s = vrnic_session();
	struct cm_chan *ch = s ? cm_chan_new(s) : NULL;

	return ch ? &ch->ch : NULL;
}

void rdma_destroy_event_channel(struct rdma_event_channel *channel)
{
	if (channel)
		cm_chan_destroy(to_cm_chan(channel));
}
