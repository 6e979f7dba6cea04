/*
 * Pages that cannot be accessed say so by SIGSEGV. What is not of pages.c is the program's: its
 * handler, whenever it was installed, is called as if there were none here.
 */
#include <dlfcn.h>
#include <errno.h>
#include <signal.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/syscall.h>
#include <ucontext.h>
#include <unistd.h>

#include "guard.h"

static struct {
	int (*sigaction)(int sig, const struct sigaction *act, struct sigaction *old);
	int (*sigprocmask)(int how, const sigset_t *set, sigset_t *old);
	int (*pthread_sigmask)(int how, const sigset_t *set, sigset_t *old);
	void (*(*signal)(int sig, void (*handler)(int)))(int);
} libc;

static inline void look_up(void)
{
	if (__builtin_expect(libc.signal != NULL, 1))
		return;
	libc.sigaction = (__typeof__(libc.sigaction))dlsym(RTLD_NEXT, "sigaction");
	libc.sigprocmask = (__typeof__(libc.sigprocmask))dlsym(RTLD_NEXT, "sigprocmask");
	libc.pthread_sigmask = (__typeof__(libc.pthread_sigmask))dlsym(RTLD_NEXT, "pthread_sigmask");
	libc.signal = (__typeof__(libc.signal))dlsym(RTLD_NEXT, "signal");
}

/* Before there are threads, which have the mask of who makes them. */
__attribute__((constructor)) static void begin(void)
{
	sigset_t own;

	look_up();
	sigemptyset(&own);
	sigaddset(&own, SIGSEGV);
	libc.sigprocmask(SIG_UNBLOCK, &own, NULL);
}

/* ---- what an access was ---- */

enum access { ACCESS_READS, ACCESS_WRITES, ACCESS_OTHER };

#if defined(__x86_64__)

/* The processor's error code: bit 1 is set of what writes, bit 4 of what runs. */
static enum access access_of(const ucontext_t *c)
{
	long err = c->uc_mcontext.gregs[REG_ERR];

	return err & 1 << 4 ? ACCESS_OTHER : err & 1 << 1 ? ACCESS_WRITES : ACCESS_READS;
}

static const void *pc_of(const ucontext_t *c) { return (void *)c->uc_mcontext.gregs[REG_RIP]; }

#define KNOWN true

#elif defined(__aarch64__)

#define ESR_RECORD 0x45535201

/* The syndrome, in a record behind the registers: class 0x24 is data, with bit 6 it writes. */
static enum access access_of(const ucontext_t *c)
{
	const char *at = (const char *)c->uc_mcontext.__reserved;
	const char *end = at + sizeof(c->uc_mcontext.__reserved);
	uint32_t head[2];
	uint64_t esr;

	while (end - at >= 16) {
		memcpy(head, at, sizeof(head));
		if (!head[0] || head[1] < sizeof(head))
			break;
		if (head[0] == ESR_RECORD) {
			memcpy(&esr, at + sizeof(head), sizeof(esr));
			if ((esr >> 26 & 0x3f) != 0x24)
				break;
			return esr & 1 << 6 ? ACCESS_WRITES : ACCESS_READS;
		}
		at += head[1];
	}
	return ACCESS_OTHER;
}

static const void *pc_of(const ucontext_t *c) { return (void *)c->uc_mcontext.pc; }

#define KNOWN true

#else

static enum access access_of(const ucontext_t *c) { return (void)c, ACCESS_OTHER; }
static const void *pc_of(const ucontext_t *c) { return (void)c, NULL; }

#define KNOWN false

#endif

/* ---- the program's handler ---- */

/* The last one counts; others may be read still. */
static struct sigaction apps[8];
static atomic_uint napps;
static atomic_bool watching;
static bool (*ours)(uintptr_t addr, bool reads, const void *pc);

static struct sigaction *app(void) { return &apps[atomic_load(&napps) % 8]; }

static void set_app(const struct sigaction *a)
{
	unsigned int n = atomic_load(&napps) + 1;

	apps[n % 8] = *a;
	atomic_store(&napps, n);
}

