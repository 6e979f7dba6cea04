/*
 * Programs that write nonsense into the memory that they share with the daemon: it is theirs that suffers, nobody else's.
 * The case "victim" transfers until it is told to stop by the end of its standard input.
 */
#include "vt.h"

#include <poll.h>
#include <sys/mman.h>

static struct vt_pair p;

static void transfer(int i)
{
	vt_fill(p.a.buf, 5000, i);
	vt_recv(&p.b, 1, 20000, 20000);
	vt_send(&p.a, 2, 0, 5000);
	vt_wc(p.b.rcq, 1, IBV_WC_SUCCESS, IBV_WC_RECV);
	vt_wc(p.a.scq, 2, IBV_WC_SUCCESS, IBV_WC_SEND);
	vt_verify(p.b.buf + 20000, 5000, i);
}

static void victim(void)
{
	struct pollfd in = { .fd = 0, .events = POLLIN };
	int i = 0;

	vt_open(&p, &(struct vt_opts){ .one_cq = true });
	do {
		transfer(i);
		if (i++ == 3)
			printf("transfers\n");
		usleep(1000);
	} while (poll(&in, 1, 0) == 0);
	vt_close(&p);
}

/* The mappings that the daemon has made: those of memfds. */
struct mapping {
	char *mem;
	size_t len;
};

static int mappings(struct mapping *m, int max)
{
	FILE *f = fopen("/proc/self/maps", "r");
	char line[512];
	int n = 0;

	CHECK(f);
	while (n < max && fgets(line, sizeof(line), f)) {
		unsigned long from, to;
		char rights[8];

		if (strstr(line, "memfd:") && sscanf(line, "%lx-%lx %7s", &from, &to, rights) == 3 && rights[1] == 'w')
			m[n++] = (struct mapping){ (char *)from, to - from };
	}
	fclose(f);
	return n;
}

/* Random octets over one of the mappings, then everything that makes the daemon look. */
static void scribble(void)
{
	const char *s = getenv("VT_SEED");
	unsigned seed = s ? atoi(s) : 1;
	struct mapping m[64];
	struct ibv_sge sge;
	int n;

	srandom(seed);
	vt_open(&p, &(struct vt_opts){ .channel = true });
	for (int i = 0; i < 10; i++)
		transfer(i);
	n = mappings(m, 64);
	CHECK(n >= 5);
	printf("scribbles over %u of %d\n", seed % n, n);
	sge = vt_sge(&p.a, 0, 100);
	for (int round = 0; round < 200; round++) {
		struct mapping *x = &m[seed % n];
		size_t len = x->len < 4096 ? x->len : 4096;
		struct ibv_send_wr wr = { .wr_id = 1, .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND, .send_flags = IBV_SEND_SIGNALED }, *bad;
		struct ibv_wc wc[8];

		for (int k = 0; k < 20; k++)
			*(uint32_t *)(x->mem + (random() % len & ~3ul)) = random() % 3 ? (uint32_t)random() * 2u : 0xffffffffu;
		(void)ibv_post_send(p.a.qp, &wr, &bad);
		(void)ibv_req_notify_cq(p.a.scq, 0);
		(void)ibv_poll_cq(p.a.scq, 8, wc);
		(void)ibv_poll_cq(p.b.rcq, 8, wc);
		(void)ibv_post_send(p.b.qp, &wr, &bad);
	}
	/* Whatever has come of it: no crash of this program, and its end is in order. */
	_exit(0);
}

/* Work requests with every field wrong, as only a program that writes the ring itself can have them. */
static void bad_requests(void)
{
	struct mapping m[64];
	int n;
	const char *s = getenv("VT_SEED");
	unsigned seed = s ? atoi(s) : 1;

	srandom(seed);
	vt_open(&p, &(struct vt_opts){ 0 });
	transfer(1);
	n = mappings(m, 64);
	for (int i = 0; i < n; i++)
		/* a QP's memory says so: "VRNQ" */
		if (!memcmp(m[i].mem, "VRNQ", 4)) {
			uint32_t *w = (uint32_t *)m[i].mem, size = w[2], stride = w[3], off = w[6];
			struct ibv_sge sge = vt_sge(&p.a, 0, 100);
			struct ibv_send_wr wr = { .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND }, *bad;

			CHECK(off + size * stride <= m[i].len);
			for (uint32_t k = 0; k < size * stride; k++)
				m[i].mem[off + k] = random();
			w[16] += size / 2; /* sq_prod */
			(void)ibv_post_send(p.a.qp, &wr, &bad);
			(void)ibv_post_send(p.b.qp, &wr, &bad);
		}
	usleep(100000);
	_exit(0);
}

static const struct vt_case cases[] = { { "victim", victim }, { "scribble", scribble }, { "bad_requests", bad_requests }, {} };

int main(int argc, char **argv) { return vt_main(argc, argv, cases); }
