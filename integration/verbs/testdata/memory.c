/* Memory of every kind that programs register. */
#define _GNU_SOURCE
#include "vt.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/uio.h>

static struct vt_pair p;
static char bss[100000];
static char initialized[70000] = { 1 };

/* Moves data from and to len octets at mem, by each operation, as source and as target. */
static void use(void *mem, size_t len)
{
	struct vt_side there = p.b;
	struct ibv_mr *mr;
	struct ibv_sge sge;
	struct ibv_recv_wr rwr = { .wr_id = 1, .sg_list = &sge, .num_sge = 1 }, *rbad;

	CHECK(mr = ibv_reg_mr(p.b.pd, mem, len, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ));
	CHECK(mr->addr == mem && mr->length == len && mr->context == p.b.id->verbs && mr->pd == p.b.pd);
	there.buf = mem;
	there.mr = mr;
	for (uint32_t n = 1; n <= len; n = n * 7 + 100) {
		size_t off = len - n;

		/* a receive there */
		vt_fill(p.a.buf, n, n);
		sge = (struct ibv_sge){ (uintptr_t)mem + off, n, mr->lkey };
		CHECK_EQ(ibv_post_recv(p.b.qp, &rwr, &rbad), 0);
		vt_send(&p.a, 2, 0, n);
		CHECK_EQ(vt_wc(p.b.rcq, 1, IBV_WC_SUCCESS, IBV_WC_RECV).byte_len, n);
		vt_wc(p.a.scq, 2, IBV_WC_SUCCESS, IBV_WC_SEND);
		vt_verify((char *)mem + off, n, n);
		/* a Read of it, a Write to it */
		vt_rdma(&p.a, 3, IBV_WR_RDMA_READ, 150000, n, &there, off);
		vt_wc(p.a.scq, 3, IBV_WC_SUCCESS, IBV_WC_RDMA_READ);
		vt_verify(p.a.buf + 150000, n, n);
		vt_fill(p.a.buf, n, n + 1);
		vt_rdma(&p.a, 4, IBV_WR_RDMA_WRITE, 0, n, &there, off);
		vt_rdma(&p.a, 5, IBV_WR_RDMA_READ, 150000, 1, &there, off);
		vt_wc(p.a.scq, 4, IBV_WC_SUCCESS, IBV_WC_RDMA_WRITE);
		vt_wc(p.a.scq, 5, IBV_WC_SUCCESS, IBV_WC_RDMA_READ);
		vt_verify((char *)mem + off, n, n + 1);
		/* a Send from it */
		vt_recv(&p.a, 6, 0, n);
		CHECK_EQ(vt_try_send(&there, 7, IBV_WR_SEND, off, n, 0, 0, 0), 0);
		vt_wc(p.a.rcq, 6, IBV_WC_SUCCESS, IBV_WC_RECV);
		vt_wc(p.b.scq, 7, IBV_WC_SUCCESS, IBV_WC_SEND);
		vt_verify(p.a.buf, n, n + 1);
		/* and as source and sink of what it asks for itself */
		CHECK_EQ(vt_try_send(&there, 8, IBV_WR_RDMA_READ, off, n, 0, (uintptr_t)p.a.buf + 150000, p.a.mr->rkey), 0);
		vt_wc(p.b.scq, 8, IBV_WC_SUCCESS, IBV_WC_RDMA_READ);
		CHECK(!memcmp((char *)mem + off, p.a.buf + 150000, n));
	}
	CHECK_EQ(ibv_dereg_mr(mr), 0);
}

static void *map(size_t len, int flags)
{
	void *m = mmap(NULL, len, PROT_READ | PROT_WRITE, flags, -1, 0);

	CHECK(m != MAP_FAILED);
	return m;
}

static void kinds(void)
{
	char stack[20000], *heap = malloc(100001), *m;
	int fd;

	vt_open(&p, &(struct vt_opts){ .len = 1 << 20 });
	use(stack, sizeof(stack));
	use(heap + 1, 100000);
	use(bss + 3, sizeof(bss) - 5);
	use(initialized, sizeof(initialized));
	use(map(100000, MAP_PRIVATE | MAP_ANONYMOUS), 100000); /* nothing has been touched yet */
	use(map(100000, MAP_SHARED | MAP_ANONYMOUS), 100000);
	/* a file, private and shared */
	CHECK((fd = open("/tmp", O_TMPFILE | O_RDWR, 0600)) >= 0);
	CHECK_EQ(ftruncate(fd, 100000), 0);
	for (int shared = 0; shared < 2; shared++) {
		CHECK((m = mmap(NULL, 100000, PROT_READ | PROT_WRITE, shared ? MAP_SHARED : MAP_PRIVATE, fd, 0)) != MAP_FAILED);
		use(m, 100000);
	}
	/* a transparent huge page, and one of hugetlbfs where there are any */
	m = map(4 << 20, MAP_PRIVATE | MAP_ANONYMOUS);
	(void)madvise(m, 4 << 20, MADV_HUGEPAGE);
	use(m + (2 << 20) - 50000, 100000);
	m = mmap(NULL, 2 << 20, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_HUGETLB, -1, 0);
	if (m != MAP_FAILED)
		use(m + 1000, 100000);
	free(heap);
	vt_close(&p);
}

