/* What the parts of the probe share. */
#ifndef PROBE_H
#define PROBE_H

#include <stdint.h>

#include <rdma/rdma_cma.h>

enum { MAX_MR = 64, MAX_CONN = 16, MAX_AH = 16, DEPTH = 512, MAX_PD = 2, TIMEOUT_MS = 15000 };

struct region {
	struct ibv_mr *mr;
	uint8_t *buf;
	size_t len;
};

struct conn {
	struct rdma_cm_id *id; /* NULL: the test connects the QP by itself */
	struct ibv_qp *qp;     /* the id's, if there is one */
	struct ibv_comp_channel *channel;
	struct ibv_cq *cq;
	int event;     /* last event of set-up that nobody has taken, or -1 */
	int status;
	int ended;     /* DISCONNECTED has come */
	uint8_t pd[256];
	int pd_len, ird, ord;
};

extern struct ibv_context *verbs;
extern struct ibv_pd *pds[MAX_PD];
extern struct conn conns[MAX_CONN];
extern struct ibv_ah *ahs[MAX_AH];

void say(const char *format, ...);
/* the answer is an error; -1, for the command to return */
int fail(const char *format, ...);
int fail_errno(const char *what);
void say_hex(const uint8_t *b, int n);

long now_ms(void);

/* word i of the command, "" behind the last, and as a number */
extern char *words[32];
extern int n_words;
const char *word(int i);
uint64_t num(int i);
int unhex(const char *s, uint8_t *out, int max);

/* what word i names; NULL: nothing, and the answer says so */
struct region *region_of(int i);
struct conn *conn_of(int i);

/* a connection that is not in use; NULL: there is none */
struct conn *free_slot(void);
int make_qp(struct conn *c, enum ibv_qp_type type);
void free_conn(struct conn *c);

/* commands: qp.c */
int do_qp(void);
int do_gid(void);
int do_modify(void);
int do_query(void);
int do_ah(void);
int do_unah(void);
int do_group(void);

/* commands: work.c */
int do_recv(void);
int do_post(void);
int do_poll(void);
int do_async(void);

#endif
