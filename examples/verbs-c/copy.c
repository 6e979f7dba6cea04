/*
 * Copy copies files to another machine, by RDMA Write with immediate data. It is the program of
 * ../copy in C, on libibverbs and librdmacm, and the two understand each other:
 *
 *	copy receive ADDR PORT DIRECTORY
 *	copy send ADDR PORT FILE...
 *
 * It knows nothing of vrnic. With an RDMA card it runs as it is, on a vrnic daemon by vrnic exec:
 *
 *	vrnic exec -d vrnic0 -- ./copy receive 10.77.0.2 7000 /tmp &
 *	vrnic exec -d vrnic1 -- ./copy send 10.77.0.2 7000 copy.c
 */
#include <endian.h>
#include <errno.h>
#include <fcntl.h>
#include <libgen.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <rdma/rdma_cma.h>
#include <rdma/rdma_verbs.h>

/*
 * The memory of either end is a ring of slots: piece i of the file goes through slot i % SLOTS of
 * both. For each piece, and for the end of the file, which is a piece of no octets, the receiver
 * gives a credit once it is done with the slot, so that at most SLOTS pieces are under way.
 */
enum { SLOTS = 8, SLOT_LEN = 64 << 10, MAX_NAME = 200 };

/* The private data of both sides, numbers in network byte order. */
struct offer { /* the sender's */
	uint64_t size;
	char name[MAX_NAME]; /* as long as the data say, without a 0 at its end */
} __attribute__((packed));

struct where { /* the receiver's: its slots */
	uint64_t addr;
	uint32_t key;
} __attribute__((packed));

/* complain says what is wrong and returns -1, for its caller to return. */
__attribute__((format(printf, 1, 2))) static int complain(const char *format, ...)
{
	va_list args;

	va_start(args, format);
	fputs("copy: ", stderr);
	vfprintf(stderr, format, args);
	fputc('\n', stderr);
	va_end(args);
	return -1;
}

/* endpoint makes an id for ADDR PORT: of a listener, or with a QP to connect. */
static struct rdma_cm_id *endpoint(const char *addr, const char *port, int flags)
{
	struct rdma_addrinfo hints = { .ai_flags = flags, .ai_port_space = RDMA_PS_TCP }, *info;
	struct ibv_qp_init_attr attr = {
		.qp_type = IBV_QPT_RC,
		.sq_sig_all = 1,
		.cap = { .max_send_wr = SLOTS, .max_recv_wr = SLOTS, .max_send_sge = 1,
			 .max_recv_sge = 1 },
	};
	struct rdma_cm_id *id = NULL;

	if (rdma_getaddrinfo(addr, port, &hints, &info)) {
		complain("%s port %s: %s", addr, port, strerror(errno));
		return NULL;
	}
	if (rdma_create_ep(&id, info, NULL, &attr)) {
		complain("%s port %s: %s", addr, port, strerror(errno));
		id = NULL;
	}
	rdma_freeaddrinfo(info);
	return id;
}

/* post_recv posts a receive for immediate data, which needs no memory. */
static int post_recv(struct rdma_cm_id *id)
{
	struct ibv_recv_wr wr = { 0 }, *bad;

	return ibv_post_recv(id->qp, &wr, &bad) ? complain("post a receive") : 0;
}

static int post_recvs(struct rdma_cm_id *id)
{
	for (int i = 0; i < SLOTS; i++)
		if (post_recv(id))
			return -1;
	return 0;
}

/* completed looks at what rdma_get_send_comp or rdma_get_recv_comp returned. */
static int completed(int n, const struct ibv_wc *wc)
{
	if (n < 0)
		return complain("wait for a completion: %s", strerror(errno));
	if (wc->status != IBV_WC_SUCCESS)
		return complain("the connection has ended too early: %s",
				ibv_wc_status_str(wc->status));
	return 0;
}

/* taken waits until the oldest piece under way has been written, and the receiver has it. */
static int taken(struct rdma_cm_id *id)
{
	struct ibv_wc wc;

	if (completed(rdma_get_send_comp(id, &wc), &wc))
		return -1;
	if (completed(rdma_get_recv_comp(id, &wc), &wc))
		return -1;
	return post_recv(id);
}

