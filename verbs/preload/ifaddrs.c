/*
 * libvrnic-ifaddrs.so: getifaddrs(3) that lists the addresses of virtual RNICs too.
 *
 * docs/decisions.md#V5. Some programs, libfabric among them, find RDMA devices by asking the kernel
 * for its interfaces and binding an rdma_cm id to each of their addresses. The address of a virtual
 * RNIC may be on no interface of the kernel. `vrnic exec` preloads this library and sets
 *
 *	VRNIC_IFADDRS=NAME=ADDR/BITS[,ADDR/BITS]...[;NAME=...]
 *
 * for which each call of getifaddrs adds entries at the end of what the C library returns. It is
 * kept apart from libibverbs.so.1 so that it comes before libc for programs that load libibverbs
 * late, or never.
 */
#include <arpa/inet.h>
#include <dlfcn.h>
#include <errno.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#include "setting/setting.h"

#define EXPORT __attribute__((visibility("default")))

/* An address of a device, as the environment has it. */
struct source {
	const char *name; /* in text: that is how freeifaddrs knows our entries */
	int family;
	unsigned int bits;
	union {
		struct in_addr in;
		struct in6_addr in6;
	} addr;
};

union address {
	struct sockaddr sa;
	struct sockaddr_in in;
	struct sockaddr_in6 in6;
};

/* An entry of the list, with what it points to. All that one call adds is one block. */
struct entry {
	struct ifaddrs ifa;
	union address addr, mask, broadcast;
};

static pthread_once_t once = PTHREAD_ONCE_INIT;
static int (*next_getifaddrs)(struct ifaddrs **);
static void (*next_freeifaddrs)(struct ifaddrs *);
static char *text; /* the setting, cut into names; never freed */
static size_t text_len;
static struct source *sources;
static size_t nsources;

/* Reads ADDR/BITS. */
static bool parse_address(char *s, struct source *src)
{
	char *slash = strchr(s, '/');
	char *end;
	unsigned long bits;

	if (!slash || slash[1] < '0' || slash[1] > '9')
		return false;
	*slash = 0;
	bits = strtoul(slash + 1, &end, 10);
	if (*end)
		return false;
	src->family = strchr(s, ':') ? AF_INET6 : AF_INET;
	src->bits = bits;
	return bits <= (src->family == AF_INET ? 32 : 128) && inet_pton(src->family, s, &src->addr) == 1;
}

/* Reads NAME=ADDR/BITS,... What is not of that form is passed over. */
static void parse_device(char *s)
{
	char *addrs = strchr(s, '=');
	char *addr, *more = NULL;
	size_t len;

	if (!addrs)
		return;
	*addrs++ = 0;
	/* A kernel's interface has no longer name, and programs have arrays for it. */
	len = strnlen(s, IF_NAMESIZE);
	if (!len)
		return;
	if (len == IF_NAMESIZE)
		s[IF_NAMESIZE - 1] = 0;
	for (addr = strtok_r(addrs, ",", &more); addr; addr = strtok_r(NULL, ",", &more)) {
		struct source *src = &sources[nsources];

		src->name = s;
		if (parse_address(addr, src))
			nsources++;
	}
}

static void init(void)
{
	char *env = vrnic_setting("VRNIC_IFADDRS");
	char *device, *more = NULL;
	size_t n = 1;

	next_getifaddrs = (int (*)(struct ifaddrs **))dlsym(RTLD_NEXT, "getifaddrs");
	next_freeifaddrs = (void (*)(struct ifaddrs *))dlsym(RTLD_NEXT, "freeifaddrs");
	if (!env)
		return;
	text_len = strlen(env) + 1;
	for (const char *c = env; *c; c++)
		n += *c == ',' || *c == ';';
	text = env;
	sources = calloc(n, sizeof(*sources));
	if (!sources)
		return;
	for (device = strtok_r(text, ";", &more); device; device = strtok_r(NULL, ";", &more))
		parse_device(device);
}

