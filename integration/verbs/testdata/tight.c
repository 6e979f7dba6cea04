/*
 * Functions that take paths go on where there is little stack, while another thread has the
 * loader's lock for ever, and behind the end of what the program was given to see in /sys.
 */
#define _GNU_SOURCE
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <ucontext.h>
#include <unistd.h>

#ifdef LIBRARY
extern sem_t inside;

/* Constructors run with the loader's lock held. */
__attribute__((constructor)) static void stay(void)
{
	sem_post(&inside);
	for (;;)
		pause();
}
#else
sem_t inside;

static void *load(void *library)
{
	dlopen(library, RTLD_NOW);
	return NULL;
}

static void lock(const char *library)
{
	pthread_t t;

	sem_init(&inside, 0, 0);
	if (pthread_create(&t, NULL, load, (void *)library))
		abort();
	sem_wait(&inside);
	alarm(60); /* for who waits for the lock */
	printf("lock: %d\n", euidaccess("/", F_OK) || chdir("/") || close(open("/dev/null", O_RDWR)));
}

static ucontext_t outside, within;
static int opened;

static void on_stack(void)
{
	char to[8];
	struct stat st;

	opened = !close(open("/dev/null", O_RDWR)) && !stat("/etc", &st) && !access("/etc", R_OK) &&
		 readlink("/proc/self/exe", to, sizeof(to)) > 0;
}

/* Two pages, and none below. */
static void stack(void)
{
	size_t page = 4096;
	char *mem = mmap(NULL, 3 * page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	mprotect(mem, page, PROT_NONE);
	getcontext(&within);
	within.uc_stack.ss_sp = mem + page;
	within.uc_stack.ss_size = 2 * page;
	within.uc_link = &outside;
	makecontext(&within, on_stack, 0);
	swapcontext(&outside, &within);
	printf("stack: %d\n", opened);
}

static void gone(void)
{
	DIR *d;

	if (system("rm -r \"$VRNIC_SYS_DIR\""))
		abort();
	d = opendir("/sys/class");
	printf("gone: %s\n", d ? "the kernel's" : strerror(errno));
}

static void nothing(void)
{
	const char *volatile path = NULL;
	struct stat st;
	int r = stat(path, &st);

	printf("nothing: %d, %s\n", r, strerror(errno));
}

int main(int argc, char **argv)
{
	if (argc != 3)
		return 2;
	if (!strcmp(argv[1], "stack"))
		stack();
	else if (!strcmp(argv[1], "lock"))
		lock(argv[2]);
	else if (!strcmp(argv[1], "gone"))
		gone();
	else
		nothing();
	fflush(stdout);
	_exit(0); /* the loader's lock is not to be had */
}
#endif
