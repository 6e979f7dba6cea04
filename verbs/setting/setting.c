#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/auxv.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "setting.h"

#define MAX_SETTINGS (1 << 20) /* octets of the file that are looked at */

/* Reads all of fd, with a zero octet behind it: NULL if that fails. */
static char *read_all(int fd)
{
	struct stat st;
	size_t size, n = 0;
	char *text;

	if (fstat(fd, &st) || !S_ISREG(st.st_mode) || st.st_size > MAX_SETTINGS)
		return NULL;
	size = (size_t)st.st_size;
	text = malloc(size + 1);
	if (!text)
		return NULL;
	while (n < size) {
		ssize_t got = read(fd, text + n, size - n);

		if (got < 0 && errno == EINTR)
			continue;
		if (got <= 0)
			break;
		n += (size_t)got;
	}
	text[n] = 0;
	return text;
}

/* The value of name in the lines of text, or NULL. */
static char *find(char *text, const char *name)
{
	size_t len = strlen(name);
	char *line, *more = NULL;

	for (line = strtok_r(text, "\n", &more); line; line = strtok_r(NULL, "\n", &more))
		if (!strncmp(line, name, len) && line[len] == '=')
			return strdup(line + len + 1);
	return NULL;
}

char *vrnic_setting(const char *name)
{
	const char *env = secure_getenv(name);
	char *text, *value = NULL;
	int fd, err = errno;

	if (getauxval(AT_SECURE))
		return NULL;
	if (env && *env)
		return strdup(env);
	/* Not by functions that libraries of ours stand in front of. */
	fd = (int)syscall(SYS_openat, AT_FDCWD, VRNIC_SETTINGS, O_RDONLY | O_CLOEXEC, 0);
	if (fd >= 0) {
		text = read_all(fd);
		close(fd);
		if (text)
			value = find(text, name);
		free(text);
	}
	errno = err;
	return value;
}
