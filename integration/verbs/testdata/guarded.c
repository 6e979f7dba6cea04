/*
 * What vrnic exec --check does so that it sees who reads a buffer too early changes nothing else: signals and their
 * handlers, memory that goes, forks, calls that are given such a buffer.
 */
#include "vt.h"

#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/wait.h>

#define LEN 32768

static struct vt_pair p;
static volatile char seen;
static sigjmp_buf out;
static void *volatile fault_at;

/* b has posted a receive, and the pages of its buffer are the device's. */
static void begin(void)
{
	vt_open(&p, &(struct vt_opts){ .access = IBV_ACCESS_LOCAL_WRITE });
	vt_recv(&p.b, 2, 64, LEN);
}

/* All is as it would be otherwise. */
static void end(void)
{
	vt_fill(p.a.buf, LEN, 3);
	vt_send(&p.a, 1, 0, LEN);
	vt_wc(p.a.scq, 1, IBV_WC_SUCCESS, IBV_WC_SEND);
	vt_wc(p.b.rcq, 2, IBV_WC_SUCCESS, IBV_WC_RECV);
	vt_verify(p.b.buf + 64, LEN, 3);
	vt_close(&p);
}

static void on_fault(int sig, siginfo_t *info, void *context)
{
	(void)context;
	CHECK_EQ(sig, SIGSEGV);
	fault_at = info->si_addr;
	siglongjmp(out, 1);
}

static void on_plain_fault(int sig)
{
	CHECK_EQ(sig, SIGSEGV);
	fault_at = &out;
	siglongjmp(out, 1);
}

static void install(void (*handler)(int, siginfo_t *, void *), struct sigaction *old)
{
	struct sigaction a = { .sa_sigaction = handler, .sa_flags = SA_SIGINFO };

	sigfillset(&a.sa_mask);
	CHECK_EQ(sigaction(SIGSEGV, &a, old), 0);
}