/* send_pieces sends all of a file and waits until the receiver has it. */
static int send_pieces(struct rdma_cm_id *id, int file, struct ibv_mr *mr,
		       const struct where *where)
{
	ssize_t n;
	int pieces = 0;

	do {
		size_t off = pieces % SLOTS * SLOT_LEN;
		char *slot = (char *)mr->addr + off;

		if (pieces >= SLOTS && taken(id))
			return -1;
		n = read(file, slot, SLOT_LEN);
		if (n < 0)
			return complain("read: %s", strerror(errno));
		struct ibv_sge sge = { .addr = (uintptr_t)slot, .length = n, .lkey = mr->lkey };
		struct ibv_send_wr wr = {
			.opcode = IBV_WR_RDMA_WRITE_WITH_IMM,
			.sg_list = &sge,
			.num_sge = 1,
			.imm_data = htobe32(n),
			.wr.rdma = { be64toh(where->addr) + off, be32toh(where->key) },
		}, *bad;
		if (ibv_post_send(id->qp, &wr, &bad))
			return complain("post a Write");
		pieces++;
	} while (n > 0);
	for (int left = pieces < SLOTS ? pieces : SLOTS; left > 0; left--)
		if (taken(id))
			return -1;
	return 0;
}

/* connect_to connects id, offers a file and learns where to write it. */
static int connect_to(struct rdma_cm_id *id, struct offer *offer, size_t len, struct where *where)
{
	struct rdma_conn_param param = { .private_data = offer, .private_data_len = len }, answer;

	if (rdma_connect(id, &param)) {
		complain("connect: %s", strerror(errno));
		if (id->event && id->event->event == RDMA_CM_EVENT_REJECTED &&
		    id->event->param.conn.private_data_len) {
			answer = id->event->param.conn;
			complain("the receiver says: %.*s", answer.private_data_len,
				 (const char *)answer.private_data);
		}
		return -1;
	}
	answer = id->event->param.conn;
	if (answer.private_data_len < sizeof(*where))
		return complain("the receiver does not say where its memory is");
	memcpy(where, answer.private_data, sizeof(*where));
	return 0;
}

static int send_file(const char *addr, const char *port, char *path)
{
	static char slots[SLOTS * SLOT_LEN];
	struct offer offer;
	struct where where = { 0 };
	struct stat st;
	struct ibv_mr *mr = NULL;
	struct rdma_cm_id *id = NULL;
	int failed = -1, file = open(path, O_RDONLY);

	if (file < 0 || fstat(file, &st) < 0)
		return complain("%s: %s", path, strerror(errno));
	char *name = basename(path); /* which may change path */
	size_t len = strlen(name);
	if (!S_ISREG(st.st_mode) || len > MAX_NAME) {
		complain("%s: want a regular file, with a name of at most %d octets", name, MAX_NAME);
		goto out;
	}
	offer.size = htobe64(st.st_size);
	memcpy(offer.name, name, len);
	if (!(id = endpoint(addr, port, 0)))
		goto out;
	if (!(mr = rdma_reg_msgs(id, slots, sizeof(slots)))) {
		complain("register memory: %s", strerror(errno));
		goto out;
	}
	if (post_recvs(id) || connect_to(id, &offer, sizeof(offer.size) + len, &where))
		goto out;
	failed = send_pieces(id, file, mr, &where);
	rdma_disconnect(id); /* which the receiver may have done already */
out:
	if (mr)
		rdma_dereg_mr(mr);
	if (id)
		rdma_destroy_ep(id);
	close(file);
	return failed;
}

/* credit lets the sender use the oldest slot again. The receive for that comes first. */
static int credit(struct rdma_cm_id *id)
{
	struct ibv_send_wr wr = { .opcode = IBV_WR_SEND_WITH_IMM }, *bad;
	struct ibv_wc wc;

	if (post_recv(id))
		return -1;
	if (ibv_post_send(id->qp, &wr, &bad))
		return complain("post a credit");
	return completed(rdma_get_send_comp(id, &wc), &wc);
}

