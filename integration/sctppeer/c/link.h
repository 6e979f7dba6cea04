// An SCTP: usrsctp.c or linux.c.
#include <stddef.h>
#include <stdint.h>

struct message {
	uint16_t stream, ssn;
	uint32_t ppid, tsn;
	int unordered;
	uint8_t *data;
	size_t len;
};

enum { UNORDERED = 1, IMMEDIATE = 2 };

// Options that are set before link_listen or link_connect; 0: the stack's own.
struct options {
	unsigned out, in;    // streams
	unsigned maxseg;     // largest chunk
	unsigned rcvbuf;     // octets
	unsigned adapt;      // indication
	int has_adapt;
	unsigned rto;        // initial and least, ms
	unsigned pathmax;    // retransmissions before a path is given up
	int plain;           // no extensions in INIT
	int small;           // refuse messages that take fragments
};
extern struct options options;

// All return 0 or an errno. EAGAIN of link_send: no room, come again.
int link_listen(uint16_t port, int naddr, char **addr);
int link_connect(uint16_t port, const char *to, uint16_t lport, int naddr, char **addr);
int link_send(uint16_t stream, uint32_t ppid, int flags, const void *data, size_t len);
int link_abort(const char *reason);
int link_shutdown(void);
int link_heartbeat(void);
int link_status(void); // says what it finds
void link_poll(int reading); // takes what has come, by the functions below

// What an SCTP calls of who uses it, which is above it and tells it.
struct user {
	void (*received)(struct message *m);
	void (*command)(char *line); // from standard input
	void (*pump)(void);          // takes what has come and sends what waits
	void (*real_time)(void);     // runs commands and pump until standard input ends
};

int link_main(int argc, char **argv, const struct user *u); // returns when standard input has ended