/*
 * Whether the kernel has the address on an interface that programs consider, for example because
 * the device shares it with the host. One that is on the loopback interface only is not there for
 * libfabric.
 */
static bool listed(const struct ifaddrs *list, const struct source *src)
{
	const struct ifaddrs *i;

	for (i = list; i; i = i->ifa_next) {
		const union address *a = (const union address *)i->ifa_addr;

		if (!a || a->sa.sa_family != src->family || !(i->ifa_flags & IFF_UP) ||
		    (i->ifa_flags & IFF_LOOPBACK))
			continue;
		if (src->family == AF_INET ? !memcmp(&a->in.sin_addr, &src->addr.in, sizeof(src->addr.in)) :
					     !memcmp(&a->in6.sin6_addr, &src->addr.in6, sizeof(src->addr.in6)))
			return true;
	}
	return false;
}

static void set_prefix(uint8_t *mask, unsigned int bits)
{
	for (; bits >= 8; bits -= 8)
		*mask++ = 0xff;
	if (bits)
		*mask = (uint8_t)(0xff00 >> bits);
}

static void fill(struct entry *e, const struct source *src)
{
	e->ifa.ifa_name = (char *)src->name;
	e->ifa.ifa_flags = IFF_UP | IFF_RUNNING | IFF_BROADCAST;
	e->ifa.ifa_addr = &e->addr.sa;
	e->ifa.ifa_netmask = &e->mask.sa;
	e->addr.sa.sa_family = e->mask.sa.sa_family = (sa_family_t)src->family;
	if (src->family == AF_INET6) {
		e->addr.in6.sin6_addr = src->addr.in6;
		set_prefix(e->mask.in6.sin6_addr.s6_addr, src->bits);
		return;
	}
	e->addr.in.sin_addr = src->addr.in;
	set_prefix((uint8_t *)&e->mask.in.sin_addr, src->bits);
	if (src->bits > 30) /* no address is left for it */
		return;
	e->broadcast.in.sin_family = AF_INET;
	e->broadcast.in.sin_addr.s_addr = e->addr.in.sin_addr.s_addr | ~e->mask.in.sin_addr.s_addr;
	e->ifa.ifa_broadaddr = &e->broadcast.sa;
}

EXPORT int getifaddrs(struct ifaddrs **list)
{
	struct ifaddrs **tail;
	struct entry *added;
	size_t n = 0;

	pthread_once(&once, init);
	if (!next_getifaddrs || !next_freeifaddrs) {
		errno = ENOSYS;
		return -1;
	}
	if (next_getifaddrs(list))
		return -1;
	if (!nsources)
		return 0;
	added = calloc(nsources, sizeof(*added));
	if (!added) {
		next_freeifaddrs(*list);
		errno = ENOMEM;
		return -1;
	}
	for (size_t i = 0; i < nsources; i++)
		if (!listed(*list, &sources[i]))
			fill(&added[n++], &sources[i]);
	if (!n) {
		free(added);
		return 0;
	}
	for (size_t i = 1; i < n; i++)
		added[i - 1].ifa.ifa_next = &added[i].ifa;
	for (tail = list; *tail; tail = &(*tail)->ifa_next)
		;
	*tail = &added[0].ifa;
	return 0;
}

static bool ours(const struct ifaddrs *i)
{
	return text && i->ifa_name >= text && i->ifa_name < text + text_len;
}

/* The list may be the C library's with ours at its end, one of them alone, or NULL. */
EXPORT void freeifaddrs(struct ifaddrs *list)
{
	struct ifaddrs *added = NULL;
	struct ifaddrs **at = &list;

	pthread_once(&once, init);
	while (*at) {
		if (!ours(*at)) {
			at = &(*at)->ifa_next;
			continue;
		}
		if (!added)
			added = *at;
		*at = (*at)->ifa_next;
	}
	free(added);
	if (list && next_freeifaddrs)
		next_freeifaddrs(list);
}
