/*
 * A verbs program that does what its standard input says, a command a line, and answers each with a
 * line: the tests of the session play the daemon and hold the other end. `bg COMMAND` runs one on a
 * thread of its own, whose answer begins with "bg "; `fork COMMAND; COMMAND...` runs some in a
 * child.
 */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "ibverbs/abi/ibv.h"
#include "vrnic_alloc.h"

#define MAX 64

static struct ibv_context *ctx;
static struct ibv_comp_channel *chans[MAX];
static struct ibv_cq *cqs[MAX];
static struct ibv_pd *pds[MAX];
static struct ibv_mr *mrs[MAX];
static struct ibv_mw *mws[MAX];
static struct ibv_async_event last_event;
static pthread_t threads[MAX];
static int nthreads;
static char *buf;
static pthread_mutex_t out = PTHREAD_MUTEX_INITIALIZER;

static __thread char answer[4096];
#define SAY(...) snprintf(answer + strlen(answer), sizeof(answer) - strlen(answer), __VA_ARGS__)

/*
 * The libraries ask this program what time it is: with `tick`, one that has gone on by so much each
 * time that somebody has asked.
 */
static _Atomic long tick_ms, ticked_ms;

int clock_gettime(clockid_t clock, struct timespec *t)
{
	long ms;

	if (!tick_ms)
		return syscall(SYS_clock_gettime, clock, t);
	ms = ticked_ms += tick_ms;
	*t = (struct timespec){ .tv_sec = ms / 1000, .tv_nsec = ms % 1000 * 1000000 };
	return 0;
}

/* For functions that return an errno, and for those that return -1 or NULL. */
static void result(int err)
{
	SAY("%s", err ? strerrorname_np(err) : "ok");
}

static void failed(int is)
{
	result(is ? errno : 0);
}

static int slot(void *p)
{
	void **a = p;
	int i;

	for (i = 0; a[i]; i++)
		;
	return i;
}

static void list(void)
{
	int n = -1, i;
	struct ibv_device **l = ibv_get_device_list(&n);

	if (!l) {
		failed(1);
		return;
	}
	SAY("%d", n);
	for (i = 0; i < n; i++)
		SAY(" %s", ibv_get_device_name(l[i]));
	ibv_free_device_list(l);
}

static void open_device(const char *name)
{
	struct ibv_device **l = ibv_get_device_list(NULL);
	int i;

	ctx = NULL;
	if (l)
		errno = ENODEV;
	for (i = 0; l && l[i]; i++)
		if (!*name || !strcmp(ibv_get_device_name(l[i]), name)) {
			ctx = ibv_open_device(l[i]);
			break;
		}
	if (l)
		ibv_free_device_list(l);
	failed(!ctx);
}

static void completion(int i)
{
	struct ibv_wc wc;
	int n = cqs[i]->context->ops.poll_cq(cqs[i], 1, &wc);

	SAY("%d", n);
	if (n > 0)
		SAY(" status %d", wc.status);
}

static void get(int i)
{
	struct ibv_cq *cq = NULL;
	void *context;
	int c;

	if (ibv_get_cq_event(chans[i], &cq, &context)) {
		failed(1);
		return;
	}
	for (c = 0; cqs[c] != cq; c++)
		;
	SAY("%d", context == &cqs[c] ? c : -1);
}

static int readable(int fd)
{
	struct pollfd p = { .fd = fd, .events = POLLIN };

	return poll(&p, 1, 0);
}

static void async(void)
{
	if (ibv_get_async_event(ctx, &last_event)) {
		failed(1);
		return;
	}
	SAY("type %d", last_event.event_type);
	if (last_event.event_type == IBV_EVENT_CQ_ERR) {
		int c;

		for (c = 0; c < MAX && cqs[c] != last_event.element.cq; c++)
			;
		SAY(" cq %d", c);
	}
}

