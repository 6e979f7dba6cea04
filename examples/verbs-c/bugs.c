/*
 * Bugs has two classic bugs of programs that use verbs. They do no harm on most cards on most days.
 *
 *	bugs reuse ADDR	a buffer is written while a Send has it: vrnic exec --check names the lines
 *	bugs poll ADDR	the last octet of a Write is taken for all of it: seen with adversary=1
 *
 * ADDR is of a device of this machine: both ends are in this process.
 */
#include <err.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#include <rdma/rdma_cma.h>
#include <rdma/rdma_verbs.h>

enum { LEN = 4096, ROUNDS = 100 };

static struct rdma_cm_id *listener, *client, *server;
static struct ibv_mr *from, *to; /* of out and in */
static char out[LEN], in[LEN];

static struct rdma_cm_id *endpoint(const char *addr, int flags)
{
	struct rdma_addrinfo hints = { .ai_flags = flags, .ai_port_space = RDMA_PS_TCP }, *res;
	struct ibv_qp_init_attr attr = { .sq_sig_all = 1 };
	struct rdma_cm_id *id;

	attr.cap.max_send_wr = attr.cap.max_recv_wr = 4;
	attr.cap.max_send_sge = attr.cap.max_recv_sge = 1;
	if (rdma_getaddrinfo(addr, "7471", &hints, &res))
		err(1, "%s", addr);
	if (rdma_create_ep(&id, res, NULL, &attr))
		err(1, "an endpoint on %s", addr);
	rdma_freeaddrinfo(res);
	return id;
}

static void *serve(void *unused)
{
	if (rdma_get_request(listener, &server) || rdma_accept(server, NULL))
		err(1, "accept");
	return unused;
}

static void open_both(const char *addr)
{
	pthread_t thread;

	listener = endpoint(addr, RAI_PASSIVE);
	if (rdma_listen(listener, 1) || pthread_create(&thread, NULL, serve, NULL))
		err(1, "listen");
	client = endpoint(addr, 0);
	if (rdma_connect(client, NULL))
		err(1, "connect");
	pthread_join(thread, NULL);
	from = rdma_reg_msgs(client, out, LEN);
	to = rdma_reg_write(server, in, LEN);
	if (!from || !to)
		err(1, "register");
}

static void close_both(void)
{
	rdma_disconnect(client);
	rdma_disconnect(server);
	rdma_dereg_mr(from);
	rdma_dereg_mr(to);
	rdma_destroy_ep(client);
	rdma_destroy_ep(server);
	rdma_destroy_ep(listener);
}

static void done(int completions, const struct ibv_wc *wc)
{
	if (completions != 1 || wc->status != IBV_WC_SUCCESS)
		errx(1, "a request has failed: %s", ibv_wc_status_str(wc->status));
}

static void reuse(void)
{
	struct ibv_wc wc = { 0 };

	for (int i = 0; i < ROUNDS; i++) {
		rdma_post_recv(server, NULL, in, LEN, to);
		memset(out, i, LEN);
		rdma_post_send(client, NULL, out, LEN, from, 0);
		memset(out, -1, LEN); /* too early: the Send may not have read it */
		done(rdma_get_send_comp(client, &wc), &wc);
		done(rdma_get_recv_comp(server, &wc), &wc);
	}
}

static void poll_last(void)
{
	struct ibv_wc wc = { 0 };

	for (int i = 1; i <= ROUNDS; i++) {
		volatile char *last = &in[LEN - 1];
		int missing = 0;

		memset(out, i, LEN);
		rdma_post_write(client, NULL, out, LEN, from, 0, (uintptr_t)in, to->rkey);
		while (*last != i) /* the Write has come? */
			;
		for (int k = 0; k < LEN; k++)
			missing += ((volatile char *)in)[k] != i;
		done(rdma_get_send_comp(client, &wc), &wc);
		if (missing)
			errx(1, "Write %d: %d octets of %d were missing", i, missing, LEN);
	}
}

int main(int argc, char **argv)
{
	bool reuses = argc == 3 && !strcmp(argv[1], "reuse");

	if (!reuses && (argc != 3 || strcmp(argv[1], "poll")))
		errx(2, "usage: bugs reuse ADDR, or bugs poll ADDR");
	open_both(argv[2]);
	if (reuses)
		reuse();
	else
		poll_last();
	close_both();
	return 0;
}