/* As the kernel would. The mask that there is now it puts back afterwards. */
static void pass_on(int sig, siginfo_t *info, void *context)
{
	struct sigaction a = *app(), def = { .sa_handler = SIG_DFL };
	bool sent = info->si_code <= 0; /* by a process */

	if (a.sa_handler == SIG_IGN && sent)
		return;
	if (a.sa_handler == SIG_DFL || a.sa_handler == SIG_IGN) {
		/* what has faulted does so again, and ends the program */
		libc.sigaction(sig, &def, NULL);
		if (sent)
			syscall(SYS_tgkill, getpid(), syscall(SYS_gettid), sig);
		return;
	}
	if (a.sa_flags & (int)SA_RESETHAND)
		set_app(&def);
	libc.pthread_sigmask(SIG_BLOCK, &a.sa_mask, NULL);
	if (a.sa_flags & SA_NODEFER) {
		sigset_t own;

		sigemptyset(&own);
		sigaddset(&own, sig);
		libc.pthread_sigmask(SIG_UNBLOCK, &own, NULL);
	}
	if (a.sa_flags & SA_SIGINFO)
		a.sa_sigaction(sig, info, context);
	else
		a.sa_handler(sig);
}

static void on_segv(int sig, siginfo_t *info, void *context)
{
	enum access access = access_of(context);
	int err = errno;

	if (info->si_code == SEGV_ACCERR && access != ACCESS_OTHER &&
	    ours((uintptr_t)info->si_addr, access == ACCESS_READS, pc_of(context))) {
		errno = err;
		return;
	}
	pass_on(sig, info, context);
}

bool segv_watch(bool (*fault)(uintptr_t addr, bool reads, const void *pc))
{
	struct sigaction own = { .sa_sigaction = on_segv,
				 .sa_flags = SA_SIGINFO | SA_ONSTACK | SA_RESTART };
	struct sigaction old;

	if (atomic_load(&watching) || !KNOWN)
		return KNOWN;
	sigemptyset(&own.sa_mask);
	if (libc.sigaction(SIGSEGV, NULL, &old))
		return false;
	set_app(&old);
	ours = fault;
	atomic_store(&watching, true);
	return !libc.sigaction(SIGSEGV, &own, NULL);
}

/* ---- what programs say of signals: this one stays open, and its handler in its place ---- */

GUARD_EXPORT int sigaction(int sig, const struct sigaction *act, struct sigaction *old)
{
	struct sigaction a, before;

	look_up();
	if (act) {
		a = *act;
		sigdelset(&a.sa_mask, SIGSEGV);
		act = &a;
	}
	if (sig != SIGSEGV || !atomic_load(&watching))
		return libc.sigaction(sig, act, old);
	before = *app();
	if (act)
		set_app(act);
	if (old)
		*old = before;
	return 0;
}

GUARD_EXPORT void (*signal(int sig, void (*handler)(int)))(int)
{
	struct sigaction a = { .sa_handler = handler, .sa_flags = SA_RESTART }, old;

	look_up();
	if (sig != SIGSEGV || !atomic_load(&watching))
		return libc.signal(sig, handler);
	sigemptyset(&a.sa_mask);
	sigaction(sig, &a, &old);
	return old.sa_handler;
}

/* The set without this signal, unless that is to be unblocked. */
static const sigset_t *without(int how, const sigset_t *set, sigset_t *room)
{
	if (!set || how == SIG_UNBLOCK)
		return set;
	*room = *set;
	sigdelset(room, SIGSEGV);
	return room;
}

GUARD_EXPORT int sigprocmask(int how, const sigset_t *set, sigset_t *old)
{
	sigset_t room;

	look_up();
	return libc.sigprocmask(how, without(how, set, &room), old);
}

GUARD_EXPORT int pthread_sigmask(int how, const sigset_t *set, sigset_t *old)
{
	sigset_t room;

	look_up();
	return libc.pthread_sigmask(how, without(how, set, &room), old);
}
