/* Forks, execs, and the end of the daemon. The rig kills the daemon when a case says "kill the daemon". */
#include "vt.h"

#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/wait.h>

static struct vt_pair p;

static void transfer(int rounds)
{
	for (int i = 0; i < rounds; i++) {
		vt_fill(p.a.buf, 20000, i);
		vt_recv(&p.b, 1, 20000, 20000);
		vt_send(&p.a, 2, 0, 20000);
		vt_wc(p.b.rcq, 1, IBV_WC_SUCCESS, IBV_WC_RECV);
		vt_wc(p.a.scq, 2, IBV_WC_SUCCESS, IBV_WC_SEND);
		vt_verify(p.b.buf + 20000, 20000, i);
		vt_rdma(&p.b, 3, IBV_WR_RDMA_WRITE, 20000, 20000, &p.a, 40000);
		vt_rdma(&p.b, 4, IBV_WR_RDMA_READ, 0, 100, &p.a, 40000);
		vt_wc(p.b.scq, 3, IBV_WC_SUCCESS, IBV_WC_RDMA_WRITE);
		vt_wc(p.b.scq, 4, IBV_WC_SUCCESS, IBV_WC_RDMA_READ);
		vt_verify(p.a.buf + 40000, 20000, i);
	}
}

static void child_ended_well(pid_t pid)
{
	int status;

	CHECK_EQ(waitpid(pid, &status, 0), pid);
	if (!WIFEXITED(status) || WEXITSTATUS(status))
		FAIL("the child's status is %#x", status);
}

/* What has been inherited is of no use to a child, and it neither hangs nor dies of it. */
static void uses_parents_objects(void)
{
	struct ibv_sge sge = vt_sge(&p.a, 0, 10);
	struct ibv_send_wr wr = { .wr_id = 1, .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND, .send_flags = IBV_SEND_SIGNALED }, *bad;
	struct ibv_recv_wr rwr = { .wr_id = 1, .sg_list = &sge, .num_sge = 1 }, *rbad;
	struct ibv_device_attr attr;
	struct ibv_wc wc[8];

	(void)ibv_post_send(p.a.qp, &wr, &bad);
	(void)ibv_post_recv(p.a.qp, &rwr, &rbad);
	for (int i = 0; i < 5; i++)
		(void)ibv_poll_cq(p.a.scq, 8, wc);
	(void)ibv_req_notify_cq(p.a.scq, 0);
	CHECK(!ibv_reg_mr(p.a.pd, p.a.buf, 100, 0));
	CHECK(!ibv_alloc_pd(p.a.id->verbs));
	CHECK(rdma_disconnect(p.a.id) != 0);
	CHECK(ibv_query_device(p.a.id->verbs, &attr) != 0);
}

/* A parent with a live connection forks; what the child does, and its end, does not disturb it. */
static void forks(void)
{
	pid_t pid;

	vt_open(&p, &(struct vt_opts){ .channel = true });
	transfer(2);
	/* a child that does nothing and lives for a while */
	CHECK((pid = fork()) >= 0);
	if (!pid) {
		usleep(300000);
		_exit(0);
	}
	transfer(20);
	child_ended_well(pid);
	transfer(5);
	/* one that calls exit, with what atexit has */
	CHECK((pid = fork()) >= 0);
	if (!pid)
		exit(0);
	child_ended_well(pid);
	transfer(5);
	/* one that uses what it has inherited */
	CHECK((pid = fork()) >= 0);
	if (!pid) {
		uses_parents_objects();
		_exit(0);
	}
	child_ended_well(pid);
	transfer(5);
	/* one that writes to the memory that the parent has registered */
	CHECK((pid = fork()) >= 0);
	if (!pid) {
		memset(p.a.buf, 0x55, p.a.len);
		memset(p.b.buf, 0x55, p.b.len);
		_exit(0);
	}
	transfer(5);
	child_ended_well(pid);
	transfer(5);
	/* and one with a connection of its own, at the same time as the parent's */
	CHECK((pid = fork()) >= 0);
	if (!pid) {
		vt_open(&p, &(struct vt_opts){ .channel = true });
		transfer(10);
		vt_close(&p);
		_exit(0);
	}
	transfer(20);
	child_ended_well(pid);
	transfer(5);
	vt_close(&p);
}