/* A fault of the program's own comes to its own handler. */
static void own_fault(void *want)
{
	char *page = mmap(NULL, 4096, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	CHECK(page != MAP_FAILED);
	fault_at = NULL;
	if (!sigsetjmp(out, 1))
		seen = page[100];
	CHECK(fault_at == (want ? want : page + 100));
	CHECK_EQ(munmap(page, 4096), 0);
}

static void handler_before(void)
{
	install(on_fault, NULL);
	begin();
	own_fault(NULL);
	seen = p.b.buf[20000];
	own_fault(NULL);
	end();
}

static void handler_after(void)
{
	struct sigaction old;

	begin();
	install(on_fault, &old);
	CHECK(old.sa_handler == SIG_DFL);
	own_fault(NULL);
	seen = p.b.buf[20000];
	CHECK(signal(SIGSEGV, on_plain_fault) == (void (*)(int))(void (*)(void))on_fault);
	own_fault(&out);
	CHECK(signal(SIGSEGV, SIG_DFL) == on_plain_fault);
	end();
}

/* The end of a program that has no handler is the same, and if one is sent. */
static void no_handler(void)
{
	int i, status;
	pid_t pid;

	begin();
	for (i = 0; i < 2; i++) {
		CHECK((pid = fork()) >= 0);
		if (!pid) {
			if (i)
				kill(getpid(), SIGSEGV);
			else
				*(volatile char *)8 = 1;
			_exit(0);
		}
		CHECK_EQ(waitpid(pid, &status, 0), pid);
		CHECK(WIFSIGNALED(status) && WTERMSIG(status) == SIGSEGV);
	}
	end();
}

static void *blocked_thread(void *arg)
{
	sigset_t all;

	(void)arg;
	sigfillset(&all);
	CHECK_EQ(pthread_sigmask(SIG_SETMASK, &all, NULL), 0);
	seen = p.b.buf[20000];
	p.b.buf[12000] = 1;
	return NULL;
}

static void blocked(void)
{
	pthread_t t;

	begin();
	CHECK_EQ(pthread_create(&t, NULL, blocked_thread, NULL), 0);
	CHECK_EQ(pthread_join(t, NULL), 0);
	end();
}

/* The buffer of a child is its own. */
static void in_child(void)
{
	int status;
	pid_t pid;

	vt_open(&p, &(struct vt_opts){ .access = IBV_ACCESS_LOCAL_WRITE });
	vt_fill(p.b.buf, p.b.len, 9);
	vt_recv(&p.b, 2, 64, LEN);
	CHECK((pid = fork()) >= 0);
	if (!pid) {
		vt_verify(p.b.buf, p.b.len, 9);
		_exit(0);
	}
	CHECK_EQ(waitpid(pid, &status, 0), pid);
	CHECK_EQ(status, 0);
	end();
}

/* Memory that has gone while a receive is outstanding, and is the program's for something else. */
static void another_life(void)
{
	struct ibv_sge sge;
	struct ibv_recv_wr wr = { .wr_id = 1, .sg_list = &sge, .num_sge = 1 }, *bad;
	struct ibv_mr *mr;
	char *m;

	vt_open(&p, &(struct vt_opts){ .access = IBV_ACCESS_LOCAL_WRITE });
	m = mmap(NULL, LEN, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	CHECK(m != MAP_FAILED);
	CHECK(mr = ibv_reg_mr(p.b.pd, m, LEN, IBV_ACCESS_LOCAL_WRITE));
	sge = (struct ibv_sge){ (uintptr_t)m, LEN, mr->lkey };
	CHECK_EQ(ibv_post_recv(p.b.qp, &wr, &bad), 0);
	install(on_fault, NULL);
	CHECK_EQ(mprotect(m, 8000, PROT_READ), 0); /* of two pages */
	CHECK_EQ(m[0], 0);
	fault_at = NULL;
	if (!sigsetjmp(out, 1))
		m[5000] = 1;
	CHECK(fault_at == m + 5000);
	m = mmap(m + 16384, 8192, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
	CHECK(m != MAP_FAILED);
	if (!sigsetjmp(out, 1))
		seen = m[2];
	CHECK(fault_at == m + 2);
	CHECK_EQ(mlock(m - 8192, 8192), 0);
	vt_disconnect(&p);
	CHECK_EQ(ibv_dereg_mr(mr), 0);
	vt_free(&p);
}

/* More than one request has the buffer, and it is sent from. */
static void shared_buffer(void)
{
	int i;

	vt_open(&p, &(struct vt_opts){ .access = IBV_ACCESS_LOCAL_WRITE });
	for (i = 0; i < 4; i++)
		vt_recv(&p.b, i, 0, LEN);
	seen = p.b.buf[20000];
	for (i = 0; i < 4; i++) {
		vt_send(&p.a, 1, 0, LEN);
		vt_wc(p.a.scq, 1, IBV_WC_SUCCESS, IBV_WC_SEND);
		vt_wc(p.b.rcq, i, IBV_WC_SUCCESS, IBV_WC_RECV);
		vt_recv(&p.a, 10, 0, LEN);
		vt_send(&p.b, 11, 0, LEN);
		seen = p.b.buf[20000];
		vt_wc(p.b.scq, 11, IBV_WC_SUCCESS, IBV_WC_SEND);
		vt_wc(p.a.rcq, 10, IBV_WC_SUCCESS, IBV_WC_RECV);
	}
	vt_close(&p);
}

/* Calls that are given it, to read and to fill. */
static void calls(void)
{
	struct iovec iov;
	char name[] = "/tmp/guardedXXXXXX";
	FILE *f;
	int fd;

	begin();
	iov = (struct iovec){ p.b.buf + 4096, 4096 };
	CHECK((fd = mkstemp(name)) >= 0);
	CHECK_EQ(unlink(name), 0);
	CHECK_EQ(writev(fd, &iov, 1), 4096);
	CHECK_EQ(pread(fd, p.b.buf + 8192, 4096, 0), 4096);
	iov.iov_base = p.b.buf + 12288;
	CHECK_EQ(preadv(fd, &iov, 1, 0), 4096);
	CHECK(f = fdopen(fd, "r+"));
	CHECK_EQ(fseek(f, 0, SEEK_SET), 0);
	CHECK_EQ(fread(p.b.buf + 16384, 1, 4096, f), 4096);
	CHECK_EQ(fclose(f), 0);
	CHECK_EQ(mlock(p.b.buf + 20480, 4096), 0);
	CHECK_EQ(madvise(p.b.buf + 24576, 4096, MADV_WILLNEED), 0);
	end();
}

/* Calls whose vectors are long, or are not memory: the kernel has its say. */
static void vectors(void)
{
	void *volatile nowhere = (void *)16; /* of which the compiler knows nothing */
	volatile int less = -1;
	struct iovec iov[20];
	int i, pipe_[2];

	begin();
	CHECK_EQ(pipe(pipe_), 0);
	for (i = 0; i < 20; i++)
		iov[i] = (struct iovec){ "octets", 6 };
	iov[19].iov_base = p.b.buf + 4096;
	CHECK_EQ(writev(pipe_[1], iov, 20), 120);
	CHECK(writev(pipe_[1], nowhere, 3) == -1 && errno == EFAULT);
	CHECK(readv(pipe_[0], nowhere, 3) == -1 && errno == EFAULT);
	CHECK(writev(pipe_[1], iov, less) == -1 && errno == EINVAL);
	CHECK_EQ(socketpair(AF_UNIX, SOCK_STREAM, 0, pipe_), 0);
	CHECK(sendmsg(pipe_[0], nowhere, 0) == -1 && errno == EFAULT);
	CHECK(recvmsg(pipe_[1], nowhere, 0) == -1 && errno == EFAULT);
	end();
}

/* The program asks for the state of its queue pair, and reads before it polls. */
static void asked(void)
{
	vt_open(&p, &(struct vt_opts){ .access = IBV_ACCESS_LOCAL_WRITE });
	vt_recv(&p.a, 2, 64, LEN);
	vt_recv(&p.b, 5, 0, 99);
	vt_send(&p.a, 1, 0, 100);
	while (vt_state(p.a.qp) != IBV_QPS_ERR)
		usleep(1000);
	seen = p.a.buf[20000];
	vt_poll(p.a.scq);
	vt_poll(p.b.rcq);
	vt_free(&p);
}

/* The connection does not come about. */
static void rejected(void)
{
	struct vt_opts o = { .access = IBV_ACCESS_LOCAL_WRITE };
	struct rdma_conn_param param = { 0 };
	struct rdma_cm_event *ev;

	vt_listen(&p);
	vt_resolve(&p, &p.a, rdma_get_src_port(p.listen));
	vt_objects(&p.a, &o, false);
	vt_qp(&p.a, &o);
	vt_recv(&p.a, 2, 64, LEN);
	CHECK_EQ(rdma_connect(p.a.id, &param), 0);
	ev = vt_event(p.lch, RDMA_CM_EVENT_CONNECT_REQUEST);
	CHECK_EQ(rdma_reject(ev->id, NULL, 0), 0);
	CHECK_EQ(rdma_destroy_id(ev->id), 0);
	CHECK_EQ(rdma_ack_cm_event(ev), 0);
	CHECK_EQ(rdma_ack_cm_event(vt_event(p.a.ch, RDMA_CM_EVENT_REJECTED)), 0);
	seen = p.a.buf[20000];
	vt_wc(p.a.rcq, 2, IBV_WC_WR_FLUSH_ERR, -1);
	vt_free(&p);
}

/* An id without a channel has waited for the answer. */
static void refused(void)
{
	struct vt_opts o = { .access = IBV_ACCESS_LOCAL_WRITE };
	struct rdma_conn_param param = { 0 };
	struct sockaddr_storage src, dst;
	uint16_t port;

	vt_listen(&p);
	port = rdma_get_src_port(p.listen);
	CHECK_EQ(rdma_create_id(NULL, &p.a.id, NULL, RDMA_PS_TCP), 0);
	CHECK_EQ(rdma_resolve_addr(p.a.id, vt_addr(&vt_client, 0, &src),
				   vt_addr(&vt_server, htons(ntohs(port) ^ 1), &dst), 2000), 0);
	CHECK_EQ(rdma_resolve_route(p.a.id, 2000), 0);
	vt_objects(&p.a, &o, false);
	vt_qp(&p.a, &o);
	vt_recv(&p.a, 2, 64, LEN);
	CHECK(rdma_connect(p.a.id, &param) == -1 && errno == ECONNREFUSED);
	seen = p.a.buf[20000];
	vt_wc(p.a.rcq, 2, IBV_WC_WR_FLUSH_ERR, -1);
	CHECK(p.a.ch = rdma_create_event_channel());
	vt_free(&p);
}

/* A call that fails by itself has nothing to do with what is posted. */
static void again(void)
{
	struct rdma_conn_param param = { 0 };

	begin();
	CHECK(rdma_connect(p.b.id, &param) == -1 && errno == EINVAL);
	seen = p.b.buf[20000];
	end();
}

/* The program hears by an event that what it has posted is over, and reads before it polls. */
static void event(void)
{
	vt_open(&p, &(struct vt_opts){ .access = IBV_ACCESS_LOCAL_WRITE });
	vt_recv(&p.a, 2, 64, LEN);
	vt_recv(&p.b, 5, 0, 99);
	vt_send(&p.a, 1, 0, 100);
	vt_async(p.a.qp, IBV_EVENT_QP_REQ_ERR);
	seen = p.a.buf[20000];
	vt_poll(p.a.scq);
	vt_poll(p.b.rcq);
	vt_free(&p);
}

static void device_event(void)
{
	struct ibv_async_event ev;

	vt_open(&p, &(struct vt_opts){ .access = IBV_ACCESS_LOCAL_WRITE, .srq = true });
	vt_recv(&p.a, 2, 64, LEN);
	vt_recv(&p.b, 3, 64, LEN);
	puts("opened");
	do {
		CHECK(vt_readable(p.b.id->verbs->async_fd, VT_PATIENCE));
		CHECK_EQ(ibv_get_async_event(p.b.id->verbs, &ev), 0);
		ibv_ack_async_event(&ev);
	} while (ev.event_type != IBV_EVENT_DEVICE_FATAL);
	seen = p.a.buf[20000];
	seen = p.b.buf[20000];
	vt_free(&p);
}

/* What ends with a shared receive queue is the program's: the kernel reads it by any call. */
static void shared_queue(void)
{
	int pipe_[2];

	vt_open(&p, &(struct vt_opts){ .access = IBV_ACCESS_LOCAL_WRITE, .srq = true });
	vt_recv(&p.b, 2, 64, LEN);
	vt_disconnect(&p);
	rdma_destroy_qp(p.b.id);
	p.b.qp = NULL;
	CHECK_EQ(ibv_destroy_srq(p.b.srq), 0);
	p.b.srq = NULL;
	CHECK_EQ(pipe(pipe_), 0);
	CHECK_EQ(syscall(SYS_write, pipe_[1], p.b.buf + 8192, 4096), 4096);
	vt_free(&p);
}

static pthread_barrier_t all;

static void *reader(void *arg)
{
	int page;

	(void)arg;
	for (page = 1; page < 8; page++) {
		pthread_barrier_wait(&all);
		seen = p.b.buf[page * 4096];
	}
	return NULL;
}

/* Threads that read a page at once all go on. */
static void threads(void)
{
	pthread_t t[4];
	int i;

	begin();
	CHECK_EQ(pthread_barrier_init(&all, NULL, 4), 0);
	for (i = 0; i < 4; i++)
		CHECK_EQ(pthread_create(&t[i], NULL, reader, NULL), 0);
	for (i = 0; i < 4; i++)
		CHECK_EQ(pthread_join(t[i], NULL), 0);
	end();
}

/* Who has started the program has left the signal blocked and ignored. */
static void inherited(void)
{
	char *argv[] = { "guarded", "threads", NULL };
	sigset_t set;

	sigemptyset(&set);
	sigaddset(&set, SIGSEGV);
	CHECK_EQ(syscall(SYS_rt_sigprocmask, SIG_BLOCK, &set, NULL, 8), 0);
	CHECK(signal(SIGSEGV, SIG_IGN) != SIG_ERR);
	execv("/proc/self/exe", argv);
	FAIL("execv: %s", strerror(errno));
}

static const struct vt_case cases[] = {
	{ "handler_before", handler_before }, { "handler_after", handler_after },
	{ "no_handler", no_handler }, { "blocked", blocked }, { "in_child", in_child },
	{ "another_life", another_life }, { "shared_buffer", shared_buffer }, { "calls", calls },
	{ "event", event }, { "device_event", device_event }, { "shared_queue", shared_queue },
	{ "threads", threads }, { "inherited", inherited }, { "vectors", vectors },
	{ "asked", asked }, { "rejected", rejected }, { "refused", refused }, { "again", again },
	{ NULL, NULL },
};

int main(int argc, char **argv)
{
	return vt_main(argc, argv, cases);
}
