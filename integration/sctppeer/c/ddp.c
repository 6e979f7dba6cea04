// The peer's DDP stream sessions (RFC 5043), DDP segments (RFC 5041) and RDMAP messages (RFC 5040).
//
//	ddp on                              messages with PPID 16 and 17 come here from now on
//	ddp answer accept|reject|nothing [HEX]   how to answer the Initiates that come, with private data
//	ddp initiate STREAM [HEX] / ddp einitiate STREAM HEX   the enhanced form begins with the data
//	                                                       of RFC 6581
//	ddp segment LEN                     octets of payload in a segment, from now on
//	ddp send STREAM HEX                 an RDMA Send
//	ddp memory STAG LEN                 memory that the other side may write to and read
//	ddp fill STAG HEX / ddp dump STAG
//	ddp write STREAM STAG TO HEX        an RDMA Write to the other side
//	ddp read STREAM SINK TO LEN SOURCE TO   an RDMA Read Request
//	ddp raw STREAM PPID SSN HEX         a message as it is, after the DDP-SSN
//	ddp terminate STREAM                ends the session
//
// It says what comes, in the order of DDP-SSNs:
//
//	ddp initiate|accept|reject|terminate|einitiate|eaccept|ereject STREAM HEX
//	ddp send STREAM MSN HEX
//	ddp fault STREAM HEX                an RDMAP Terminate message
//	ddp write STREAM STAG TO LEN last|more
//	ddp read STREAM ...                 a Read Request, which is answered
//	ddp bad STREAM WHY
#include "ddp.h"
#include "link.h"
#include "post.h"
#include "text.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SEGMENT = 16, CONTROL = 17 };                    // PPIDs
enum {
	INITIATE = 1, ACCEPT, REJECT, TERMINATE,
	ENHANCED_INITIATE, ENHANCED_ACCEPT, ENHANCED_REJECT, // RFC 6581, section 7
};
enum { WRITE = 0, READ_REQUEST = 1, READ_RESPONSE = 2, SEND = 3, FAULT = 7 };
enum { TAGGED = 0x80, LAST = 0x40, DDP_VERSION = 1, RDMAP_VERSION = 1 << 6 };
enum { WINDOW = 4096 };

struct stream {
	uint16_t in, out;            // the next DDP-SSNs
	uint32_t msn[3];             // sent, by queue
	struct message *held[WINDOW]; // that came ahead of order
	uint8_t *text;               // of the Send that is being received
	size_t len;
};

static struct stream *streams[65536];
static int on, answer = ACCEPT;
static uint8_t *answer_data;
static size_t answer_len;
static size_t segment = 1200;

static struct { uint32_t stag; uint8_t *b; size_t len; } memory[16];

static struct stream *stream(uint16_t k)
{
	if (streams[k] == NULL)
		streams[k] = calloc(1, sizeof(struct stream));
	return streams[k];
}

static void put16(uint8_t *b, uint32_t v) { b[0] = v >> 8; b[1] = v; }
static void put32(uint8_t *b, uint32_t v) { put16(b, v >> 16); put16(b + 2, v); }
static void put64(uint8_t *b, uint64_t v) { put32(b, v >> 32); put32(b + 4, v); }
static uint32_t get16(const uint8_t *b) { return b[0] << 8 | b[1]; }
static uint32_t get32(const uint8_t *b) { return get16(b) << 16 | get16(b + 2); }
static uint64_t get64(const uint8_t *b) { return (uint64_t)get32(b) << 32 | get32(b + 4); }

static int control(uint16_t k, unsigned function, const uint8_t *data, size_t len)
{
	uint8_t b[4 + 512];

	if (len > 512)
		return EMSGSIZE;
	put16(b, stream(k)->out++);
	put16(b + 2, function);
	if (len > 0)
		memcpy(b + 4, data, len);
	return post(k, CONTROL, UNORDERED | IMMEDIATE, b, 4 + len);
}

// tagged sends data in tagged segments.
static int tagged(uint16_t k, unsigned opcode, uint32_t stag, uint64_t to, const uint8_t *data,
    size_t len)
{
	size_t at = 0;
	int err = 0;

	do {
		size_t n = len - at < segment ? len - at : segment;
		uint8_t b[65536];

		put16(b, stream(k)->out++);
		b[2] = TAGGED | (at + n == len ? LAST : 0) | DDP_VERSION;
		b[3] = RDMAP_VERSION | opcode;
		put32(b + 4, stag);
		put64(b + 8, to + at);
		memcpy(b + 16, data + at, n);
		err = post(k, SEGMENT, UNORDERED, b, 16 + n);
		at += n;
	} while (at < len && err == 0);
	return err;
}

