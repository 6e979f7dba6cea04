// Messages to the other side, in their order, of which some wait for room in the send buffer.
#include <stddef.h>
#include <stdint.h>

int post(uint16_t stream, uint32_t ppid, int flags, const void *data, size_t len);
void send_pending(void);