/* Threads that wait, fork and transfer at the same time. */
static volatile bool stop;

static void *forks_on(void *arg)
{
	(void)arg;
	for (int i = 0; !stop && i < 1000; i++) {
		pid_t pid = fork();

		CHECK(pid >= 0);
		if (!pid) {
			if (i % 3 == 0)
				(void)ibv_alloc_pd(p.a.id->verbs);
			_exit(0);
		}
		child_ended_well(pid);
	}
	return NULL;
}

static void forks_while_busy(void)
{
	pthread_t t;

	vt_open(&p, &(struct vt_opts){ 0 });
	CHECK_EQ(pthread_create(&t, NULL, forks_on, NULL), 0);
	for (int i = 0; i < 30; i++) {
		struct ibv_mr *mr;

		transfer(5);
		CHECK(mr = ibv_reg_mr(p.a.pd, p.a.buf, 4096, IBV_ACCESS_LOCAL_WRITE));
		CHECK_EQ(ibv_dereg_mr(mr), 0);
	}
	stop = true;
	CHECK_EQ(pthread_join(t, NULL), 0);
	vt_close(&p);
}

/* A parent that has nothing yet: each child has its own. */
static void forks_first(void)
{
	pid_t pids[4];

	for (int i = 0; i < 4; i++) {
		CHECK((pids[i] = fork()) >= 0);
		if (!pids[i]) {
			vt_open(&p, &(struct vt_opts){ 0 });
			transfer(5);
			vt_close(&p);
			_exit(0);
		}
	}
	for (int i = 0; i < 4; i++)
		child_ended_well(pids[i]);
}

/*
 * A program closes all descriptors that it does not know, without a fork, and opens files of its own: those are closed by
 * nobody, in the child of a fork neither, nothing is written there, and the devices are found again.
 */
static void closes_all(void)
{
	struct ibv_device **list;
	int own[8], pair[2], n;
	char c;
	pid_t pid = fork(), child;

	CHECK(pid >= 0);
	if (pid) {
		child_ended_well(pid);
		return;
	}
	CHECK(list = ibv_get_device_list(&n));
	ibv_free_device_list(list);
	for (int fd = 3; fd < 1024; fd++)
		close(fd);
	CHECK_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, pair), 0);
	for (int i = 0; i < 8; i++)
		CHECK((own[i] = open("/dev/null", O_RDWR)) >= 0);
	CHECK((child = fork()) >= 0);
	if (!child) {
		for (int i = 0; i < 8; i++)
			CHECK(fcntl(own[i], F_GETFD) >= 0);
		CHECK(fcntl(pair[0], F_GETFD) >= 0 && fcntl(pair[1], F_GETFD) >= 0);
		_exit(0);
	}
	child_ended_well(child);
	CHECK(list = ibv_get_device_list(&n));
	CHECK(n > 0);
	ibv_free_device_list(list);
	CHECK_ERRNO(read(pair[0], &c, 1), EAGAIN);
	CHECK_ERRNO(read(pair[1], &c, 1), EAGAIN);
	_exit(0);
}

/* An exec takes no descriptor along: what the library has open is close-on-exec. */
static void execs(void)
{
	char what[4096];
	FILE *f;
	size_t n;

	vt_open(&p, &(struct vt_opts){ .channel = true });
	CHECK(f = popen("ls -l /proc/self/fd", "r"));
	n = fread(what, 1, sizeof(what) - 1, f);
	what[n] = 0;
	pclose(f);
	/* 0, 1, 2 of this program, and ls's own of the directory */
	if (strstr(what, "memfd") || strstr(what, "/mem\n") || strstr(what, "eventfd"))
		FAIL("descriptors go along:\n%s", what);
	transfer(3);
	vt_close(&p);
}

