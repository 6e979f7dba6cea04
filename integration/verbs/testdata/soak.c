/*
 * A program as its seed makes it: $VT_SEED and $VT_ROUNDS. A round is some messages, a Write, a Write
 * with immediate data or a Read, of random lengths, and all their octets are looked at. It ends with
 * 1, by vt_fail, if the connection is lost, and with 3 and "wrong data" if an octet is another.
 */
#include "vt.h"

#define LEN 65536
#define WINDOW 4 /* requests on their way */

static struct vt_pair p;
static uint64_t state;

static uint32_t any(uint32_t n) /* below n */
{
	state = state * 6364136223846793005u + 1442695040888963407u;
	return (uint32_t)(state >> 33) % n;
}

static void same(const char *what, const char *buf, const char *want, uint32_t n, uint32_t round)
{
	uint32_t i;

	for (i = 0; i < n; i++)
		if (buf[i] != want[i]) {
			printf("wrong data: %s of round %u, octet %u of %u\n", what, round, i, n);
			exit(3);
		}
}

/* A window of messages in a row, each received whole and in order. */
static void messages(uint32_t round)
{
	uint32_t n[WINDOW], i, at;

	for (i = 0; i < WINDOW; i++)
		vt_recv(&p.b, 100 + i, i * (LEN / WINDOW), LEN / WINDOW);
	for (i = 0; i < WINDOW; i++) {
		n[i] = any(LEN / WINDOW + 1);
		at = i * (LEN / WINDOW);
		vt_fill(p.a.buf + at, n[i], round * WINDOW + i);
		vt_send(&p.a, i, at, n[i]);
	}
	for (i = 0; i < WINDOW; i++) { /* the sender is the one that learns of errors */
		vt_wc(p.a.scq, i, IBV_WC_SUCCESS, IBV_WC_SEND);
		CHECK_EQ(vt_wc(p.b.rcq, 100 + i, IBV_WC_SUCCESS, IBV_WC_RECV).byte_len, n[i]);
		same("a message", p.b.buf + i * (LEN / WINDOW), p.a.buf + i * (LEN / WINDOW), n[i], round);
	}
}

/* A message behind the Write says that its octets are there. */
static void write_one(uint32_t round)
{
	uint32_t n = 1 + any(LEN - 64);

	vt_fill(p.a.buf, n, round);
	vt_recv(&p.b, 9, LEN - 16, 16);
	vt_rdma(&p.a, 1, IBV_WR_RDMA_WRITE, 0, n, &p.b, 0);
	vt_send(&p.a, 2, LEN - 8, 0);
	vt_wc(p.a.scq, 1, IBV_WC_SUCCESS, IBV_WC_RDMA_WRITE);
	vt_wc(p.a.scq, 2, IBV_WC_SUCCESS, IBV_WC_SEND);
	vt_wc(p.b.rcq, 9, IBV_WC_SUCCESS, IBV_WC_RECV);
	same("a Write", p.b.buf, p.a.buf, n, round);
}

static void write_with_imm(uint32_t round)
{
	uint32_t n = 1 + any(LEN - 64);

	vt_fill(p.a.buf, n, round);
	vt_recv(&p.b, 9, LEN - 16, 16);
	vt_rdma(&p.a, 1, IBV_WR_RDMA_WRITE_WITH_IMM, 0, n, &p.b, 0);
	vt_wc(p.a.scq, 1, IBV_WC_SUCCESS, IBV_WC_RDMA_WRITE);
	vt_wc(p.b.rcq, 9, IBV_WC_SUCCESS, IBV_WC_RECV_RDMA_WITH_IMM);
	same("a Write with immediate data", p.b.buf, p.a.buf, n, round);
}

static void read_one(uint32_t round)
{
	uint32_t n = 1 + any(LEN);

	vt_fill(p.b.buf, n, round);
	vt_rdma(&p.a, 1, IBV_WR_RDMA_READ, 0, n, &p.b, 0);
	vt_wc(p.a.scq, 1, IBV_WC_SUCCESS, IBV_WC_RDMA_READ);
	same("a Read", p.a.buf, p.b.buf, n, round);
}

static void mix(void)
{
	static void (*const ops[])(uint32_t) = { messages, write_one, write_with_imm, read_one };
	uint32_t round, rounds;

	CHECK(getenv("VT_SEED") && getenv("VT_ROUNDS"));
	state = strtoull(getenv("VT_SEED"), NULL, 10);
	rounds = (uint32_t)atoi(getenv("VT_ROUNDS"));
	setvbuf(stdout, NULL, _IONBF, 0);
	vt_open(&p, &(struct vt_opts){ .srq = any(2), .channel = any(2), .one_cq = any(2), .retries = 7,
				  .ack_timeout = getenv("VT_ACK_TIMEOUT") ? atoi(getenv("VT_ACK_TIMEOUT")) : 0 });
	printf("connected\n");
	for (round = 1; round <= rounds; round++)
		ops[any(sizeof(ops) / sizeof(ops[0]))](round);
	vt_close(&p);
}

static const struct vt_case cases[] = { { "mix", mix }, { NULL, NULL } };

int main(int argc, char **argv)
{
	return vt_main(argc, argv, cases);
}