/* Thousands of regions, and a region that is registered again under other rights. */
static void many(void)
{
	enum { N = 2000 };
	static struct ibv_mr *mrs[N];
	struct ibv_mr *mr;
	uint32_t key;

	vt_open(&p, &(struct vt_opts){ 0 });
	for (int i = 0; i < N; i++)
		CHECK(mrs[i] = ibv_reg_mr(p.a.pd, bss + i, 100, IBV_ACCESS_LOCAL_WRITE));
	for (int i = 0; i < N; i++)
		for (int k = i + 1; k < i + 4 && k < N; k++)
			CHECK(mrs[i]->lkey != mrs[k]->lkey);
	for (int i = 0; i < N; i++)
		CHECK_EQ(ibv_dereg_mr(mrs[i]), 0);
	CHECK(mr = ibv_reg_mr(p.b.pd, bss, sizeof(bss), IBV_ACCESS_LOCAL_WRITE));
	key = mr->rkey; /* which a peer may have: it stays, with other rights */
	CHECK_EQ(ibv_rereg_mr(mr, IBV_REREG_MR_CHANGE_ACCESS, NULL, NULL, 0, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_READ), 0);
	CHECK_EQ(mr->rkey, key);
	CHECK_EQ(mr->lkey, key);
	vt_fill(bss, 1000, 7);
	CHECK_EQ(vt_try_send(&p.a, 1, IBV_WR_RDMA_READ, 0, 1000, 0, (uintptr_t)bss, mr->rkey), 0);
	vt_wc(p.a.scq, 1, IBV_WC_SUCCESS, IBV_WC_RDMA_READ);
	vt_verify(p.a.buf, 1000, 7);
	CHECK_EQ(ibv_dereg_mr(mr), 0);
	/* What cannot be. */
	CHECK(!ibv_reg_mr(p.b.pd, bss, 100, IBV_ACCESS_REMOTE_WRITE)); /* without the local right */
	CHECK(!ibv_reg_mr(p.b.pd, (void *)(UINTPTR_MAX - 10), 100, IBV_ACCESS_LOCAL_WRITE));
	vt_close(&p);
}

/* Memory that vrnic shares with the daemon. */
static void shared(void)
{
	void *(*alloc)(size_t) = dlsym(RTLD_DEFAULT, "vrnic_alloc");
	void (*release)(void *) = dlsym(RTLD_DEFAULT, "vrnic_free");
	char *m;
	int fd;

	CHECK(alloc && release);
	vt_open(&p, &(struct vt_opts){ .len = 1 << 20 });
	for (int i = 0; i < 3; i++) {
		CHECK(m = alloc(300000));
		for (int k = 0; k < 300000; k++)
			CHECK(!m[k]);
		use(m, 300000);
		use(m + 1001, 100000); /* a part */
		release(m);
	}
	release(NULL);
	/* the program's own memfd, which cannot shrink */
	CHECK((fd = memfd_create("memory", MFD_CLOEXEC | MFD_ALLOW_SEALING)) >= 0);
	CHECK_EQ(ftruncate(fd, 400000), 0);
	CHECK_EQ(fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK), 0);
	CHECK((m = mmap(NULL, 300000, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 4096)) != MAP_FAILED);
	use(m, 300000);
	use(m + 5, 100000);
	CHECK_EQ(close(fd), 0);
	use(m + 5, 100000); /* and without a descriptor of it */
	CHECK_EQ(munmap(m, 300000), 0);
	vt_close(&p);
}

/* Regions that are registered and used by many threads at once. */
static void *registers(void *arg)
{
	char *mem = arg;

	for (int i = 0; i < 200; i++) {
		struct ibv_mr *mr = ibv_reg_mr(p.a.pd, mem, 4096, IBV_ACCESS_LOCAL_WRITE);

		CHECK(mr);
		CHECK_EQ(ibv_dereg_mr(mr), 0);
	}
	return NULL;
}