/* A process that execs with a live connection has ended it: its peer learns of it. This one is both, so that the peer is a
 * child's connection to the parent's listener. */
static void exec_disconnects(void)
{
	struct rdma_conn_param param = { .responder_resources = 1, .initiator_depth = 1 };
	struct rdma_cm_event *ev;
	struct vt_opts o = { 0 };
	pid_t pid;
	int fds[2];

	memset(&p, 0, sizeof(p));
	CHECK_EQ(pipe(fds), 0);
	CHECK((pid = fork()) >= 0);
	if (!pid) {
		uint16_t port;

		CHECK_EQ(read(fds[0], &port, 2), 2);
		vt_resolve(&p, &p.a, port);
		vt_objects(&p.a, &o, false);
		vt_qp(&p.a, &o);
		CHECK_EQ(rdma_connect(p.a.id, &param), 0);
		vt_expect(p.a.ch, RDMA_CM_EVENT_ESTABLISHED, 0);
		execlp("sleep", "sleep", "10", NULL);
		_exit(1);
	}
	vt_listen(&p);
	uint16_t port = rdma_get_src_port(p.listen);
	CHECK_EQ(write(fds[1], &port, 2), 2);
	ev = vt_event(p.lch, RDMA_CM_EVENT_CONNECT_REQUEST);
	p.b.id = ev->id;
	CHECK_EQ(rdma_ack_cm_event(ev), 0);
	vt_objects(&p.b, &o, false);
	vt_qp(&p.b, &o);
	vt_recv(&p.b, 5, 0, 10);
	CHECK_EQ(rdma_accept(p.b.id, &param), 0);
	vt_expect(p.lch, RDMA_CM_EVENT_ESTABLISHED, 0);
	vt_expect(p.lch, RDMA_CM_EVENT_DISCONNECTED, 0);
	vt_wc(p.b.rcq, 5, IBV_WC_WR_FLUSH_ERR, -1);
	kill(pid, SIGKILL);
	CHECK_EQ(waitpid(pid, NULL, 0), pid);
	vt_free(&p);
}

/* The main thread ends and the others go on. */
static void *goes_on(void *arg)
{
	(void)arg;
	usleep(50000);
	transfer(10);
	vt_close(&p);
	printf("ok main_thread_ends\nall done\n");
	exit(0);
}

static void main_thread_ends(void)
{
	pthread_t t;

	vt_open(&p, &(struct vt_opts){ 0 });
	transfer(1);
	CHECK_EQ(pthread_create(&t, NULL, goes_on, NULL), 0);
	pthread_exit(NULL);
}

/* The daemon dies under a program that waits in four ways, spins, and has work posted. */
static int woken;
static enum rdma_cm_event_type cm_got[8];
static int cm_n;

/* Behind the last event a channel has nothing to say: who polls it is not woken, and who asks waits. */
static void silent(struct rdma_event_channel *ch)
{
	int fl = fcntl(ch->fd, F_GETFL);
	struct rdma_cm_event *ev;

	CHECK(!vt_readable(ch->fd, 50));
	CHECK(fcntl(ch->fd, F_GETFD) & FD_CLOEXEC);
	CHECK_EQ(fcntl(ch->fd, F_SETFL, fl | O_NONBLOCK), 0);
	CHECK_ERRNO(rdma_get_cm_event(ch, &ev), EAGAIN);
	CHECK_EQ(fcntl(ch->fd, F_SETFL, fl), 0);
}

static void *asks_for_ever(void *arg)
{
	struct rdma_cm_event *ev;

	rdma_get_cm_event(arg, &ev);
	FAIL("a channel that is silent has an event");
}

