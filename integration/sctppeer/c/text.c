#include "text.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void say(const char *format, ...)
{
	va_list ap;

	va_start(ap, format);
	vprintf(format, ap);
	va_end(ap);
	putchar('\n');
}

void say_hex(const void *data, size_t len)
{
	const uint8_t *p = data;

	if (len == 0)
		putchar('-');
	for (size_t i = 0; i < len; i++) {
		putchar("0123456789abcdef"[p[i] >> 4]);
		putchar("0123456789abcdef"[p[i] & 15]);
	}
	putchar('\n');
}

static int nibble(int c)
{
	return c <= '9' ? c - '0' : (c | 32) - 'a' + 10;
}

uint8_t *unhex(const char *s, size_t *len)
{
	size_t n = strcmp(s, "-") == 0 ? 0 : strlen(s) / 2;
	uint8_t *b = malloc(n + 1);

	for (size_t i = 0; i < n; i++)
		b[i] = nibble(s[2 * i]) << 4 | nibble(s[2 * i + 1]);
	*len = n;
	return b;
}
