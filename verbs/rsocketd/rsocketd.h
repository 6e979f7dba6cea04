/*
 * rsocketd, the process of the sockets over RDMA of programs under `vrnic exec --rsockets`. Its
 * first thread answers questions (ask.c), and has the sockets that are bound and nothing else;
 * each connection and each socket that listens has a thread of its own, which ends with it. What
 * that thread alone touches is its own; what questions are about is below the lock of all.
 */
#ifndef VRNIC_RSOCKETD_H
#define VRNIC_RSOCKETD_H

#include <poll.h>
#include <pthread.h>
#include <stdbool.h>

#include "rsocket/rsocket.h"
#include "rsockets.h"

struct socket {
	struct socket *next; /* sockets.c */
	uint64_t id;
	int family;   /* that the program has asked for */
	int rs;	      /* over RDMA, of IPv4 if local is */
	int kernel;   /* the kernel's socket, for its options, and where one listens beside; or -1 */
	int end;      /* ours of the pair */
	struct rs_end local, remote;
	bool bound;   /* and nothing else: it has no thread */
	bool leaving; /* it cannot be asked about any more; what it has is being closed */
	bool beside;  /* kernel listens */
	bool connecting;
	size_t filled; /* octets in the pair that keep the program from writing */
	int backlog;
};

/* sockets.c: those that can be asked about */
void sockets_lock(void);
void sockets_unlock(void);
struct socket *socket_find(uint64_t id); /* with the lock; NULL: there is none */
void socket_add(struct socket *s);	  /* with the lock */
void socket_remove(struct socket *s);	  /* without: when it returns nobody is at it */
int sockets_bound(struct socket **list, int most); /* with the lock: how many */
bool sockets_any(void); /* those that still send what they were given are some */
/* With the lock: whether one of port, and no connection, is there that its program has closed. */
bool sockets_leaving(uint16_t port);
/* A pair of type: s has a new id, and one of the ends; the program's, or -errno. */
int socket_pair(struct socket *s, enum rs_kind kind, int type);
/* Another end, with the name of a verdict: it is said once. */
void socket_verdict(const struct socket *s, int err);
/* Its peer hears of a reset when it is freed, and nobody waits for it. */
void socket_cut(const struct socket *s);
/* Hands fd over by a message; 0, or -errno */
int pass_fd(int to, const void *data, size_t len, int fd);
int thread_start(void *(*run)(void *), void *arg); /* 0, or -errno */
void socket_free(struct socket *s); /* and closes what it has */

/* stream.c, listen.c: threads, whose argument is the socket */
void *stream_run(void *s);
void *listen_run(void *s);

/* make.c: 0, or -errno */
int make_bound(struct socket *s);
int make_listening(struct socket *s);
int make_connecting(struct socket *s);

/* option.c */
int option_set(struct socket *s, const struct rs_ask *q);
int option_get(struct socket *s, const struct rs_ask *q, struct rs_answer *a);

/* ask.c */
void ask_serve(int listener, const char *secret);

#endif
