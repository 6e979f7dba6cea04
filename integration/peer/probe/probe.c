/*
 * probe: verbs by hand, for tests. Reads one command a line, answers each by one line that
 * begins with "ok" or "err", and holds what the commands made: regions, a listener and
 * connections. Which ones and in which order is the test's business; see probe_linux.go.
 *
 * It checks what it is told as far as is needed to say what was wrong with a test, no more.
 */
#include <errno.h>
#include <inttypes.h>
#include <poll.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

#include "probe.h"

struct ibv_context *verbs;
struct ibv_pd *pds[MAX_PD];
static struct rdma_event_channel *events;
static struct rdma_cm_id *listener;
static struct region regions[MAX_MR];
struct conn conns[MAX_CONN];

/* --- answers --- */

static char answer[65536];
static int answer_len;

void say(const char *format, ...)
{
	va_list ap;

	va_start(ap, format);
	answer_len += vsnprintf(answer + answer_len, sizeof(answer) - answer_len, format, ap);
	va_end(ap);
}

int fail(const char *format, ...)
{
	va_list ap;

	answer_len = 0;
	say("err ");
	va_start(ap, format);
	answer_len += vsnprintf(answer + answer_len, sizeof(answer) - answer_len, format, ap);
	va_end(ap);
	return -1;
}

int fail_errno(const char *what) { return fail("%s: %s", what, strerror(errno)); }

long now_ms(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * 1000 + t.tv_nsec / 1000000;
}

/* --- arguments --- */

char *words[32];
int n_words;

const char *word(int i) { return i < n_words ? words[i] : ""; }
uint64_t num(int i) { return strtoull(word(i), NULL, 0); }

int unhex(const char *s, uint8_t *out, int max)
{
	int n = 0;

	if (!strcmp(s, "-"))
		return 0;
	for (; s[0] && s[1] && n < max; s += 2) {
		char two[3] = { s[0], s[1], 0 };

		out[n++] = strtoul(two, NULL, 16);
	}
	return n;
}

void say_hex(const uint8_t *b, int n)
{
	if (n == 0)
		say("-");
	for (int i = 0; i < n; i++)
		say("%02x", b[i]);
}

struct region *region_of(int i)
{
	if (num(i) >= MAX_MR || !regions[num(i)].buf) {
		fail("no region %s", word(i));
		return NULL;
	}
	return &regions[num(i)];
}

static int in_use(const struct conn *c) { return c->id || c->qp; }

struct conn *conn_of(int i)
{
	if (num(i) >= MAX_CONN || !in_use(&conns[num(i)])) {
		fail("no connection %s", word(i));
		return NULL;
	}
	return &conns[num(i)];
}

struct conn *free_slot(void)
{
	for (struct conn *c = conns; c < conns + MAX_CONN; c++)
		if (!in_use(c)) {
			memset(c, 0, sizeof(*c));
			c->event = -1;
			return c;
		}
	return NULL;
}

/* --- regions --- */