static void *cm_waiter(void *arg)
{
	struct rdma_event_channel *ch = arg;
	struct rdma_cm_event *ev;

	do {
		CHECK(cm_n < 8);
		CHECK_EQ(rdma_get_cm_event(ch, &ev), 0);
		cm_got[cm_n++] = ev->event;
		CHECK_EQ(rdma_ack_cm_event(ev), 0);
	} while (cm_got[cm_n - 1] != RDMA_CM_EVENT_DEVICE_REMOVAL);
	silent(ch);
	__atomic_add_fetch(&woken, 1, __ATOMIC_SEQ_CST);
	return NULL;
}

static void *cq_waiter(void *arg)
{
	struct vt_side *s = arg;
	struct ibv_cq *cq;
	void *ctx;
	int n = 0;

	while (!ibv_get_cq_event(s->cc, &cq, &ctx)) {
		CHECK(cq == s->rcq && ctx == s);
		ibv_ack_cq_events(cq, 1);
		CHECK_EQ(++n, 1); /* the armed one, once */
	}
	if (errno != EIO && errno != ENODEV)
		FAIL("ibv_get_cq_event: %s", strerror(errno));
	CHECK_EQ(n, 1);
	__atomic_add_fetch(&woken, 1, __ATOMIC_SEQ_CST);
	return NULL;
}

static void *async_waiter(void *arg)
{
	struct ibv_async_event ev;

	CHECK_EQ(ibv_get_async_event(arg, &ev), 0);
	CHECK_EQ(ev.event_type, IBV_EVENT_DEVICE_FATAL);
	ibv_ack_async_event(&ev);
	/* Once; then an error. */
	if (ibv_get_async_event(arg, &ev) != -1 || (errno != EIO && errno != ENODEV))
		FAIL("ibv_get_async_event: %s", strerror(errno));
	__atomic_add_fetch(&woken, 1, __ATOMIC_SEQ_CST);
	return NULL;
}

