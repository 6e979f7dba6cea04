/*
 * The process. It is linked without the C library's own first files, which would want the glibc
 * that they are of.
 */
#include <errno.h>
#include <fcntl.h>
#include <malloc.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "rsocketd.h"

extern int __libc_start_main(int (*main)(int, char **, char **), int argc, char **argv,
			     void (*init)(void), void (*fini)(void), void (*rtld_fini)(void),
			     void *stack_end);

static int run(int argc, char **argv, char **env);

__attribute__((used, noreturn)) void rsocketd_begin(long *stack);
void rsocketd_begin(long *stack)
{
	__libc_start_main(run, (int)stack[0], (char **)(stack + 1), NULL, NULL, NULL, stack);
	__builtin_unreachable();
}

/* The kernel begins here, with the arguments on the stack. */
#ifdef __x86_64__
__asm__(".text\n.globl _start\n.type _start, @function\n_start:\n"
	"xor %ebp, %ebp\nmov %rsp, %rdi\nand $-16, %rsp\ncall rsocketd_begin\n");
#else
__asm__(".text\n.globl _start\n.type _start, %function\n_start:\n"
	"mov x29, #0\nmov x30, #0\nmov x0, sp\nb rsocketd_begin\n");
#endif

/* Whose name is there is asked by who has started this. */
static int take_name(const char **secret)
{
	const char *env = getenv("VRNIC_RSOCKETS"), *word, *dot;
	struct sockaddr_un a = { .sun_family = AF_UNIX };
	size_t n = sizeof(RS_ASK_MAGIC) - 1;
	int fd;

	word = env ? strchr(env, '.') : NULL;
	dot = word ? strchr(word + 1, '.') : NULL;
	errno = EINVAL;
	if (!dot || strlen(dot + 1) != RS_SECRET ||
	    (size_t)(dot - word) + n > sizeof(a.sun_path) - 1)
		return -1;
	*secret = dot + 1;
	memcpy(a.sun_path + 1, RS_ASK_MAGIC, n);
	memcpy(a.sun_path + 1 + n, word + 1, dot - word - 1);
	fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	if (fd < 0 || bind(fd, (struct sockaddr *)&a, offsetof(struct sockaddr_un, sun_path) + 1 + n +
							     (dot - word - 1)))
		return -1;
	return listen(fd, 128) ? -1 : fd;
}

/* Nothing that was inherited is held, and no terminal. */
static void let_go(int keep)
{
	struct rlimit lim;
	int fd, null = open("/dev/null", O_RDWR);

	for (fd = 0; fd < 3 && null >= 0; fd++)
		dup2(null, fd);
	if (getrlimit(RLIMIT_NOFILE, &lim))
		lim.rlim_cur = 1024;
	if (lim.rlim_cur > 65536)
		lim.rlim_cur = 65536;
	for (fd = 3; fd < (int)lim.rlim_cur; fd++)
		if (fd != keep)
			close(fd);
	if (!getrlimit(RLIMIT_NOFILE, &lim)) {
		lim.rlim_cur = lim.rlim_max;
		(void)setrlimit(RLIMIT_NOFILE, &lim); /* it has several for each connection */
	}
}

/*
 * A program that has dropped its rights has its options set here. So none are kept but those for
 * files, which the daemon's socket is one of.
 */
static void drop_capabilities(void)
{
	enum { DAC_OVERRIDE = 1, DAC_READ_SEARCH = 2 }; /* linux/capability.h, version 3 */
	struct {
		uint32_t version;
		int pid;
	} head = { .version = 0x20080522 };
	struct {
		uint32_t effective, permitted, inheritable;
	} have[2] = { { 0 } };
	const uint32_t files = 1 << DAC_OVERRIDE | 1 << DAC_READ_SEARCH;

	if (syscall(SYS_capget, &head, have))
		memset(have, 0, sizeof(have));
	have[0].permitted = have[0].effective &= files;
	have[1].permitted = have[1].effective = 0;
	have[0].inheritable = have[1].inheritable = 0;
	syscall(SYS_capset, &head, have);
}

/* Who has started this waits to hear whether it can be asked. */
static void say(const char *to, int err)
{
	uint8_t said = err;
	int fd = to ? atoi(to) : -1;

	if (fd > STDERR_FILENO && write(fd, &said, 1) == 1)
		close(fd);
}

static int run(int argc, char **argv, char **env)
{
	const char *secret;
	sigset_t none;
	int sig, fd;

	(void)env;
	for (sig = 1; sig < SIGRTMIN; sig++)
		(void)signal(sig, sig == SIGPIPE ? SIG_IGN : SIG_DFL); /* not of all there can be */
	sigemptyset(&none);
	sigprocmask(SIG_SETMASK, &none, NULL);
#ifdef __GLIBC__
	mallopt(M_ARENA_MAX, 1);
#endif
	setsid();
	fd = take_name(&secret);
	say(argc > 1 ? argv[1] : NULL, fd < 0 ? errno : 0);
	if (fd < 0 || chdir("/"))
		return 1;
	drop_capabilities();
	let_go(fd);
	ask_serve(fd, secret);
	return 0;
}