/* Memory of a kind, at least of len octets. */
static void *memory(const char *kind, size_t len)
{
	int fd, seals = 0;
	void *p;

	if (!strcmp(kind, "malloc"))
		return malloc(len);
	if (!strcmp(kind, "alloc"))
		return vrnic_alloc(len);
	if (!strcmp(kind, "null"))
		return NULL;
	if (!strcmp(kind, "hole")) { /* its last page is not there */
		p = mmap(NULL, len, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
		munmap((char *)p + len - 4096, 4096);
		return p;
	}
	if (!strcmp(kind, "guarded")) { /* no access to a page in its middle */
		p = mmap(NULL, len, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
		mprotect((char *)p + len / 8192 * 4096, 4096, PROT_NONE);
		return p;
	}
	if (!strcmp(kind, "none") || !strcmp(kind, "readonly"))
		return mmap(NULL, len, *kind == 'n' ? PROT_NONE : PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (!strcmp(kind, "text"))
		return (void *)memory;
	fd = memfd_create("shell", MFD_CLOEXEC | MFD_ALLOW_SEALING);
	if (ftruncate(fd, len + 4096))
		return NULL;
	if (strcmp(kind, "memfd-open"))
		seals = F_SEAL_SHRINK;
	fcntl(fd, F_ADD_SEALS, seals);
	p = mmap(NULL, len, PROT_READ | PROT_WRITE, strcmp(kind, "memfd-private") ? MAP_SHARED
		 : MAP_PRIVATE, fd, 4096);
	if (!strcmp(kind, "memfd-closed"))
		close(fd);
	return p;
}

void *lent[256]; /* no leak: the end of the process frees it */

static void mr(const char *kind, size_t len, size_t off, unsigned int access)
{
	static unsigned int n;
	int i = slot(mrs);

	buf = memory(kind, len + off);
	lent[n++ % 256] = buf;
	mrs[i] = ibv_reg_mr_iova2(pds[0], buf + off, len, (uintptr_t)buf + off, access);
	failed(!mrs[i]);
}

/* Where memory of the daemon's is mapped, or was when it was asked for. */
static struct { uintptr_t at, len; } rings[MAX];
static int nrings;

static void find_rings(void)
{
	FILE *f = fopen("/proc/self/maps", "re");
	unsigned long lo, hi;
	char line[512];

	for (nrings = 0; f && fgets(line, sizeof(line), f);)
		if (strstr(line, "memfd:vrnic-test") && sscanf(line, "%lx-%lx", &lo, &hi) == 2 && nrings < MAX) {
			rings[nrings].at = lo;
			rings[nrings++].len = hi - lo;
		}
	if (f)
		fclose(f);
	SAY("%d", nrings);
}

/* Puts memory of the program's own there, and says later how much of it is there still. */
static void occupy(void)
{
	int i, n = 0;

	for (i = 0; i < nrings; i++)
		n += mmap((void *)rings[i].at, rings[i].len, PROT_READ | PROT_WRITE,
			  MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0) !=
		     MAP_FAILED;
	SAY("%d", n);
}

static void occupied(void)
{
	int i, n = 0;

	for (i = 0; i < nrings; i++)
		n += !msync((void *)rings[i].at, rings[i].len, MS_ASYNC);
	SAY("%d", n);
}

static void on_alarm(int sig)
{
	(void)sig;
}

static void alarms(long us)
{
	struct itimerval t = { { 0, us }, { 0, us } };
	struct sigaction sa = { .sa_handler = on_alarm };

	sigaction(SIGALRM, &sa, NULL);
	setitimer(ITIMER_REAL, &t, NULL);
	result(0);
}

static void queries(int n)
{
	struct ibv_port_attr attr;
	int err = 0;

	while (n-- && !err)
		err = ibv_query_port(ctx, 1, &attr);
	result(err);
}

static void say_answer(const char *prefix)
{
	pthread_mutex_lock(&out);
	printf("%s%s\n", prefix, answer);
	fflush(stdout);
	pthread_mutex_unlock(&out);
}

static int command(char *line);

static void *background(void *line)
{
	command(line);
	say_answer("bg ");
	free(line);
	return NULL;
}

static void run_child(char *commands)
{
	pid_t child = fork();
	char *save, *c;
	int status;

	if (child) {
		waitpid(child, &status, 0);
		if (WIFEXITED(status))
			SAY("exit %d", WEXITSTATUS(status));
		else
			SAY("signal %d", WTERMSIG(status));
		return;
	}
	pthread_mutex_init(&out, NULL);
	for (c = strtok_r(commands, ";", &save); c; c = strtok_r(NULL, ";", &save)) {
		answer[0] = 0;
		command(c);
		say_answer("child ");
	}
	_exit(0);
}

/* Forks n times while other threads use the session; a child uses it too, and opens its own. */
static void fork_storm(int n)
{
	int status;

	while (n--) {
		pid_t child = fork();

		if (!child) {
			struct ibv_port_attr attr;
			struct ibv_device **l;

			alarm(20);
			if (ibv_query_port(ctx, 1, &attr) != EIO)
				_exit(1);
			l = ibv_get_device_list(NULL);
			if (!l || !l[0])
				_exit(2);
			ctx = ibv_open_device(l[0]);
			if (!ctx || ibv_query_port(ctx, 1, &attr))
				_exit(3);
			_exit(0);
		}
		if (waitpid(child, &status, 0) != child || status) {
			SAY("status %#x", status);
			return;
		}
	}
	result(0);
}

static volatile int stopped;

static void spin(void)
{
	struct ibv_port_attr attr;
	struct ibv_wc wc;

	while (!stopped) {
		ibv_query_port(ctx, 1, &attr);
		if (cqs[0])
			ctx->ops.poll_cq(cqs[0], 1, &wc);
		if (pds[0])
			ibv_dereg_mr(ibv_reg_mr_iova2(pds[0], answer, sizeof(answer), (uintptr_t)answer, 1));
	}
	result(0);
}

/* Makes and ends objects, n times over. */
static void churn(int n)
{
	while (n--) {
		struct ibv_comp_channel *ch = ibv_create_comp_channel(ctx);
		struct ibv_cq *cq = ch ? ibv_create_cq(ctx, 8, NULL, ch, 0) : NULL;
		struct ibv_pd *pd = cq ? ibv_alloc_pd(ctx) : NULL;
		int err = ENOMEM;

		if (pd)
			err = ctx->ops.req_notify_cq(cq, 0);
		if (!err)
			err = ibv_dealloc_pd(pd);
		if (!err)
			err = ibv_destroy_cq(cq);
		if (!err)
			err = ibv_destroy_comp_channel(ch);
		if (err) {
			result(err);
			return;
		}
	}
	result(0);
}

/* True at the end. */
static int command(char *line)
{
	char name[32] = "", arg[64] = "";
	long a = 0, b = 0, c = 0;

	sscanf(line, " %31s %ld %ld %ld", name, &a, &b, &c);
	sscanf(line, " %*s %63s", arg);
	SAY("%s ", name);
	if (!strcmp(name, "list")) {
		list();
	} else if (!strcmp(name, "open")) {
		open_device(arg);
	} else if (!strcmp(name, "close")) {
		failed(ibv_close_device(ctx));
	} else if (!strcmp(name, "device")) {
		struct ibv_device_attr attr;

		result(ibv_query_device(ctx, &attr));
	} else if (!strcmp(name, "queries")) {
		queries(a);
	} else if (!strcmp(name, "chan")) {
		int i = slot(chans);

		chans[i] = ibv_create_comp_channel(ctx);
		failed(!chans[i]);
	} else if (!strcmp(name, "chans")) { /* makes and destroys so many */
		int err = 0;

		while (a-- && !err) {
			struct ibv_comp_channel *ch = ibv_create_comp_channel(ctx);

			err = ch ? ibv_destroy_comp_channel(ch) : errno;
		}
		result(err);
	} else if (!strcmp(name, "opens")) { /* opens and closes a device so often */
		struct ibv_context *was = ctx;
		int err = 0;

		while (a-- && !err) {
			struct ibv_context *c = ibv_open_device(was->device);

			err = c ? ibv_close_device(c) : errno;
		}
		result(err);
	} else if (!strcmp(name, "delchan")) {
		result(ibv_destroy_comp_channel(chans[a]));
	} else if (!strcmp(name, "nonblock")) {
		failed(fcntl(chans[a]->fd, F_SETFL, O_NONBLOCK));
	} else if (!strcmp(name, "readable")) {
		SAY("%d", readable(chans[a]->fd));
	} else if (!strcmp(name, "areadable")) {
		SAY("%d", readable(ctx->async_fd));
	} else if (!strcmp(name, "cq")) {
		int i = slot(cqs);

		cqs[i] = ibv_create_cq(ctx, b, &cqs[i], a < 0 ? NULL : chans[a], c);
		failed(!cqs[i]);
		if (cqs[i])
			SAY(" %d", cqs[i]->cqe);
	} else if (!strcmp(name, "delcq")) {
		result(ibv_destroy_cq(cqs[a]));
	} else if (!strcmp(name, "resize")) {
		result(ibv_resize_cq(cqs[a], b));
	} else if (!strcmp(name, "arm")) {
		result(ctx->ops.req_notify_cq(cqs[a], b));
	} else if (!strcmp(name, "poll")) {
		completion(a);
	} else if (!strcmp(name, "get")) {
		get(a);
	} else if (!strcmp(name, "ack")) {
		ibv_ack_cq_events(cqs[a], b);
		result(0);
	} else if (!strcmp(name, "async")) {
		async();
	} else if (!strcmp(name, "aack")) {
		ibv_ack_async_event(&last_event);
		result(0);
	} else if (!strcmp(name, "pd")) {
		int i = slot(pds);

		pds[i] = ibv_alloc_pd(ctx);
		failed(!pds[i]);
	} else if (!strcmp(name, "delpd")) {
		result(ibv_dealloc_pd(pds[a]));
	} else if (!strcmp(name, "mr")) {
		sscanf(line, " %*s %*s %ld %ld %lx", &a, &b, &c);
		mr(arg, a, b, c);
	} else if (!strcmp(name, "again")) { /* registers what the last mr was in */
		mrs[slot(mrs)] = ibv_reg_mr(pds[slot(pds) - 1], buf, a, 1);
		failed(!mrs[slot(mrs) - 1]);
	} else if (!strcmp(name, "delmr")) {
		result(ibv_dereg_mr(mrs[a]));
	} else if (!strcmp(name, "rereg")) {
		int r = ibv_rereg_mr(mrs[a], b, pds[1], buf, 4096, c);

		SAY("%d %s", r, r ? strerrorname_np(errno) : "ok");
	} else if (!strcmp(name, "free")) {
		vrnic_free(buf);
		result(0);
	} else if (!strcmp(name, "mw")) {
		int i = slot(mws);

		mws[i] = ctx->ops.alloc_mw(pds[0], a);
		failed(!mws[i]);
	} else if (!strcmp(name, "delmw")) {
		result(ctx->ops.dealloc_mw(mws[a]));
	} else if (!strcmp(name, "alarms")) {
		alarms(a);
	} else if (!strcmp(name, "spin")) {
		spin();
	} else if (!strcmp(name, "stop")) {
		stopped = 1;
		while (nthreads)
			pthread_join(threads[--nthreads], NULL);
		result(0);
	} else if (!strcmp(name, "cancel")) {
		pthread_t t = threads[--nthreads];
		void *ret = NULL;

		pthread_cancel(t);
		pthread_join(t, &ret);
		SAY("%s", ret == PTHREAD_CANCELED ? "ok" : "came back");
	/* what the process has open: the limit, less what can be opened still */
	} else if (!strcmp(name, "fds")) {
		int n = 0, fd[256];

		while (n < 256 && (fd[n] = dup(0)) >= 0)
			n++;
		SAY("%d", n ? fd[n - 1] + 1 - n : -1);
		while (n--)
			close(fd[n]);
	} else if (!strcmp(name, "limit")) { /* room for so many more */
		struct rlimit r;
		int fd;

		getrlimit(RLIMIT_NOFILE, &r);
		r.rlim_cur = r.rlim_max;
		setrlimit(RLIMIT_NOFILE, &r);
		fd = dup(0);
		close(fd);
		r.rlim_cur = a < 0 ? r.rlim_max : (rlim_t)(fd + a);
		failed(setrlimit(RLIMIT_NOFILE, &r));
	} else if (!strcmp(name, "nodump")) {
		failed(prctl(PR_SET_DUMPABLE, 0));
	} else if (!strcmp(name, "churn")) {
		churn(a);
	} else if (!strcmp(name, "rings")) {
		find_rings();
	} else if (!strcmp(name, "occupy")) {
		occupy();
	} else if (!strcmp(name, "occupied")) {
		occupied();
	} else if (!strcmp(name, "storm")) {
		fork_storm(a);
	} else if (!strcmp(name, "fork")) {
		run_child(strchr(strstr(line, "fork"), ' ') + 1);
	} else if (!strcmp(name, "tick")) {
		tick_ms = a;
		result(0);
	} else if (!strcmp(name, "sleep")) {
		usleep(1000 * a);
		result(0);
	} else if (!strcmp(name, "exit")) {
		return 1;
	} else {
		SAY("what?");
	}
	return 0;
}

int main(void)
{
	static char line[4096];

	for (;;) {
		if (!fgets(line, sizeof(line), stdin)) {
			if (!ferror(stdin) || errno != EINTR)
				break;
			clearerr(stdin);
			continue;
		}
		line[strcspn(line, "\n")] = 0;
		answer[0] = 0;
		if (!strncmp(line, "bg ", 3)) {
			pthread_create(&threads[nthreads++], NULL, background, strdup(line + 3));
			continue;
		}
		if (command(line))
			return 7; /* with other threads where they are */
		say_answer("");
	}
	return 0;
}