/* mr LEN ACCESS PD: makes a region */
static int do_mr(void)
{
	struct region *r = regions;
	size_t len = num(1);

	while (r < regions + MAX_MR && r->buf)
		r++;
	if (r == regions + MAX_MR || num(3) >= MAX_PD)
		return fail("no room for a region");
	r->buf = mmap(NULL, len ? len : 1, PROT_READ | PROT_WRITE,
	    MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
	if (r->buf == MAP_FAILED) {
		r->buf = NULL;
		return fail_errno("mmap");
	}
	r->len = len;
	r->mr = ibv_reg_mr(pds[num(3)], r->buf, len, num(2));
	if (!r->mr) {
		munmap(r->buf, len ? len : 1);
		r->buf = NULL;
		return fail_errno("ibv_reg_mr");
	}
	say("ok %d %" PRIu64 " %u", (int)(r - regions), (uint64_t)(uintptr_t)r->buf, r->mr->rkey);
	return 0;
}

/* unmr REGION */
static int do_unmr(void)
{
	struct region *r = region_of(1);

	if (!r)
		return -1;
	if (ibv_dereg_mr(r->mr))
		return fail_errno("ibv_dereg_mr");
	munmap(r->buf, r->len ? r->len : 1);
	memset(r, 0, sizeof(*r));
	say("ok");
	return 0;
}

/* Octet i of data with a seed is octet i % 8, lowest first, of splitmix64's number i / 8. */
static uint64_t pattern(uint64_t seed, uint64_t i)
{
	uint64_t z = seed + (i + 1) * 0x9e3779b97f4a7c15;

	z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
	z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
	return z ^ (z >> 31);
}

/* fill REGION OFF LEN SEED; check REGION OFF LEN SEED */
static int do_data(int check)
{
	struct region *r = region_of(1);
	uint64_t off = num(2), len = num(3), seed = num(4), word = 0;

	if (!r)
		return -1;
	if (off > r->len || len > r->len - off)
		return fail("outside of the region");
	for (uint64_t i = 0; i < len; i++, word >>= 8) {
		if (i % 8 == 0) {
			word = pattern(seed, i / 8);
			if (len - i >= 8) {
				uint8_t *p = r->buf + off + i;

				if (!check)
					memcpy(p, &word, 8);
				if (!memcmp(p, &word, 8)) {
					i += 7;
					continue;
				}
			}
		}
		if (check && r->buf[off + i] != (uint8_t)word)
			return fail("octet %" PRIu64 " of %" PRIu64 " is %02x, want %02x", i, len, r->buf[off + i],
			    (uint8_t)word);
		r->buf[off + i] = word;
	}
	say("ok");
	return 0;
}

/* word REGION OFF [VALUE]: reads or writes 8 octets in the order of the host: "ok VALUE" */
static int do_word(void)
{
	struct region *r = region_of(1);
	uint64_t v, off = num(2);

	if (!r)
		return -1;
	if (off > r->len || r->len - off < sizeof(v))
		return fail("outside of the region");
	if (n_words > 3) {
		v = num(3);
		memcpy(r->buf + off, &v, sizeof(v));
	}
	memcpy(&v, r->buf + off, sizeof(v));
	say("ok %" PRIu64, v);
	return 0;
}

/* --- connections --- */

/* takes one event, waiting for it until the given time; 0 if none came */
static int next_event(long until)
{
	struct pollfd p = { .fd = events->fd, .events = POLLIN };
	struct rdma_cm_event *e;
	struct conn *c;
	long left = until - now_ms();

	if (poll(&p, 1, left < 0 ? 0 : left) <= 0 || rdma_get_cm_event(events, &e))
		return 0;
	if (e->event == RDMA_CM_EVENT_CONNECT_REQUEST) {
		c = free_slot();
		if (!c) {
			rdma_reject(e->id, NULL, 0);
			rdma_ack_cm_event(e);
			return 1;
		}
		c->id = e->id;
		c->id->context = c;
	}
	c = e->id->context;
	if (c) {
		if (e->event == RDMA_CM_EVENT_DISCONNECTED || e->event == RDMA_CM_EVENT_TIMEWAIT_EXIT)
			c->ended = 1;
		else
			c->event = e->event;
		c->status = e->status;
		if (e->event == RDMA_CM_EVENT_CONNECT_REQUEST || e->event == RDMA_CM_EVENT_ESTABLISHED ||
		    e->event == RDMA_CM_EVENT_REJECTED) {
			c->pd_len = e->param.conn.private_data_len;
			memcpy(c->pd, e->param.conn.private_data, e->param.conn.private_data ? c->pd_len : 0);
			c->ird = e->param.conn.responder_resources;
			c->ord = e->param.conn.initiator_depth;
		}
	}
	rdma_ack_cm_event(e);
	return 1;
}

/* waits for the set-up of a connection to get to the event */
static int await(struct conn *c, int want, long until)
{
	while (c->event < 0 && !c->ended)
		if (!next_event(until))
			return fail("timed out waiting for %s", rdma_event_str(want));
	if (c->event != want) {
		fail("%s status %d ",
		    c->event < 0 ? "DISCONNECTED" : rdma_event_str(c->event) + strlen("RDMA_CM_EVENT_"),
		    c->status);
		say_hex(c->pd, c->pd_len);
		return -1;
	}
	c->event = -1;
	return 0;
}

int make_qp(struct conn *c, enum ibv_qp_type type)
{
	struct ibv_qp_init_attr attr = {
		.cap = { .max_send_wr = DEPTH, .max_recv_wr = DEPTH, .max_send_sge = 1, .max_recv_sge = 1 },
		.qp_type = type,
	};

	c->channel = ibv_create_comp_channel(verbs);
	if (!c->channel)
		return fail_errno("ibv_create_comp_channel");
	c->cq = ibv_create_cq(verbs, 2 * DEPTH, NULL, c->channel, 0);
	if (!c->cq)
		return fail_errno("ibv_create_cq");
	attr.send_cq = attr.recv_cq = c->cq;
	if (!c->id) {
		c->qp = ibv_create_qp(pds[0], &attr);
		return c->qp ? 0 : fail_errno("ibv_create_qp");
	}
	if (rdma_create_qp(c->id, pds[0], &attr))
		return fail_errno("rdma_create_qp");
	c->qp = c->id->qp;
	return 0;
}

static int address(const char *text, int port, struct sockaddr_storage *out)
{
	struct rdma_addrinfo hints = { .ai_flags = RAI_NUMERICHOST, .ai_port_space = RDMA_PS_TCP }, *found;
	char service[8];

	snprintf(service, sizeof(service), "%d", port);
	if (rdma_getaddrinfo(text, service, &hints, &found))
		return fail("address %s", text);
	memcpy(out, found->ai_dst_addr, found->ai_dst_len);
	rdma_freeaddrinfo(found);
	return 0;
}

/* listen ADDR PORT */
static int do_listen(void)
{
	struct sockaddr_storage addr;

	if (listener) {
		rdma_destroy_id(listener);
		listener = NULL;
	}
	if (address(word(1), num(2), &addr))
		return -1;
	if (rdma_create_id(events, &listener, NULL, RDMA_PS_TCP))
		return fail_errno("rdma_create_id");
	if (rdma_bind_addr(listener, (struct sockaddr *)&addr))
		return fail_errno("rdma_bind_addr");
	if (rdma_listen(listener, 16))
		return fail_errno("rdma_listen");
	say("ok");
	return 0;
}

void free_conn(struct conn *c)
{
	if (c->id && c->id->qp)
		rdma_destroy_qp(c->id);
	else if (c->qp)
		ibv_destroy_qp(c->qp);
	if (c->cq)
		ibv_destroy_cq(c->cq);
	if (c->channel)
		ibv_destroy_comp_channel(c->channel);
	if (c->id)
		rdma_destroy_id(c->id);
	memset(c, 0, sizeof(*c));
}

/* prepare ADDR PORT: a connection with a QP, not yet connected */
static int do_prepare(void)
{
	struct sockaddr_storage addr;
	struct conn *c = free_slot();
	long until = now_ms() + TIMEOUT_MS;

	if (!c)
		return fail("no room for a connection");
	if (address(word(1), num(2), &addr))
		return -1;
	if (rdma_create_id(events, &c->id, c, RDMA_PS_TCP))
		return fail_errno("rdma_create_id");
	if (rdma_resolve_addr(c->id, NULL, (struct sockaddr *)&addr, 5000)) {
		fail_errno("rdma_resolve_addr");
		goto bad;
	}
	if (await(c, RDMA_CM_EVENT_ADDR_RESOLVED, until))
		goto bad;
	if (rdma_resolve_route(c->id, 5000)) {
		fail_errno("rdma_resolve_route");
		goto bad;
	}
	if (await(c, RDMA_CM_EVENT_ROUTE_RESOLVED, until) || make_qp(c, IBV_QPT_RC))
		goto bad;
	say("ok %d", (int)(c - conns));
	return 0;
bad:
	free_conn(c);
	return -1;
}

static void say_conn(struct conn *c)
{
	say("ok %d %d %d ", (int)(c - conns), c->ird, c->ord);
	say_hex(c->pd, c->pd_len);
}

/* connect CONN IRD ORD PRIVATE */
static int do_connect(void)
{
	struct conn *c = conn_of(1);
	uint8_t pd[256];
	struct rdma_conn_param p = {
		.responder_resources = num(2), .initiator_depth = num(3),
		.private_data = pd, .private_data_len = unhex(word(4), pd, 255),
	};

	if (!c)
		return -1;
	if (rdma_connect(c->id, &p))
		return fail_errno("rdma_connect");
	if (await(c, RDMA_CM_EVENT_ESTABLISHED, now_ms() + TIMEOUT_MS))
		return -1;
	say_conn(c);
	return 0;
}

/* request: waits for a connection request and makes a QP for it */
static int do_request(void)
{
	long until = now_ms() + TIMEOUT_MS;
	struct conn *c;

	for (;;) {
		for (c = conns; c < conns + MAX_CONN; c++)
			if (c->id && c->event == RDMA_CM_EVENT_CONNECT_REQUEST)
				goto found;
		if (!next_event(until))
			return fail("timed out waiting for a request");
	}
found:
	c->event = -1;
	if (make_qp(c, IBV_QPT_RC))
		return -1;
	say_conn(c);
	return 0;
}

/* accept CONN IRD ORD PRIVATE */
static int do_accept(void)
{
	struct conn *c = conn_of(1);
	uint8_t pd[256];
	struct rdma_conn_param p = {
		.responder_resources = num(2), .initiator_depth = num(3),
		.private_data = pd, .private_data_len = unhex(word(4), pd, 255),
	};

	if (!c)
		return -1;
	if (rdma_accept(c->id, &p))
		return fail_errno("rdma_accept");
	if (await(c, RDMA_CM_EVENT_ESTABLISHED, now_ms() + TIMEOUT_MS))
		return -1;
	say_conn(c);
	return 0;
}

/* reject CONN PRIVATE */
static int do_reject(void)
{
	struct conn *c = conn_of(1);
	uint8_t pd[256];
	int n = unhex(word(2), pd, 255);

	if (!c)
		return -1;
	if (rdma_reject(c->id, pd, n))
		return fail_errno("rdma_reject");
	free_conn(c);
	say("ok");
	return 0;
}

/* ended CONN MS: waits for the connection's end */
static int do_ended(void)
{
	struct conn *c = conn_of(1);
	long until = now_ms() + num(2);

	if (!c)
		return -1;
	while (!c->ended)
		if (!next_event(until))
			return fail("still connected");
	say("ok");
	return 0;
}

/* disconnect CONN; abort CONN; close CONN */
static int do_end(void)
{
	struct conn *c = conn_of(1);
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_ERR };

	if (!c)
		return -1;
	if (!strcmp(word(0), "disconnect") && rdma_disconnect(c->id))
		return fail_errno("rdma_disconnect");
	if (!strcmp(word(0), "abort") && ibv_modify_qp(c->qp, &attr, IBV_QP_STATE))
		return fail_errno("ibv_modify_qp");
	if (!strcmp(word(0), "close"))
		free_conn(c);
	say("ok");
	return 0;
}

