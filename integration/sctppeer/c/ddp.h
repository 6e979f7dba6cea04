// DDP and RDMAP over SCTP, as far as a test peer needs them: ddp.c.
struct message;

int ddp_received(struct message *m); // 0: it is not for DDP
int ddp_command(int n, char **w);

// peer.c
uint8_t *unhex(const char *s, size_t *len);
int post(uint16_t stream, uint32_t ppid, int flags, const void *data, size_t len);
