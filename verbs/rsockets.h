/*
 * Sockets of programs that run under `vrnic exec --rsockets`. A process of its own, rsocketd, has
 * the sockets over RDMA; what the program has in place of each is one end of a Unix socket pair,
 * which poll(2), fork(2), exec(2), sendfile(2) and all else know. rspreload, in front of the C
 * library's functions, puts it there, and asks rsocketd for what a pair cannot do.
 *
 * A program's end says by its name what it is, so that nothing has to be kept of it: whoever
 * inherits it can tell. Numbers are those of the machine.
 */
#ifndef VRNIC_RSOCKETS_H
#define VRNIC_RSOCKETS_H

#include <netinet/in.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>

/* An address of IPv4 or IPv6; family 0: none. */
struct rs_end {
	uint16_t family;
	uint16_t port; /* in network order */
	uint32_t scope;
	uint8_t addr[16];
};
_Static_assert(sizeof(struct rs_end) == 24, "as it is in names");

enum rs_kind {
	RS_KIND_BOUND = 'b',
	RS_KIND_LISTENS = 'l', /* each message of it brings a connection */
	RS_KIND_CONNECTS = 'c', /* or is connected: it can be written to when it is */
	RS_KIND_VERDICT = 'v', /* of the other end: how what the peer sent has ended */
};

/* What a name says. */
struct rs_name {
	uint8_t kind;
	uint8_t family; /* that the program has asked for */
	uint16_t reserved;
	int32_t err; /* of a verdict: 0 is the end, as the peer meant it */
	uint64_t id;
	struct rs_end local, remote;
};
_Static_assert(sizeof(struct rs_name) == 64, "as it is in names");

#define RS_NAME_MAGIC "vrnic-rs"

/* A name as an abstract address: its length */
static inline socklen_t rs_name_pack(const struct rs_name *n, struct sockaddr_un *a)
{
	const size_t magic = sizeof(RS_NAME_MAGIC) - 1;

	memset(a, 0, sizeof(*a));
	a->sun_family = AF_UNIX;
	memcpy(a->sun_path + 1, RS_NAME_MAGIC, magic);
	memcpy(a->sun_path + 1 + magic, n, sizeof(*n));
	return offsetof(struct sockaddr_un, sun_path) + 1 + magic + sizeof(*n);
}

/* Whether an address is such a name. */
static inline int rs_name_unpack(const struct sockaddr_un *a, socklen_t len, struct rs_name *n)
{
	const size_t magic = sizeof(RS_NAME_MAGIC) - 1;

	if (len != offsetof(struct sockaddr_un, sun_path) + 1 + magic + sizeof(*n) ||
	    a->sun_family != AF_UNIX || a->sun_path[0] ||
	    memcmp(a->sun_path + 1, RS_NAME_MAGIC, magic))
		return 0;
	memcpy(n, a->sun_path + 1 + magic, sizeof(*n));
	return 1;
}

/* Of an address of IPv4 or IPv6; one of IPv4 in IPv6 is one of IPv4. */
static inline struct rs_end rs_end_of(const struct sockaddr *sa, socklen_t len)
{
	struct rs_end e = { 0 };
	struct sockaddr_in in;
	struct sockaddr_in6 in6;

	if (len >= sizeof(in) && sa->sa_family == AF_INET) {
		memcpy(&in, sa, sizeof(in));
		e.family = AF_INET;
		e.port = in.sin_port;
		memcpy(e.addr, &in.sin_addr, 4);
	} else if (len >= sizeof(in6) && sa->sa_family == AF_INET6) {
		memcpy(&in6, sa, sizeof(in6));
		e.port = in6.sin6_port;
		if (IN6_IS_ADDR_V4MAPPED(&in6.sin6_addr)) {
			e.family = AF_INET;
			memcpy(e.addr, in6.sin6_addr.s6_addr + 12, 4);
		} else {
			e.family = AF_INET6;
			e.scope = in6.sin6_scope_id;
			memcpy(e.addr, &in6.sin6_addr, 16);
		}
	}
	return e;
}

/* As an address of family, which is that of e, or AF_INET6 for one of IPv4 in it: its length. */
static inline socklen_t rs_end_addr(const struct rs_end *e, int family,
				    struct sockaddr_storage *to)
{
	struct sockaddr_in in = { .sin_family = AF_INET, .sin_port = e->port };
	struct sockaddr_in6 in6 = { .sin6_family = AF_INET6, .sin6_port = e->port };

	memset(to, 0, sizeof(*to));
	if (family == AF_INET) {
		memcpy(&in.sin_addr, e->addr, 4);
		memcpy(to, &in, sizeof(in));
		return sizeof(in);
	}
	if (e->family == AF_INET) {
		in6.sin6_addr.s6_addr[10] = in6.sin6_addr.s6_addr[11] = 0xff;
		memcpy(in6.sin6_addr.s6_addr + 12, e->addr, 4);
	} else {
		memcpy(&in6.sin6_addr, e->addr, 16);
		in6.sin6_scope_id = e->scope;
	}
	memcpy(to, &in6, sizeof(in6));
	return sizeof(in6);
}

/*
 * Questions go to the abstract address RS_ASK_MAGIC and the word of $VRNIC_RSOCKETS, one for each
 * connection (SOCK_SEQPACKET). The variable is UID.WORD.SECRET: whose process answers, and what
 * shows that somebody may ask, as names of sockets can be read by all users.
 */
#define RS_ASK_MAGIC "vrnic-rsocketd."
enum { RS_SECRET = 32, RS_VALUE = 512 };

enum rs_op {
	/* with the kernel's socket, which keeps options: to local; EBUSY: it is free in a moment */
	RS_OP_BIND = 1,
	RS_OP_LISTEN,	/* id; or 0, and with the kernel's socket that listens, at any address */
	RS_OP_CONNECT,	/* id; or 0, and with the kernel's socket: from local to remote */
	RS_OP_SET,
	RS_OP_GET,
};

struct rs_ask {
	char secret[RS_SECRET];
	uint32_t op;
	int32_t family;
	uint64_t id;
	struct rs_end local, remote;
	int32_t level, name; /* of an option */
	int32_t backlog;
	uint32_t len; /* of value */
	uint8_t value[RS_VALUE];
};

/* And with it, for the first three, the program's new end. */
struct rs_answer {
	int32_t err; /* errno, or 0 */
	uint32_t len;
	uint8_t value[RS_VALUE];
};

#endif
