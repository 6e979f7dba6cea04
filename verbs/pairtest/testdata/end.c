/*
 * One end of the pair that descriptor 3 is, of side argv[1] and with argv[2] receives. It does what
 * it is told by lines of its standard input, each of a letter and up to three numbers, and answers
 * each with a line. pair_linux_test.go has the same in Go. Descriptor 4 is the table of its peer's
 * keys, and those behind it are memory of the peer's, from number 1 on; argv[3] is the bitmap of the
 * peer's CQ.
 */
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "ibverbs/abi/ibv.h"
#include "pair/remote.h"

static struct vrnic_pair_out out;
static struct vrnic_pair_in in;
static struct vrnic_remote *remote;
static struct vrnic_want want;
static unsigned int asked, woken; /* times */
static int bits_fd;
static char echoed[1 << 16], local[1 << 20];

/* Now and then nobody is there. */
static bool wake(struct vrnic_pair_out *o)
{
	(void)o;
	return ++woken % 5 != 0;
}

static bool find_bits(struct vrnic_pair_out *o, struct vrnic_bits *bits)
{
	static struct vrnic_map map;

	(void)o;
	return vrnic_bits_ask(NULL, 0, VRNIC_OP_DIRECT_PEER_BITS, &map, bits);
}

/* What the daemon and the room core do in a program. */
void vrnic_close(int fd)
{
	close(fd);
}

int vrnic_rpc(struct vrnic_session *s, uint16_t op, const void *req, size_t req_len, void *rep,
	      size_t rep_len, int fd, int *fds, int nfds)
{
	(void)s, (void)req_len, (void)rep, (void)rep_len, (void)fd, (void)nfds;
	if (op == VRNIC_OP_DIRECT_PEER_BITS) {
		*fds = bits_fd;
		return 0;
	}
	asked++;
	*fds = 4;
	if (op == VRNIC_OP_DIRECT_MEM)
		*fds += ((const struct vrnic_direct_mem_request *)req)->mem;
	return 0;
}

int vrnic_map_peers(int fd, size_t min, bool write, struct vrnic_map *m)
{
	struct stat st;

	if (fstat(fd, &st) || (size_t)st.st_size < min)
		return 1;
	m->len = st.st_size;
	m->mem = mmap(NULL, m->len, PROT_READ | (write ? PROT_WRITE : 0), MAP_SHARED, fd, 0);
	return m->mem == MAP_FAILED;
}

int vrnic_map_fd(struct vrnic_session *s, int fd, size_t min, struct vrnic_map *m)
{
	(void)s;
	return vrnic_map_peers(fd, min, true, m);
}

void vrnic_unmap(struct vrnic_map *m)
{
	if (m->mem)
		munmap(m->mem, m->len);
	m->mem = NULL;
}

void vrnic_corrupt(struct vrnic_session *s, const char *what)
{
	(void)s;
	fprintf(stderr, "nonsense in %s\n", what);
	exit(2);
}

static void fill(char *b, uint32_t n, uint32_t seed)
{
	for (uint32_t k = 0; k < n; k++)
		b[k] = seed * 31 + k * 7;
}

static uint32_t sum(const char *b, uint32_t n)
{
	uint32_t s = n;

	for (uint32_t k = 0; k < n; k++)
		s = s * 131 + (uint8_t)b[k];
	return s;
}

/* Of flags, 1 asks for an event, 2 wants one here, 4 is immediate data, 8 a Write's. */
static struct vrnic_pair_head head(uint32_t n, uint32_t seed, uint32_t flags)
{
	struct vrnic_pair_head h = { .length = n, .imm = { ~seed, seed * 3 } };

	if (flags & 1)
		h.flags |= VRNIC_SQ_SOLICITED;
	if (flags & 12)
		h.flags |= VRNIC_SLOT_IMM;
	if (flags & 8)
		h.flags |= VRNIC_SLOT_WRITE;
	return h;
}

static void sent(const struct vrnic_pair_head *h, uint32_t flags)
{
	vrnic_pair_end(&out, h);
	printf("sent %d", vrnic_pair_wanted(&out, flags & 1, flags & 2));
	printf(" %u\n", woken);
}

static void send(uint32_t n, uint32_t seed, uint32_t flags)
{
	struct vrnic_pair_head h = head(n, seed, flags);
	char *to = vrnic_pair_begin(&out, &h);

	if (!to) {
		puts("no");
		return;
	}
	if (!(flags & 8))
		fill(to, n, seed);
	else if (!n)
		vrnic_pair_wrote_nothing(&out, seed & 1);
	sent(&h, flags);
}