static int do_fill(void) { return do_data(0); }
static int do_check(void) { return do_data(1); }

static const struct { const char *name; int (*do_it)(void); } commands[] = {
	{ "mr", do_mr }, { "unmr", do_unmr }, { "fill", do_fill }, { "check", do_check },
	{ "listen", do_listen }, { "prepare", do_prepare }, { "connect", do_connect },
	{ "request", do_request }, { "accept", do_accept }, { "reject", do_reject },
	{ "ended", do_ended }, { "disconnect", do_end }, { "abort", do_end }, { "close", do_end },
	{ "qp", do_qp }, { "gid", do_gid }, { "modify", do_modify }, { "query", do_query },
	{ "ah", do_ah }, { "unah", do_unah }, { "attach", do_group }, { "detach", do_group },
	{ "word", do_word },
	{ "recv", do_recv }, { "post", do_post }, { "poll", do_poll }, { "async", do_async },
};

static void command(void)
{
	for (unsigned int i = 0; i < sizeof(commands) / sizeof(commands[0]); i++)
		if (!strcmp(word(0), commands[i].name)) {
			commands[i].do_it();
			return;
		}
	fail("no command %s", word(0));
}

int main(void)
{
	static char line[4096];
	struct ibv_context **devices;
	int n;

	events = rdma_create_event_channel();
	devices = rdma_get_devices(&n);
	if (!events || !devices || n < 1) {
		printf("err no RDMA device: %s\n", strerror(errno));
		return 1;
	}
	verbs = devices[0];
	for (int i = 0; i < MAX_PD; i++)
		if (!(pds[i] = ibv_alloc_pd(verbs))) {
			printf("err ibv_alloc_pd: %s\n", strerror(errno));
			return 1;
		}
	printf("ok %s\n", ibv_get_device_name(verbs->device));
	fflush(stdout);
	while (fgets(line, sizeof(line), stdin)) {
		n_words = 0;
		for (char *s = strtok(line, " \n"); s && n_words < 32; s = strtok(NULL, " \n"))
			words[n_words++] = s;
		answer_len = 0;
		command();
		printf("%s\n", answer);
		fflush(stdout);
	}
	return 0;
}