static void daemon_dies(void)
{
	pthread_t t[4];
	struct ibv_wc wc;
	uint64_t late;
	int disconnected = 0, removed = 0;
	struct ibv_qp_attr a;
	struct ibv_qp_init_attr init;
	struct rdma_event_channel *idle = rdma_create_event_channel();

	CHECK(idle);
	vt_open(&p, &(struct vt_opts){ .channel = true });
	transfer(3);
	for (int i = 0; i < 5; i++)
		vt_recv(&p.b, 10 + i, 0, 10);
	CHECK_EQ(ibv_req_notify_cq(p.b.rcq, 0), 0);
	CHECK_EQ(pthread_create(&t[0], NULL, cm_waiter, p.b.ch), 0);
	CHECK_EQ(pthread_create(&t[1], NULL, cq_waiter, &p.b), 0);
	CHECK_EQ(pthread_create(&t[2], NULL, async_waiter, p.b.id->verbs), 0);
	usleep(100000);
	printf("kill the daemon\n");
	for (int i = 0; i < 3; i++)
		CHECK_EQ(pthread_join(t[i], NULL), 0);
	CHECK_EQ(woken, 3);
	for (int i = 0; i < cm_n; i++) {
		disconnected += cm_got[i] == RDMA_CM_EVENT_DISCONNECTED;
		removed += cm_got[i] == RDMA_CM_EVENT_DEVICE_REMOVAL;
	}
	CHECK_EQ(disconnected, 1);
	CHECK_EQ(removed, 1);
	CHECK_EQ(cm_n, 2);
	/* What is posted flushes, in order, what comes later too. */
	for (int i = 0; i < 5; i++)
		vt_wc(p.b.rcq, 10 + i, IBV_WC_WR_FLUSH_ERR, -1);
	vt_no_wc(p.b.rcq);
	vt_send(&p.a, 7, 0, 10);
	CHECK_EQ(vt_wc(p.a.scq, 7, IBV_WC_WR_FLUSH_ERR, -1).qp_num, p.a.qp->qp_num);
	vt_recv(&p.a, 8, 0, 10);
	vt_wc(p.a.rcq, 8, IBV_WC_WR_FLUSH_ERR, -1);
	if (!ibv_query_qp(p.a.qp, &a, IBV_QP_STATE, &init))
		CHECK_EQ(a.qp_state, IBV_QPS_ERR);
	/* Nothing new comes into being. */
	CHECK(!ibv_alloc_pd(p.a.id->verbs));
	CHECK(!ibv_reg_mr(p.a.pd, p.a.buf, 10, 0));
	CHECK(!ibv_create_cq(p.a.id->verbs, 1, NULL, NULL, 0));
	CHECK(rdma_listen(p.listen, 1) != 0);
	CHECK(rdma_disconnect(p.a.id) != 0 || true);
	late = vt_now_ms() + 1000;
	while (vt_now_ms() < late && ibv_poll_cq(p.a.scq, 1, &wc) == 0)
		;
	/* And all can be destroyed. */
	{
		struct rdma_cm_event *ev;
		int fl = fcntl(p.a.ch->fd, F_GETFL);

		fcntl(p.a.ch->fd, F_SETFL, fl | O_NONBLOCK);
		for (int i = 0; i < 2; i++) { /* DISCONNECTED, DEVICE_REMOVAL */
			CHECK(vt_readable(p.a.ch->fd, 0));
			CHECK_EQ(rdma_get_cm_event(p.a.ch, &ev), 0);
			CHECK_EQ(rdma_ack_cm_event(ev), 0);
		}
		CHECK(fcntl(p.a.ch->fd, F_GETFL) & O_NONBLOCK);
		CHECK_ERRNO(rdma_get_cm_event(p.a.ch, &ev), EAGAIN);
		fcntl(p.a.ch->fd, F_SETFL, fl);
		silent(p.a.ch);
	}
	/* One that had no id: an error, once. A thread that waits there leaves with a cancellation. */
	{
		struct rdma_cm_event *ev;
		pthread_t waits;

		CHECK_ERRNO(rdma_get_cm_event(idle, &ev), EIO);
		silent(idle);
		CHECK_EQ(pthread_create(&waits, NULL, asks_for_ever, idle), 0);
		usleep(20000);
		CHECK_EQ(pthread_cancel(waits), 0);
		CHECK_EQ(pthread_join(waits, NULL), 0);
		rdma_destroy_event_channel(idle);
	}
	vt_free(&p);
}

/* The daemon dies under one that polls and one that calls; and when another one is there, a program's new ids cannot use the old. */
static void daemon_dies_polling(void)
{
	struct ibv_wc wc;
	uint64_t late;
	int n;

	vt_open(&p, &(struct vt_opts){ 0 });
	transfer(3);
	for (int i = 0; i < 3; i++)
		vt_recv(&p.b, 10 + i, 0, 10);
	printf("kill the daemon\n");
	late = vt_now_ms() + VT_PATIENCE;
	while (!(n = ibv_poll_cq(p.b.rcq, 1, &wc)))
		if (vt_now_ms() > late)
			FAIL("a program that polls does not learn of the daemon's end");
	CHECK_EQ(n, 1);
	CHECK_EQ(wc.status, IBV_WC_WR_FLUSH_ERR);
	CHECK_EQ(wc.wr_id, 10);
	vt_wc(p.b.rcq, 11, IBV_WC_WR_FLUSH_ERR, -1);
	vt_wc(p.b.rcq, 12, IBV_WC_WR_FLUSH_ERR, -1);
	vt_free(&p);
}

