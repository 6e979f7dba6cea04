// An SCTP peer that does what it is told on standard input, one command a line, and says on
// standard output what it sees. It has one association at a time. The SCTP is usrsctp's (usrsctp.c)
// or Linux's (linux.c); DDP on top of it (RFC 5043), should it be asked for, is that of ddp.c.
//
//	set NAME VALUE                  before the next two; see options
//	listen PORT [ADDR...]
//	connect PORT ADDR [LOCALPORT [LOCALADDR...]]
//	send STREAM PPID FLAGS HEX      FLAGS of u(nordered), i(mmediate) or -
//	bulk COUNT STREAMS PPID FLAGS LEN   COUNT messages, number n on stream n % STREAMS, of LEN octets
//	                                    (see fill)
//	read on|off|check               check: only whether messages are as bulk makes them
//	abort TEXT / shutdown / heartbeat / status
//	ddp ...                         see ddp.c
//
// Each is answered by "ok" or "error TEXT", after what it brought about at once.
#include "ddp.h"
#include "link.h"
#include "post.h"
#include "text.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static int reading = 1, checking;
static unsigned checked;

// fill makes message n of a bulk: its number, then octets that depend on it and on where they are.
static void fill(uint8_t *b, size_t len, unsigned n)
{
	for (size_t i = 0; i < len; i++)
		b[i] = i < 4 ? n >> (24 - 8 * i) : n * 7 + i * 13 + (i >> 8);
}

static int bulk(unsigned count, unsigned streams, uint32_t ppid, int flags, size_t len)
{
	uint8_t *b = malloc(len);
	int err = 0;

	for (unsigned n = 0; n < count && err == 0; n++) {
		fill(b, len, n);
		err = post(n % streams, ppid, flags, b, len);
	}
	free(b);
	return err;
}

static void received(struct message *m)
{
	if (ddp_received(m))
		return;
	if (checking) {
		uint8_t *want = malloc(m->len);
		unsigned n = 0;

		for (int i = 0; i < 4 && i < (int)m->len; i++)
			n = n << 8 | m->data[i];
		fill(want, m->len, n);
		say("%s %u %u %u %zu", memcmp(want, m->data, m->len) == 0 ? "good" : "bad", m->stream, n,
		    checked++, m->len);
		free(want);
		return;
	}
	printf("msg %u %u %u %u %s ", m->stream, m->ssn, m->ppid, m->tsn, m->unordered ? "u" : "-");
	say_hex(m->data, m->len);
}

static void pump(void)
{
	link_poll(reading);
	send_pending();
}

static int set(const char *name, unsigned v)
{
	if (strcmp(name, "out") == 0)
		options.out = v;
	else if (strcmp(name, "in") == 0)
		options.in = v;
	else if (strcmp(name, "maxseg") == 0)
		options.maxseg = v;
	else if (strcmp(name, "rcvbuf") == 0)
		options.rcvbuf = v;
	else if (strcmp(name, "adapt") == 0)
		options.adapt = v, options.has_adapt = 1;
	else if (strcmp(name, "rto") == 0)
		options.rto = v;
	else if (strcmp(name, "pathmax") == 0)
		options.pathmax = v;
	else if (strcmp(name, "plain") == 0)
		options.plain = v;
	else if (strcmp(name, "small") == 0)
		options.small = v;
	else
		return EINVAL;
	return 0;
}

static int flags_of(const char *s)
{
	return (strchr(s, 'u') ? UNORDERED : 0) | (strchr(s, 'i') ? IMMEDIATE : 0);
}

static int run(int n, char **w, const char *rest)
{
	if (strcmp(w[0], "set") == 0 && n == 3)
		return set(w[1], atoi(w[2]));
	if (strcmp(w[0], "listen") == 0 && n >= 2)
		return link_listen(atoi(w[1]), n - 2, w + 2);
	if (strcmp(w[0], "connect") == 0 && n >= 3)
		return link_connect(atoi(w[1]), w[2], n > 3 ? atoi(w[3]) : 0, n > 4 ? n - 4 : 0, w + 4);
	if (strcmp(w[0], "send") == 0 && n == 5) {
		size_t len;
		uint8_t *b = unhex(w[4], &len);
		int err = post(atoi(w[1]), strtoul(w[2], NULL, 0), flags_of(w[3]), b, len);

		free(b);
		return err;
	}
	if (strcmp(w[0], "bulk") == 0 && n == 6)
		return bulk(atoi(w[1]), atoi(w[2]), strtoul(w[3], NULL, 0), flags_of(w[4]), atoi(w[5]));
	if (strcmp(w[0], "read") == 0 && n == 2) {
		reading = strcmp(w[1], "off") != 0;
		checking = strcmp(w[1], "check") == 0;
		checked = 0;
		return 0;
	}
	if (strcmp(w[0], "abort") == 0)
		return link_abort(rest);
	if (strcmp(w[0], "shutdown") == 0)
		return link_shutdown();
	if (strcmp(w[0], "heartbeat") == 0)
		return link_heartbeat();
	if (strcmp(w[0], "status") == 0)
		return link_status();
	if (strcmp(w[0], "ddp") == 0 && n >= 2)
		return ddp_command(n - 1, w + 1);
	return EINVAL;
}

static void command(char *line)
{
	char *w[32], *save, *space = strchr(line, ' ');
	char *rest = strdup(space ? space + 1 : "");
	int n = 0, err;

	for (char *s = strtok_r(line, " ", &save); s != NULL && n < 32; s = strtok_r(NULL, " ", &save))
		w[n++] = s;
	err = n > 0 ? run(n, w, rest) : EINVAL;
	free(rest);
	pump();
	if (err == 0)
		say("ok");
	else
		say("error %s", strerror(err));
	fflush(stdout);
}

static void real_time(void)
{
	static char line[1 << 18];
	size_t have = 0;

	for (;;) {
		struct pollfd p = {.fd = 0, .events = POLLIN};

		if (poll(&p, 1, 1) > 0) {
			ssize_t n = read(0, line + have, sizeof(line) - have - 1);
			char *end;

			if (n <= 0)
				return;
			have += n;
			line[have] = 0;
			while ((end = strchr(line, '\n')) != NULL) {
				*end = 0;
				command(line);
				have -= end + 1 - line;
				memmove(line, end + 1, have + 1);
			}
		}
		pump();
		fflush(stdout);
	}
}

int main(int argc, char **argv)
{
	static const struct user user = {received, command, pump, real_time};

	return link_main(argc, argv, &user);
}
