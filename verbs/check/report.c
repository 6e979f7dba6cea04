/*
 * What is told: a datagram each, to the socket that $VRNIC_CHECK names, in lines of a name and a
 * value:
 *
 *	THE SECRET, behind a space in $VRNIC_CHECK
 *	what dead-key
 *	pid 4711
 *	number lkey 305419896
 *	object mr KIND AT NUMBER OCTETS
 *	frame post OFFSET FILE
 *
 * A frame is where in a file the code is that a return address is of; those of a role follow each
 * other, the nearest first. The descriptor is made for each: programs close those that they do
 * not know.
 */
#include <fcntl.h>
#include <inttypes.h>
#include <poll.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "check.h"

#define MAX_TOLD 1024
#define PATIENCE_MS 5000

static const char *const names[KINDS] = {
	[KIND_AH] = "ah", [KIND_MW] = "mw", [KIND_MR] = "mr", [KIND_QP] = "qp", [KIND_SRQ] = "srq",
	[KIND_CQ] = "cq", [KIND_CHANNEL] = "channel", [KIND_PD] = "pd", [KIND_CONTEXT] = "context",
	[KIND_ID] = "id", [KIND_EVENT_CHANNEL] = "event-channel",
	[KIND_EVENT] = "event",
};

static struct sockaddr_un listener;
static socklen_t listener_len;
static char secret[64]; /* in front of what is told, as who listens expects it */

/* Programs may change their environment. */
__attribute__((constructor)) static void read_address(void)
{
	const char *name = secure_getenv("VRNIC_CHECK"), *end = name ? strchr(name, ' ') : NULL;
	size_t len = end ? (size_t)(end - name) : 0;

	if (!len || len >= sizeof(listener.sun_path) - 1 || strlen(end + 1) >= sizeof(secret))
		return;
	strcpy(secret, end + 1);
	listener.sun_family = AF_UNIX;
	memcpy(listener.sun_path + 1, name, len); /* an abstract name */
	listener_len = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + len);
}

static uint64_t mix(uint64_t h, const void *p, size_t n)
{
	const unsigned char *c = p;

	while (n--)
		h = (h ^ *c++) * UINT64_C(0x100000001b3);
	return h;
}

/* Whether this has not been told yet; from now on it has. */
static bool is_new(const char *what, const struct site *s)
{
	static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
	static uint64_t told[MAX_TOLD];
	static size_t n;
	uint64_t h = mix(UINT64_C(0xcbf29ce484222325), what, strlen(what));
	size_t i = 0;

	h = mix(h, s->pc, s->n * sizeof(s->pc[0]));
	pthread_mutex_lock(&lock);
	while (i < n && told[i] != h)
		i++;
	if (i < n || n == MAX_TOLD)
		i = MAX_TOLD;
	else
		told[n++] = h;
	pthread_mutex_unlock(&lock);
	return i < MAX_TOLD;
}

static void __attribute__((format(printf, 2, 3))) line(struct report *r, const char *format, ...)
{
	size_t room = sizeof(r->text) - r->n;
	va_list args;
	int n;

	va_start(args, format);
	n = vsnprintf(r->text + r->n, room, format, args);
	va_end(args);
	if (n > 0 && (size_t)n < room) /* else there is no room for it */
		r->n += (size_t)n;
}

bool report_begin(struct report *r, const char *what, const struct site *once)
{
	if (!listener_len || !is_new(what, once))
		return false;
	r->n = 0;
	line(r, "%s\nwhat %s\npid %d\n", secret, what, (int)getpid());
	return true;
}

void report_text(struct report *r, const char *name, const char *value)
{
	line(r, "text %s %s\n", name, value);
}

void report_number(struct report *r, const char *name, uint64_t value)
{
	line(r, "number %s %" PRIu64 "\n", name, value);
}

void report_object(struct report *r, const char *role, const struct object *o)
{
	line(r, "object %s %s %" PRIuPTR " %" PRIu32 " %" PRIu64 "\n", role, names[o->kind],
	     (uintptr_t)o->at, o->number, o->octets);
	report_site(r, role, &o->made);
}

/* The offset of pc in its file, of which maps is a copy of /proc/self/maps. */
static void frame(struct report *r, const char *role, FILE *maps, uintptr_t pc)
{
	uintptr_t begin, end, off;
	char text[4352];
	int path;

	rewind(maps);
	while (fgets(text, sizeof(text), maps)) {
		path = 0;
		if (sscanf(text, "%" SCNxPTR "-%" SCNxPTR " %*s %" SCNxPTR " %*s %*s %n", &begin, &end, &off,
			   &path) < 3 || pc < begin || pc >= end || text[path] != '/')
			continue;
		line(r, "frame %s %" PRIuPTR " %s", role, pc - begin + off, text + path);
		return;
	}
	line(r, "frame %s %" PRIuPTR " ?\n", role, pc);
}

void report_site(struct report *r, const char *role, const struct site *s)
{
	FILE *maps = s->n ? fopen("/proc/self/maps", "re") : NULL;
	int i;

	if (!maps)
		return;
	/* a return address is behind the call */
	for (i = 0; i < s->n; i++)
		frame(r, role, maps, (uintptr_t)s->pc[i] - 1);
	fclose(maps);
}

void report_send(struct report *r)
{
	int fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);

	if (fd < 0)
		return;
	/* who listens may have ended: then nobody wants to know */
	sendto(fd, r->text, r->n, MSG_NOSIGNAL, (struct sockaddr *)&listener, listener_len);
	close(fd);
}

bool report_ask(const char *device, uint32_t qpn, struct qp_counts *c)
{
	struct sockaddr_un own = { .sun_family = AF_UNIX };
	struct pollfd p;
	char text[256];
	ssize_t n;
	bool known = false;
	int len;

	if (!listener_len)
		return false;
	len = snprintf(text, sizeof(text), "%s\nask-counts %" PRIu32 " %s\n", secret, qpn, device);
	p.fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
	p.events = POLLIN;
	if (p.fd < 0)
		return false;
	/* a name that the kernel finds, for the answer */
	if (!bind(p.fd, (struct sockaddr *)&own, sizeof(own.sun_family)) &&
	    sendto(p.fd, text, (size_t)len, MSG_NOSIGNAL, (struct sockaddr *)&listener,
		   listener_len) == len && poll(&p, 1, PATIENCE_MS) == 1) {
		n = recv(p.fd, text, sizeof(text) - 1, 0);
		text[n > 0 ? n : 0] = 0;
		c->use[0] = 0;
		known = sscanf(text, "%" SCNu64 " %" SCNu64 " %" SCNu64 " %" SCNu64 " %" SCNu32 " %" SCNu64
			       " %" SCNu32 " %15s %31[^\n]", &c->stalls, &c->writes, &c->reads, &c->atomics,
			       &c->rkey, &c->addr, &c->octets, c->why, c->use) >= 4;
	}
	close(p.fd);
	return known;
}
