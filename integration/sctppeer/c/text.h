// Lines on standard output, and octets in them as hexadecimal digits: - for none.
#include <stddef.h>
#include <stdint.h>

void say(const char *format, ...) __attribute__((format(printf, 1, 2)));
void say_hex(const void *data, size_t len);
uint8_t *unhex(const char *s, size_t *len); // the caller frees it
