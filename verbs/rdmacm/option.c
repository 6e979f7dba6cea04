/*
 * librdmacm: options of ids, the program's and those of the environment variable VRNIC_CM, by which
 * a program that knows nothing of iWARP can be made to use one of its ways:
 *
 *	VRNIC_CM=transport=sctp,mpa=1,crc=required,markers=1,rtr=write+read,reads=8:8,fpdu=1400,\
 *		extensions=0
 */
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cm.h"

static int set_option(struct cm_id *id, uint32_t level, uint32_t name, const void *value,
		      size_t len)
{
	struct vrnic_cm_set_option_request req = { .id = id->handle, .level = level, .name = name,
						  .len = len };

	if (len > sizeof(req.value))
		return EINVAL;
	memcpy(req.value, value, len);
	return vrnic_rpc(id->s, VRNIC_OP_CM_SET_OPTION, &req, sizeof(req), NULL, 0, -1, NULL, 0);
}

/* The size of a known option; 0: any, or the option is not known, which the daemon says. */
static size_t size_of(int level, int name)
{
	if (level != RDMA_OPTION_ID)
		return 0;
	switch (name) {
	case RDMA_OPTION_ID_TOS:
	case RDMA_OPTION_ID_ACK_TIMEOUT:
		return sizeof(uint8_t);
	case RDMA_OPTION_ID_REUSEADDR:
	case RDMA_OPTION_ID_AFONLY:
		return sizeof(int);
	}
	return 0;
}

/*
 * Options that there are not, the paths of InfiniBand among them, are ENOSYS, as programs know it.
 */
int rdma_set_option(struct rdma_cm_id *rid, int level, int optname, void *optval, size_t optlen)
{
	struct cm_id *id = to_cm_id(rid);
	size_t size = size_of(level, optname);
	int err;

	if (!optval || !optlen || (size && optlen != size))
		return cm_return(EINVAL);
	if (!id->handle || optlen > VRNIC_MAX_OPTION)
		return cm_return(level == RDMA_OPTION_ID && size ? 0 : ENOSYS);
	err = set_option(id, level, optname, optval, optlen);
	return cm_return(err == EOPNOTSUPP ? ENOSYS : err);
}

/*
 * The environment.
 */

struct word {
	const char *word;
	uint32_t value;
};

static const struct word switches[] = { { "off", 0 }, { "on", 1 }, { NULL, 0 } };
static const struct word transports[] = { { "tcp", 0 }, { "sctp", 1 }, { NULL, 0 } };
static const struct word crcs[] = { { "default", 0 }, { "off", 1 }, { "wanted", 2 },
				   { "required", 3 }, { NULL, 0 } };
static const struct word rtrs[] = {
	{ "all", 0 }, { "write", 1 }, { "read", 2 }, { "send", 4 },
		{ "client-server", VRNIC_RTR_CLIENT_SERVER },
	{ NULL, 0 },
};

static const struct setting {
	const char *key;
	uint32_t name;
	const struct word *words;
} settings[] = {
	{ "transport", VRNIC_OPT_TRANSPORT, transports },
	{ "mpa", VRNIC_OPT_MPA_REVISION, NULL },
	{ "crc", VRNIC_OPT_MPA_CRC, crcs },
	{ "markers", VRNIC_OPT_MPA_MARKERS, switches },
	{ "rtr", VRNIC_OPT_MPA_RTR, rtrs },
	{ "reads", VRNIC_OPT_READS, NULL },
	{ "fpdu", VRNIC_OPT_FPDU_SIZE, NULL },
	{ "extensions", VRNIC_OPT_EXTENSIONS, switches },
};

#define NSETTINGS (sizeof(settings) / sizeof(settings[0]))

