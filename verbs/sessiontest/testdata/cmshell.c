/*
 * An rdma_cm program that does what its standard input says, a command a line, and answers each
 * with a line. Channels and ids are named by number, in the order of their making; ids of
 * connection requests count, too.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "rdmacm/rdmacm.h"

#define MAX 64

static struct rdma_event_channel *chans[MAX];
static struct rdma_cm_id *ids[MAX];
static struct rdma_cm_event *events[MAX]; /* not acknowledged */
static int nchans, nids, nevents;

static void result(int failed)
{
	printf("%s\n", failed ? strerrorname_np(errno) : "ok");
}

static int number(struct rdma_cm_id *id)
{
	int i;

	for (i = 0; i < nids; i++)
		if (ids[i] == id)
			return i;
	return -1;
}

static struct sockaddr *addr(const char *text)
{
	static struct sockaddr_in sin;

	sin.sin_family = AF_INET;
	sin.sin_port = htons(9);
	inet_pton(AF_INET, text, &sin.sin_addr);
	return (struct sockaddr *)&sin;
}

static void chan(void)
{
	struct rdma_event_channel *ch = rdma_create_event_channel();

	if (ch && nchans < MAX) {
		fcntl(ch->fd, F_SETFL, fcntl(ch->fd, F_GETFL) | O_NONBLOCK);
		chans[nchans++] = ch;
	}
	result(!ch);
}

static void make_id(int ch)
{
	int failed = rdma_create_id(ch < 0 ? NULL : chans[ch], &ids[nids], NULL, RDMA_PS_TCP);

	if (!failed)
		nids++;
	result(failed);
}

/* TYPE STATUS ID LISTENER OCTETS IRD ORD DEVICE ADDRESS */
static void get_event(int ch)
{
	struct rdma_cm_event *ev;
	struct sockaddr_in *src;
	char text[64] = "";
	unsigned int i, sum = 0;

	if (rdma_get_cm_event(chans[ch], &ev)) {
		result(1);
		return;
	}
	if (number(ev->id) < 0 && nids < MAX)
		ids[nids++] = ev->id;
	for (i = 0; i < ev->param.conn.private_data_len; i++)
		sum += ((const unsigned char *)ev->param.conn.private_data)[i];
	src = &ev->id->route.addr.src_sin;
	if (src->sin_family == AF_INET)
		inet_ntop(AF_INET, &src->sin_addr, text, sizeof(text));
	printf("%d %d %d %d %d/%u %d %d %s %s\n", ev->event, ev->status, number(ev->id), ev->listen_id
	       ? number(ev->listen_id) : -1,
	       ev->param.conn.private_data_len, sum, ev->param.conn.responder_resources,
	       	ev->param.conn.initiator_depth,
	       ev->id->verbs ? ibv_get_device_name(ev->id->verbs->device) : "-", text);
	if (nevents < MAX)
		events[nevents++] = ev;
}

static void ack(void)
{
	int failed = nevents ? rdma_ack_cm_event(events[--nevents]) : 0;

	result(failed);
}

/* Acknowledges and destroys all that there is. */
static void reset(void)
{
	int failed = 0;

	while (nevents)
		failed |= rdma_ack_cm_event(events[--nevents]);
	while (nids)
		failed |= rdma_destroy_id(ids[--nids]);
	while (nchans)
		rdma_destroy_event_channel(chans[--nchans]);
	result(failed);
}

int main(void)
{
	char line[256], word[64], text[64];
	int a, b;

	setvbuf(stdout, NULL, _IOLBF, 0);
	while (fgets(line, sizeof(line), stdin)) {
		a = b = 0;
		text[0] = 0;
		if (sscanf(line, "%63s %d %63s", word, &a, text) < 1)
			continue;
		b = atoi(text);
		printf("%s ", word);
		if (!strcmp(word, "chan"))
			chan();
		else if (!strcmp(word, "id"))
			make_id(a);
		else if (!strcmp(word, "bind"))
			result(rdma_bind_addr(ids[a], addr(text)));
		else if (!strcmp(word, "resolve"))
			result(rdma_resolve_addr(ids[a], NULL, addr(text), 1000));
		else if (!strcmp(word, "route"))
			result(rdma_resolve_route(ids[a], 1000));
		else if (!strcmp(word, "listen"))
			result(rdma_listen(ids[a], 1));
		else if (!strcmp(word, "disconnect"))
			result(rdma_disconnect(ids[a]));
		else if (!strcmp(word, "migrate"))
			result(rdma_migrate_id(ids[a], chans[b]));
		else if (!strcmp(word, "event"))
			get_event(a);
		else if (!strcmp(word, "ack"))
			ack();
		else if (!strcmp(word, "destroy"))
			result(rdma_destroy_id(ids[a]));
		else if (!strcmp(word, "delchan"))
			rdma_destroy_event_channel(chans[a]), result(0);
		else if (!strcmp(word, "reset"))
			reset();
		else if (!strcmp(word, "exit"))
			exit(a);
		else
			printf("what?\n");
	}
	return 0;
}
