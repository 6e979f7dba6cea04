// What peer.c wants of an SCTP: usrsctp.c and linux.c give it.
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
int link_main(int argc, char **argv);

// peer.c, for these.
void say(const char *format, ...) __attribute__((format(printf, 1, 2)));
void say_hex(const void *data, size_t len);
void command(char *line); // from standard input
void received(struct message *m);
void notification(const void *data, size_t len);
void pump(void);
void real_time(void); // runs commands and pump until standard input ends
