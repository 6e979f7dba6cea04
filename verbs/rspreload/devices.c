/* The addresses of devices, as `vrnic exec` has told them: NAME=ADDR/BITS,...;NAME=... */
#include <arpa/inet.h>
#include <pthread.h>
#include <stdlib.h>

#include "rspreload.h"

enum { MOST = 256 };

static pthread_once_t once = PTHREAD_ONCE_INIT;
static struct device {
	struct rs_end at;
	unsigned int bits;
} *devices;
static size_t ndevices;

static bool parse(char *s, struct device *d)
{
	char *slash = strchr(s, '/'), *end;
	unsigned long bits;

	if (!slash)
		return false;
	*slash = 0;
	bits = strtoul(slash + 1, &end, 10);
	d->at = (struct rs_end){ .family = strchr(s, ':') ? AF_INET6 : AF_INET };
	d->bits = bits;
	return end != slash + 1 && !*end && bits <= (d->at.family == AF_INET ? 32 : 128) &&
	       inet_pton(d->at.family, s, d->at.addr) == 1;
}

static void look(void)
{
	const char *env = rs_kept("VRNIC_IFADDRS");
	char *text = env ? strdup(env) : NULL, *word, *more = NULL;

	if (!text)
		return;
	devices = calloc(MOST, sizeof(*devices));
	for (word = strtok_r(text, ";,", &more); devices && word && ndevices < MOST;
	     word = strtok_r(NULL, ";,", &more)) {
		char *name = strchr(word, '=');

		if (parse(name ? name + 1 : word, &devices[ndevices]))
			ndevices++;
	}
	free(text);
}

static bool loopback(const struct rs_end *e)
{
	static const uint8_t one[16] = { [15] = 1 };

	return e->family == AF_INET ? e->addr[0] == 127 : !memcmp(e->addr, one, 16);
}

static bool within(const struct rs_end *e, const struct device *d, unsigned int bits)
{
	unsigned int whole = bits / 8, rest = bits % 8;

	return e->family == d->at.family && !loopback(e) && !memcmp(e->addr, d->at.addr, whole) &&
	       (!rest || !((e->addr[whole] ^ d->at.addr[whole]) >> (8 - rest)));
}

static unsigned int all_bits(const struct rs_end *e) { return e->family == AF_INET ? 32 : 128; }

bool rs_have_devices(void)
{
	pthread_once(&once, look);
	return ndevices > 0;
}

bool rs_is_device(const struct rs_end *e)
{
	pthread_once(&once, look);
	for (size_t i = 0; i < ndevices; i++)
		if (within(e, &devices[i], all_bits(e)))
			return true;
	return false;
}

bool rs_is_any(const struct rs_end *e)
{
	static const uint8_t any[16];

	return e->family && !memcmp(e->addr, any, sizeof(any));
}

bool rs_device_for(const struct rs_end *e, struct rs_end *local)
{
	const struct device *best = NULL;

	pthread_once(&once, look);
	for (size_t i = 0; i < ndevices; i++)
		if (within(e, &devices[i], devices[i].bits) && (!best || devices[i].bits > best->bits))
			best = &devices[i];
	if (best)
		*local = best->at;
	return best;
}