/* The daemon dies at any moment of connections that come and go: every call returns. */
static void daemon_dies_busy(void)
{
	printf("kill the daemon\n");
	for (int i = 0; i < 100000; i++) {
		struct rdma_event_channel *ch = rdma_create_event_channel();
		struct sockaddr_storage src, dst;
		struct rdma_cm_event *ev;
		struct rdma_cm_id *id;
		bool dead = !ch;

		if (dead)
			break;
		if (rdma_create_id(ch, &id, NULL, RDMA_PS_TCP)) {
			rdma_destroy_event_channel(ch);
			break;
		}
		if (rdma_resolve_addr(id, vt_addr(&vt_client, 0, &src), vt_addr(&vt_server, 1, &dst), 1000)) {
			dead = true;
		} else {
			if (!vt_readable(ch->fd, VT_PATIENCE))
				FAIL("no event");
			if (rdma_get_cm_event(ch, &ev)) {
				dead = true;
			} else {
				dead = ev->event != RDMA_CM_EVENT_ADDR_RESOLVED;
				CHECK_EQ(rdma_ack_cm_event(ev), 0);
			}
		}
		if (!dead) {
			struct ibv_pd *pd = ibv_alloc_pd(id->verbs);
			struct ibv_cq *cq = ibv_create_cq(id->verbs, 10, NULL, NULL, 0);
			struct ibv_qp_init_attr attr = { .send_cq = cq, .recv_cq = cq, .qp_type = IBV_QPT_RC, .cap = { 1, 1, 1, 1, 0 } };

			if (pd && cq && !rdma_create_qp(id, pd, &attr))
				rdma_destroy_qp(id);
			if (cq)
				CHECK_EQ(ibv_destroy_cq(cq), 0);
			if (pd)
				CHECK_EQ(ibv_dealloc_pd(pd), 0);
		}
		CHECK_EQ(rdma_destroy_id(id), 0);
		rdma_destroy_event_channel(ch);
		if (dead)
			return;
	}
}

static void *destroys(void *id)
{
	CHECK_EQ(rdma_destroy_id(id), 0);
	return NULL;
}

/* While an id is being destroyed, which waits for an event to be acknowledged: none is made up for it. */
static void daemon_dies_destroying(void)
{
	struct rdma_event_channel *ch = rdma_create_event_channel();
	struct sockaddr_storage src, dst;
	struct rdma_cm_event *ev, *last;
	struct rdma_cm_id *id, *other;
	pthread_t t;

	CHECK(ch);
	CHECK_EQ(rdma_create_id(ch, &id, NULL, RDMA_PS_TCP), 0);
	CHECK_EQ(rdma_create_id(ch, &other, NULL, RDMA_PS_TCP), 0);
	CHECK_EQ(rdma_resolve_addr(id, vt_addr(&vt_client, 0, &src), vt_addr(&vt_server, 1, &dst), 1000), 0);
	ev = vt_event(ch, RDMA_CM_EVENT_ADDR_RESOLVED);
	CHECK_EQ(pthread_create(&t, NULL, destroys, id), 0);
	usleep(200000); /* that it waits already; if not, nothing else is right */
	printf("kill the daemon\n");
	last = vt_event(ch, RDMA_CM_EVENT_DEVICE_REMOVAL);
	CHECK(last->id == other);
	CHECK_EQ(rdma_ack_cm_event(last), 0);
	vt_no_event(ch);
	CHECK_EQ(rdma_ack_cm_event(ev), 0);
	CHECK_EQ(pthread_join(t, NULL), 0);
	CHECK_EQ(rdma_destroy_id(other), 0);
	rdma_destroy_event_channel(ch);
}

static const struct vt_case cases[] = {
	{ "forks", forks }, { "forks_while_busy", forks_while_busy }, { "forks_first", forks_first }, { "closes_all", closes_all },
	{ "execs", execs },
	{ "exec_disconnects", exec_disconnects }, { "main_thread_ends", main_thread_ends },
	{ "daemon_dies", daemon_dies }, { "daemon_dies_polling", daemon_dies_polling }, { "daemon_dies_busy", daemon_dies_busy },
	{ "daemon_dies_destroying", daemon_dies_destroying }, {},
};

int main(int argc, char **argv) { return vt_main(argc, argv, cases); }