// untagged sends data in untagged segments of queue qn.
static int untagged(uint16_t k, unsigned opcode, unsigned qn, const uint8_t *data, size_t len)
{
	uint32_t msn = ++stream(k)->msn[qn];
	size_t at = 0;
	int err = 0;

	do {
		size_t n = len - at < segment ? len - at : segment;
		uint8_t b[65536];

		put16(b, stream(k)->out++);
		b[2] = (at + n == len ? LAST : 0) | DDP_VERSION;
		b[3] = RDMAP_VERSION | opcode;
		put32(b + 4, 0);
		put32(b + 8, qn);
		put32(b + 12, msn);
		put32(b + 16, at);
		memcpy(b + 20, data + at, n);
		err = post(k, SEGMENT, UNORDERED, b, 20 + n);
		at += n;
	} while (at < len && err == 0);
	return err;
}

static uint8_t *find(uint32_t stag, uint64_t to, size_t len)
{
	for (int i = 0; i < 16; i++)
		if (memory[i].b != NULL && memory[i].stag == stag && to <= memory[i].len &&
		    len <= memory[i].len - to)
			return memory[i].b + to;
	return NULL;
}

static void got_tagged(uint16_t k, const uint8_t *b, size_t len)
{
	uint8_t *at;

	if (len < 14) {
		say("ddp bad %u short", k);
		return;
	}
	at = find(get32(b + 2), get64(b + 6), len - 14);
	if (at == NULL) {
		say("ddp bad %u stag or bounds", k);
		return;
	}
	memcpy(at, b + 14, len - 14);
	say("ddp %s %u %#x %llu %zu %s", (b[1] & 15) == WRITE ? "write" : "response", k, get32(b + 2),
	    (unsigned long long)get64(b + 6), len - 14, b[0] & LAST ? "last" : "more");
}

static void got_untagged(uint16_t k, const uint8_t *b, size_t len)
{
	struct stream *s = stream(k);

	if (len < 18) {
		say("ddp bad %u short", k);
		return;
	}
	if (get32(b + 14) != s->len) {
		say("ddp bad %u offset", k);
		return;
	}
	s->text = realloc(s->text, s->len + len - 18 + 1);
	memcpy(s->text + s->len, b + 18, len - 18);
	s->len += len - 18;
	if (!(b[0] & LAST))
		return;
	switch (b[1] & 15) {
	case SEND:
		printf("ddp send %u %u ", k, get32(b + 10));
		say_hex(s->text, s->len);
		break;
	case FAULT:
		printf("ddp fault %u ", k);
		say_hex(s->text, s->len);
		break;
	case READ_REQUEST:
		if (s->len == 28) {
			const uint8_t *r = s->text;
			size_t n = get32(r + 12);
			uint8_t *from = find(get32(r + 16), get64(r + 20), n);

			say("ddp read %u %u", k, (unsigned)n);
			if (from != NULL) {
				tagged(k, READ_RESPONSE, get32(r), get64(r + 4), from, n);
				break;
			}
		}
		/* fall through */
	default:
		say("ddp bad %u opcode %u", k, b[1] & 15);
	}
	s->len = 0;
}

static void got_control(uint16_t k, const uint8_t *b, size_t len)
{
	static const char *const names[] = {
		[INITIATE] = "initiate", [ACCEPT] = "accept", [REJECT] = "reject", [TERMINATE] = "terminate",
		[ENHANCED_INITIATE] = "einitiate", [ENHANCED_ACCEPT] = "eaccept", [ENHANCED_REJECT] = "ereject",
	};
	unsigned function;

	if (len < 2 || (function = get16(b)) < INITIATE || function > ENHANCED_REJECT) {
		say("ddp bad %u function", k);
		return;
	}
	printf("ddp %s %u ", names[function], k);
	say_hex(b + 2, len - 2);
	if ((function == INITIATE || function == ENHANCED_INITIATE) && answer != 0)
		control(k, function - INITIATE + answer, answer_data, answer_len);
}

static void deliver(struct message *m)
{
	if (m->ppid == CONTROL)
		got_control(m->stream, m->data + 2, m->len - 2);
	else if (m->len < 4)
		say("ddp bad %u short", m->stream);
	else if (m->data[2] & TAGGED)
		got_tagged(m->stream, m->data + 2, m->len - 2);
	else
		got_untagged(m->stream, m->data + 2, m->len - 2);
}

