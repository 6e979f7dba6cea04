/* Where a program was when it called: the stack, by the compiler's own library. */
#include <dlfcn.h>
#include <link.h>
#include <pthread.h>
#include <string.h>

#include "check.h"

/* Of <unwind.h>, which is the compiler's. */
struct _Unwind_Context;
typedef int unwind_step(struct _Unwind_Context *c, void *arg);
#define UNWIND_GO_ON 0
#define UNWIND_STOP 5 /* _URC_END_OF_STACK */

static struct {
	int (*backtrace)(unwind_step *step, void *arg);
	uintptr_t (*pc)(struct _Unwind_Context *c);
} unwind;

/* Where this library lies. */
extern const char __ehdr_start[] __attribute__((visibility("hidden")));
extern const char _end[] __attribute__((visibility("hidden")));

static bool ours(uintptr_t pc)
{
	return pc >= (uintptr_t)__ehdr_start && pc < (uintptr_t)_end;
}

static void find_unwinder(void)
{
	void *gcc = dlopen("libgcc_s.so.1", RTLD_NOW);

	if (!gcc)
		return;
	unwind.pc = (__typeof__(unwind.pc))dlsym(gcc, "_Unwind_GetIP");
	if (unwind.pc)
		unwind.backtrace = (__typeof__(unwind.backtrace))dlsym(gcc, "_Unwind_Backtrace");
}

static int step(struct _Unwind_Context *c, void *arg)
{
	uintptr_t pc = unwind.pc(c);
	struct site *s = arg;

	if (!pc || s->n == SITE_FRAMES)
		return UNWIND_STOP;
	if (!ours(pc))
		s->pc[s->n++] = (void *)pc;
	return UNWIND_GO_ON;
}

void site_take(struct site *s)
{
	static pthread_once_t once = PTHREAD_ONCE_INIT;

	pthread_once(&once, find_unwinder);
	memset(s, 0, sizeof(*s));
	if (unwind.backtrace)
		unwind.backtrace(step, s);
}

/* Frames up to that of pc, which is no return address, are of the handler. */
struct interrupted {
	struct site *s;
	uintptr_t pc;
	bool reached;
};

static int step_from(struct _Unwind_Context *c, void *arg)
{
	struct interrupted *i = arg;

	if (i->reached)
		return step(c, i->s);
	i->reached = unwind.pc(c) == i->pc;
	return UNWIND_GO_ON;
}

void site_take_at(struct site *s, const void *pc)
{
	struct interrupted i = { s, (uintptr_t)pc, false };

	memset(s, 0, sizeof(*s));
	s->pc[s->n++] = (char *)pc + 1;
	if (unwind.backtrace)
		unwind.backtrace(step_from, &i);
}

/* By where it lies: it need not be loaded by its name. */
bool site_from_cm(const struct site *s)
{
	void *cm = s->n ? dlopen("librdmacm.so.1", RTLD_NOW | RTLD_NOLOAD) : NULL;
	Dl_info own, at;
	bool yes;

	if (!cm)
		return false;
	yes = dladdr(dlsym(cm, "rdma_create_id"), &own) && dladdr(s->pc[0], &at) &&
	      own.dli_fbase == at.dli_fbase;
	dlclose(cm);
	return yes;
}

bool site_same(const struct site *a, const struct site *b)
{
	return a->n == b->n && !memcmp(a->pc, b->pc, a->n * sizeof(a->pc[0]));
}