/* receive_pieces writes the pieces to a file and returns how many octets they had, or -1. */
static int64_t receive_pieces(struct rdma_cm_id *id, int file, const char *slots)
{
	int64_t got = 0;

	for (int piece = 0;; piece++) {
		struct ibv_wc wc;

		if (completed(rdma_get_recv_comp(id, &wc), &wc))
			return -1;
		uint32_t n = be32toh(wc.imm_data);
		if (n == 0)
			return got;
		if (n > SLOT_LEN) /* a peer's word */
			return complain("a piece of %u octets, want at most %d", n, SLOT_LEN);
		for (uint32_t off = 0; off < n;) {
			ssize_t k = write(file, slots + piece % SLOTS * SLOT_LEN + off, n - off);
			if (k < 0)
				return complain("write: %s", strerror(errno));
			off += k;
		}
		got += n;
		if (credit(id))
			return -1;
	}
}

/* refuse says to the sender why it can't connect. */
static int refuse(struct rdma_cm_id *id, const char *why)
{
	rdma_reject(id, why, strlen(why));
	return complain("%s", why);
}

/* receive_from takes one file. It appears in the working directory when it is whole. */
static int receive_from(struct rdma_cm_id *id)
{
	static char slots[SLOTS * SLOT_LEN];
	const struct rdma_conn_param *request = &id->event->param.conn;
	struct offer offer;
	char name[MAX_NAME + 1] = "", temporary[] = ".copy-XXXXXX";
	struct ibv_wc wc;
	int failed = -1;

	size_t len = request->private_data_len;
	if (len <= sizeof(offer.size) || len > sizeof(offer))
		return refuse(id, "no offer of a file");
	memcpy(&offer, request->private_data, len);
	memcpy(name, offer.name, len - sizeof(offer.size));
	if (!*name || strchr(name, '/') || !strcmp(name, ".") || !strcmp(name, ".."))
		return refuse(id, "that is not the name of a file");
	struct ibv_mr *mr = rdma_reg_write(id, slots, sizeof(slots));
	if (!mr)
		return refuse(id, "no memory");
	int file = mkstemp(temporary);
	if (file < 0) {
		refuse(id, "no file");
		goto out;
	}
	struct where where = { htobe64((uintptr_t)slots), htobe32(mr->rkey) };
	struct rdma_conn_param param = { .private_data = &where, .private_data_len = sizeof(where) };
	if (post_recvs(id) || rdma_accept(id, &param)) {
		complain("accept: %s", strerror(errno));
		goto out;
	}
	int64_t got = receive_pieces(id, file, slots);
	if (got >= 0 && got != (int64_t)be64toh(offer.size))
		complain("%s has %lld octets, and should have %lld", name, (long long)got,
			 (long long)be64toh(offer.size));
	else if (got >= 0 && (fsync(file) || rename(temporary, name)))
		complain("%s: %s", name, strerror(errno));
	else if (got >= 0 && (printf("%s: %lld octets\n", name, (long long)got), !credit(id)))
		failed = 0;
	if (!failed) /* the sender ends the connection, and that flushes a receive */
		rdma_get_recv_comp(id, &wc);
	rdma_disconnect(id);
out:
	if (failed && file >= 0)
		unlink(temporary);
	if (file >= 0)
		close(file);
	rdma_dereg_mr(mr);
	return failed;
}

/* receive_all takes files, one after the other, until the program is interrupted. */
static int receive_all(const char *addr, const char *port, const char *dir)
{
	struct rdma_cm_id *listener = endpoint(addr, port, RAI_PASSIVE), *id;

	if (!listener)
		return -1;
	if (chdir(dir))
		return complain("%s: %s", dir, strerror(errno));
	if (rdma_listen(listener, 0))
		return complain("listen: %s", strerror(errno));
	printf("listening on %s port %s\n", addr, port);
	while (!rdma_get_request(listener, &id)) {
		receive_from(id);
		rdma_destroy_ep(id);
	}
	return complain("wait for a sender: %s", strerror(errno));
}

int main(int argc, char **argv)
{
	setvbuf(stdout, NULL, _IOLBF, 0);
	if (argc == 5 && !strcmp(argv[1], "receive"))
		return receive_all(argv[2], argv[3], argv[4]) ? 1 : 0;
	if (argc >= 5 && !strcmp(argv[1], "send")) {
		for (int i = 4; i < argc; i++)
			if (send_file(argv[2], argv[3], argv[i]))
				return 1;
		return 0;
	}
	fprintf(stderr, "usage: copy receive ADDR PORT DIRECTORY\n"
			"       copy send ADDR PORT FILE...\n");
	return 2;
}
