/*
 * An end of the pair of sockets by which one program wakes another that sleeps:
 * docs/direct.md#sleeping.
 */
#ifndef VRNIC_WAKE_H
#define VRNIC_WAKE_H

#include "core/core.h"

struct vrnic_wake {
	int fd; /* -1: none */
	bool asked;
};

/* Asks the daemon for the end of QP, by op, if that has not been done: whether there is one. */
bool vrnic_wake_ask(struct vrnic_wake *w, struct vrnic_session *s, uint32_t qp, uint16_t op);

/*
 * Sends an octet, and takes those that have come. Neither waits, or is a cancellation point: locks
 * may be held. If the other end is gone so is this one: false.
 */
bool vrnic_wake_send(struct vrnic_wake *w);
bool vrnic_wake_drain(struct vrnic_wake *w);

void vrnic_wake_close(struct vrnic_wake *w);

#endif