static void threads(void)
{
	pthread_t t[4];

	vt_open(&p, &(struct vt_opts){ .len = 1 << 20 });
	for (int i = 0; i < 4; i++)
		CHECK_EQ(pthread_create(&t[i], NULL, registers, bss + 10000 * i), 0);
	for (int i = 0; i < 10; i++)
		use(initialized, sizeof(initialized));
	for (int i = 0; i < 4; i++)
		CHECK_EQ(pthread_join(t[i], NULL), 0);
	vt_close(&p);
}

/* A poll that copies a message into a region while that is deregistered has copied it when it is. */
static atomic_bool copies, gone;

static void copying(const struct iovec *iov, int n)
{
	(void)iov, (void)n;
	atomic_store(&copies, true);
	for (int i = 0; i < 200 && !atomic_load(&gone); i++)
		usleep(1000);
}

static void *polls_one(void *cq)
{
	vt_wc(cq, 7, IBV_WC_SUCCESS, IBV_WC_RECV);
	return NULL;
}

static void deregistered(void)
{
	void (*tell)(void (*)(const struct iovec *, int)) = dlsym(RTLD_DEFAULT, "vrnic_tell_placing");
	struct ibv_recv_wr wr = { .wr_id = 7, .num_sge = 1 }, *bad;
	struct ibv_sge sge;
	struct ibv_mr *mr;
	pthread_t t;
	char *m;

	CHECK(tell);
	vt_open(&p, &(struct vt_opts){ 0 });
	m = mmap(NULL, 65536, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	CHECK(m != MAP_FAILED);
	CHECK(mr = ibv_reg_mr(p.b.pd, m, 65536, IBV_ACCESS_LOCAL_WRITE));
	sge = (struct ibv_sge){ (uintptr_t)m, 1000, mr->lkey };
	wr.sg_list = &sge;
	CHECK_EQ(ibv_post_recv(p.b.qp, &wr, &bad), 0);
	vt_send(&p.a, 1, 0, 1000);
	vt_wc(p.a.scq, 1, IBV_WC_SUCCESS, IBV_WC_SEND);
	tell(copying);
	CHECK_EQ(pthread_create(&t, NULL, polls_one, p.b.rcq), 0);
	while (!atomic_load(&copies))
		usleep(100);
	CHECK_EQ(ibv_dereg_mr(mr), 0);
	CHECK_EQ(munmap(m, 65536), 0);
	atomic_store(&gone, true);
	CHECK_EQ(pthread_join(t, NULL), 0);
	tell(NULL);
	vt_close(&p);
}

/* Where the program has no room for a queue, that is all: what it has goes on. */
static void no_room(void)
{
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__) /* which want room of their own */
	struct ibv_qp_init_attr attr = { .qp_type = IBV_QPT_RC, .cap = { 2048, 2048, 4, 4, 64 } };
	struct ibv_srq_init_attr srq = { .attr = { .max_wr = 8192, .max_sge = 4 } };
	struct rlimit all, few;
	unsigned long pages;
	FILE *f;

	vt_open(&p, &(struct vt_opts){ 0 });
	attr.send_cq = attr.recv_cq = p.a.scq;
	CHECK(f = fopen("/proc/self/statm", "r"));
	CHECK_EQ(fscanf(f, "%lu", &pages), 1);
	fclose(f);
	CHECK_EQ(getrlimit(RLIMIT_AS, &all), 0);
	few = all;
	few.rlim_cur = (pages + 16) * sysconf(_SC_PAGESIZE);
	CHECK_EQ(setrlimit(RLIMIT_AS, &few), 0);
	CHECK_NULL(ibv_create_cq(p.a.id->verbs, 32768, NULL, NULL, 0), ENOMEM);
	CHECK_NULL(ibv_create_srq(p.a.pd, &srq), ENOMEM);
	CHECK_NULL(ibv_create_qp(p.a.pd, &attr), ENOMEM);
	CHECK_EQ(ibv_resize_cq(p.a.scq, 32768), ENOMEM);
	CHECK_EQ(setrlimit(RLIMIT_AS, &all), 0);
	CHECK_EQ(ibv_resize_cq(p.a.scq, 4096), 0);
	vt_recv(&p.b, 1, 0, 10);
	vt_send(&p.a, 2, 0, 10);
	vt_wc(p.a.scq, 2, IBV_WC_SUCCESS, IBV_WC_SEND);
	vt_wc(p.b.rcq, 1, IBV_WC_SUCCESS, IBV_WC_RECV);
	vt_close(&p);
#endif
}

static const struct vt_case cases[] = {
	{ "kinds", kinds }, { "many", many }, { "shared", shared }, { "threads", threads },
	{ "deregistered", deregistered }, { "no_room", no_room }, {},
};

int main(int argc, char **argv) { return vt_main(argc, argv, cases); }