static void take(uint32_t i)
{
	struct vrnic_pair_message m;

	if (!vrnic_pair_stamped(&in, i)) {
		puts("none");
	} else if (!vrnic_pair_message(&in, i, &m)) {
		puts("nonsense");
	} else {
		printf("%u octets %u of %u with %x", m.octets, sum(m.from, m.octets), m.head.length,
		       m.head.flags);
		if (m.head.flags & VRNIC_SLOT_IMM)
			printf(" and %x %x", m.head.imm[0], m.head.imm[1]);
		puts("");
		vrnic_pair_taken(&in, &m);
	}
}

/* Sends back the messages of receives from first on, each with room for the next. */
static void echo(uint32_t first, uint32_t n)
{
	struct vrnic_pair_message m;
	uint32_t i;
	char *to;

	for (i = first; i != first + n; i++) {
		while (!vrnic_pair_stamped(&in, i))
			sched_yield();
		if (!vrnic_pair_message(&in, i, &m)) {
			puts("nonsense");
			return;
		}
		memcpy(echoed, m.from, m.octets);
		vrnic_pair_taken(&in, &m);
		vrnic_pair_room(&in, i + in.mask + 1, sizeof(echoed));
		while (!(to = vrnic_pair_begin(&out, &m.head)))
			sched_yield();
		memcpy(to, echoed, m.octets);
		vrnic_pair_end(&out, &m.head);
	}
	puts("done");
}

/*
 * Reaches n octets of what is wanted, to or from two pieces of local, if it is there. I is a Write of
 * which a message tells.
 */
static bool reach(char op, uint32_t n, uint32_t a, uint32_t b, const struct vrnic_pair_head *told)
{
	struct iovec iov[2] = { { local, n / 3 }, { local + n / 3, n - n / 3 } };

	want.qpn = out.peer;
	want.length = n;
	want.right = op == 'W' || op == 'I' ? IBV_ACCESS_REMOTE_WRITE :
		     op == 'R' ? IBV_ACCESS_REMOTE_READ : IBV_ACCESS_REMOTE_ATOMIC;
	if (!vrnic_remote_is_there(remote, &want))
		return false;
	switch (op) {
	case 'W':
		return vrnic_remote_write(remote, &want, iov);
	case 'I':
		return vrnic_remote_write_told(remote, &want, iov, told);
	case 'R':
		return vrnic_remote_read(remote, &want, iov);
	case 'F':
		return vrnic_remote_fetch_add(remote, &want, iov, a);
	default:
		return vrnic_remote_compare_swap(remote, &want, iov, a, b);
	}
}

static void move(char op, uint32_t a, uint32_t b, uint32_t flags)
{
	uint32_t n = op == 'F' || op == 'C' ? 8 : a;
	struct vrnic_pair_head h = head(n, b, flags);
	bool done;

	fill(local, n, b);
	done = reach(op, n, a, b, &h);
	if (done && op == 'I') {
		sent(&h, flags);
		return;
	}
	printf("%s %u %u\n", done ? "moved" : "no", done ? sum(local, n) : 0, asked);
}

int main(int argc, char **argv)
{
	struct vrnic_map map;
	unsigned int a, b, c;
	struct stat st;
	char op;

	if (argc != 4 || fstat(3, &st))
		return 2;
	map.len = st.st_size;
	map.mem = mmap(NULL, map.len, PROT_READ | PROT_WRITE, MAP_SHARED, 3, 0);
	if (map.mem == MAP_FAILED || !vrnic_pair_open(&map, atoi(argv[1]), atoi(argv[2]), &out, &in))
		return 2;
	out.wake = wake;
	out.bits = find_bits;
	bits_fd = atoi(argv[3]);
	remote = vrnic_remote_new(NULL, 0, &out);
	if (!remote)
		return 2;
	setvbuf(stdout, NULL, _IOLBF, 0);
	while (scanf(" %c %u %u %u", &op, &a, &b, &c) == 4) {
		switch (op) {
		case 's':
			send(a, b, c);
			break;
		case 'r':
			vrnic_pair_room(&in, a, b);
			puts("ok");
			break;
		case 't':
			take(a);
			break;
		case 'w':
			store_release(in.want, a);
			puts("ok");
			break;
		case 'b':
			vrnic_pair_want_bit(&in, a);
			puts("ok");
			break;
		case 'x':
			vrnic_pair_spoil(&in);
			puts("ok");
			break;
		case 'h':
			printf("%u %u\n", vrnic_pair_heard(&in).plain, vrnic_pair_heard(&in).asked);
			break;
		case 'o':
			printf("%d %d\n", vrnic_pair_is_open(&out), vrnic_pair_has_room(&out));
			break;
		case 'e':
			echo(a, b);
			break;
		case 'k':
			want.key = a;
			want.addr = b;
			puts("ok");
			break;
		case 'W':
		case 'I':
		case 'R':
		case 'F':
		case 'C':
			move(op, a, b, c);
			break;
		default:
			return 2;
		}
	}
	vrnic_remote_free(remote);
	return 0;
}
