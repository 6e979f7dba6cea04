/*
 * The environment, of which programs give their children what they like. What is preloaded is for
 * programs, not for rsocketd.
 */
#include <pthread.h>
#include <stdlib.h>

#include "rspreload.h"

static pthread_once_t once = PTHREAD_ONCE_INIT;
static char **kept;

static void keep(void)
{
	extern char **environ;
	size_t n = 0, k = 0;

	while (environ && environ[n])
		n++;
	kept = calloc(n + 1, sizeof(*kept));
	for (size_t i = 0; kept && i < n; i++)
		if (!strncmp(environ[i], "VRNIC_", 6) || !strncmp(environ[i], "LD_LIBRARY_PATH=", 16)) {
			kept[k] = strdup(environ[i]);
			k += kept[k] != NULL;
		}
}

char **rs_kept_env(void)
{
	static char *none[1];

	pthread_once(&once, keep);
	return kept ? kept : none;
}

const char *rs_kept(const char *name)
{
	size_t len = strlen(name);

	for (char **e = rs_kept_env(); *e; e++)
		if (!strncmp(*e, name, len) && (*e)[len] == '=')
			return *e + len + 1;
	return NULL;
}

/* Programs write over what they were given, too. */
__attribute__((constructor)) static void begin(void) { rs_kept_env(); }