/* A number, or N:M for two of 16 bits, or words of the setting joined by +. */
static bool parse_value(const struct setting *st, char *text, uint32_t *value)
{
	const struct word *w;
	char *end, *one, *save;
	unsigned long n = strtoul(text, &end, 0);

	if (end != text && *end == ':' && n <= UINT16_MAX) {
		text = end + 1;
		*value = n << 16;
		n = strtoul(text, &end, 0);
		*value |= n;
		return end != text && !*end && n <= UINT16_MAX;
	}
	if (end != text && !*end && n <= UINT32_MAX) {
		*value = n;
		return true;
	}
	*value = 0;
	for (one = strtok_r(text, "+", &save); one; one = strtok_r(NULL, "+", &save)) {
		for (w = st->words; w && w->word && strcmp(w->word, one); w++)
			;
		if (!w || !w->word)
			return false;
		*value |= w->value;
	}
	return true;
}

struct defaults {
	bool bad;
	bool has[NSETTINGS];
	uint32_t value[NSETTINGS];
};

static bool parse_one(struct defaults *d, char *text)
{
	char *value = strchr(text, '=');
	size_t i;

	if (!value)
		return false;
	*value++ = 0;
	for (i = 0; i < NSETTINGS; i++) {
		if (strcmp(settings[i].key, text))
			continue;
		d->has[i] = true;
		return parse_value(&settings[i], value, &d->value[i]);
	}
	return false;
}

static struct defaults defaults;

/*
 * The messages of RFC 7306 (immediate data and atomics) are allowed: programs do not know that they
 * must ask, and a peer that has not been asked sees nothing of it until the program uses one.
 */
static void read_environment(void)
{
	const char *env = secure_getenv("VRNIC_CM");
	char *text = strdup(env ? env : ""), *one, *save;
	size_t i;

	for (i = 0; i < NSETTINGS; i++) {
		defaults.has[i] = settings[i].name == VRNIC_OPT_EXTENSIONS;
		defaults.value[i] = 1;
	}
	if (!text) {
		defaults.bad = true;
		return;
	}
	for (one = strtok_r(text, ", ", &save); one; one = strtok_r(NULL, ", ", &save)) {
		if (parse_one(&defaults, one))
			continue;
		fprintf(stderr,
			"vrnic: VRNIC_CM=%s: %s is not understood; it is a list of transport=tcp|sctp, mpa=1|2, "
			"crc=off|wanted|required, markers=on|off, rtr=all|write+read+send|client-server, reads=IRD:ORD, "
			"fpdu=OCTETS, extensions=on|off\n", env, one);
		defaults.bad = true;
	}
	free(text);
}

/* Has an unspecified address mean the device of VRNIC_DEVICE, also when others come later. */
static int restrict_wildcard(struct cm_id *id)
{
	uint32_t which = vrnic_num_devices(id->s);

	if (!vrnic_device_named())
		return 0;
	while (which > 0 && !vrnic_device_allowed(id->s, --which))
		; /* one that was made anew is the last of its name */
	if (!vrnic_device_allowed(id->s, which))
		return 0;
	return set_option(id, VRNIC_OPT_LEVEL_VRNIC, VRNIC_OPT_DEVICE, &which, sizeof(which));
}

int cm_default_options(struct cm_id *id)
{
	static pthread_once_t once = PTHREAD_ONCE_INIT;
	size_t i;
	int err;

	pthread_once(&once, read_environment);
	if (defaults.bad)
		return EINVAL;
	if (!id->handle)
		return 0;
	for (i = 0; i < NSETTINGS && !cm_is_ud(id); i++) { /* they are iWARP's */
		if (!defaults.has[i])
			continue;
		err = set_option(id, VRNIC_OPT_LEVEL_VRNIC, settings[i].name, &defaults.value[i],
				 sizeof(defaults.value[i]));
		if (err && err != EOPNOTSUPP) { /* a daemon that does not know it */
			fprintf(stderr, "vrnic: VRNIC_CM: the daemon does not take %s=%u: %s\n", settings[i].key,
				defaults.value[i], strerror(err));
			return err;
		}
	}
	return restrict_wildcard(id);
}
