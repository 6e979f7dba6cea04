// DDP and RDMAP over SCTP, as far as a test peer needs them: ddp.c.
struct message;

int ddp_received(struct message *m); // 0: it is not for DDP
int ddp_command(int n, char **w);