int ddp_received(struct message *m)
{
	struct stream *s;
	struct message *c;
	uint16_t ahead;

	if (!on || (m->ppid != SEGMENT && m->ppid != CONTROL))
		return 0;
	if (!m->unordered)
		say("ddp bad %u ordered", m->stream); // RFC 5043, section 10
	if (m->len < 2) {
		say("ddp bad %u short", m->stream);
		return 1;
	}
	s = stream(m->stream);
	ahead = get16(m->data) - s->in;
	if (ahead >= WINDOW || s->held[get16(m->data) % WINDOW] != NULL) {
		say("ddp bad %u ssn", m->stream);
		return 1;
	}
	c = malloc(sizeof(*c));
	*c = *m;
	c->data = malloc(m->len);
	memcpy(c->data, m->data, m->len);
	s->held[get16(m->data) % WINDOW] = c;
	while ((c = s->held[s->in % WINDOW]) != NULL) {
		s->held[s->in % WINDOW] = NULL;
		s->in++;
		deliver(c);
		free(c->data);
		free(c);
	}
	return 1;
}

static uint32_t num(const char *s) { return strtoul(s, NULL, 0); }

int ddp_command(int n, char **w)
{
	size_t len = 0;
	uint8_t *b = NULL;
	int err = EINVAL;

	if (strcmp(w[0], "on") == 0) {
		on = 1;
		return 0;
	}
	if (strcmp(w[0], "segment") == 0 && n == 2) {
		segment = num(w[1]);
		return 0;
	}
	if (strcmp(w[0], "memory") == 0 && n == 3) {
		for (int i = 0; i < 16; i++)
			if (memory[i].b == NULL) {
				memory[i].stag = num(w[1]);
				memory[i].len = num(w[2]);
				memory[i].b = calloc(1, memory[i].len);
				return 0;
			}
		return ENOMEM;
	}
	if (strcmp(w[0], "dump") == 0 && n == 2) {
		for (int i = 0; i < 16; i++)
			if (memory[i].b != NULL && memory[i].stag == num(w[1])) {
				printf("ddp dump ");
				say_hex(memory[i].b, memory[i].len);
				return 0;
			}
		return ENOENT;
	}
	if (strcmp(w[0], "terminate") == 0 && n == 2)
		return control(num(w[1]), TERMINATE, NULL, 0);
	if (strcmp(w[0], "read") == 0 && n == 7) {
		uint8_t r[28];

		put32(r, num(w[2]));
		put64(r + 4, strtoull(w[3], NULL, 0));
		put32(r + 12, num(w[4]));
		put32(r + 16, num(w[5]));
		put64(r + 20, strtoull(w[6], NULL, 0));
		return untagged(num(w[1]), READ_REQUEST, 1, r, sizeof(r));
	}
	b = unhex(n > 2 ? w[n - 1] : "-", &len);
	if (strcmp(w[0], "answer") == 0 && n >= 2) {
		answer = strcmp(w[1], "accept") == 0 ? ACCEPT : strcmp(w[1], "reject") == 0 ? REJECT : 0;
		answer_data = b;
		answer_len = len;
		return 0;
	}
	if (strcmp(w[0], "initiate") == 0 && n >= 2)
		err = control(num(w[1]), INITIATE, b, len);
	else if (strcmp(w[0], "einitiate") == 0 && n == 3)
		err = control(num(w[1]), ENHANCED_INITIATE, b, len);
	else if (strcmp(w[0], "send") == 0 && n == 3)
		err = untagged(num(w[1]), SEND, 0, b, len);
	else if (strcmp(w[0], "write") == 0 && n == 5)
		err = tagged(num(w[1]), WRITE, num(w[2]), strtoull(w[3], NULL, 0), b, len);
	else if (strcmp(w[0], "fill") == 0 && n == 3) {
		uint8_t *at = find(num(w[1]), 0, len);

		if (at != NULL) {
			memcpy(at, b, len);
			err = 0;
		}
	} else if (strcmp(w[0], "raw") == 0 && n == 5) {
		uint8_t *m = malloc(len + 2);

		put16(m, num(w[3]));
		memcpy(m + 2, b, len);
		err = post(num(w[1]), num(w[2]), UNORDERED, m, len + 2);
		free(m);
	}
	free(b);
	return err;
}
