/* One thread has requests whose buffer another one gives back, and takes for something else. */
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <sys/mman.h>

#include "guard/guard.h"

#define PAGE 4096
#define SIZE (4 * PAGE)
#define LIVES 20000

static char *buf;
static atomic_bool over;

static void note(uintptr_t addr, const void *pc)
{
	(void)addr;
	(void)pc;
}

static void *requests(void *arg)
{
	uint32_t n;

	(void)arg;
	while (!atomic_load(&over)) {
		guard_mark(buf, SIZE, GUARD_MAY); /* it is registered */
		guard_use(buf, SIZE);
		n = guard_hold(buf, SIZE, 0);
		guard_release(buf, SIZE);
		guard_released(n);
		guard_unuse(buf, SIZE);
	}
	return NULL;
}

int main(void)
{
	pthread_t t;
	int i, at;

	buf = mmap(NULL, SIZE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	guard_start(note);
	if (buf == MAP_FAILED || !guard_mark(buf, SIZE, GUARD_MAY) ||
	    pthread_create(&t, NULL, requests, NULL))
		return 1;
	for (i = 0; i < LIVES; i++) {
		guard_forget(buf, SIZE);
		for (at = 0; at < SIZE; at += PAGE)
			((volatile char *)buf)[at] = 1;
	}
	atomic_store(&over, true);
	pthread_join(t, NULL);
	puts("ok");
	return 0;
}
