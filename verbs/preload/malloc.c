/*
 * The functions of malloc(3), in front of libc's or of whatever allocator the program has: an
 * address says whose memory it is.
 */
#include <dlfcn.h>
#include <errno.h>
#include <stdatomic.h>
#include <stdint.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "heap.h"

#define EXPORT __attribute__((visibility("default")))
#define likely(x) __builtin_expect(!!(x), 1)

/* The allocator behind this one. free is set last. */
static struct {
	void *(*malloc)(size_t);
	void *(*calloc)(size_t, size_t);
	void *(*realloc)(void *, size_t);
	int (*posix_memalign)(void **, size_t, size_t);
	void *(*aligned_alloc)(size_t, size_t);
	void *(*memalign)(size_t, size_t);
	void *(*valloc)(size_t);
	void *(*pvalloc)(size_t);
	size_t (*usable)(void *);
	void (*_Atomic free)(void *);
} next;

static bool on;
static __thread __attribute__((tls_model("initial-exec"))) bool resolving;

/* What dlsym itself allocates, while nothing is known: it is never freed. */
static _Alignas(16) char early[16 << 10];
static atomic_size_t early_used;

static bool is_early(const void *p) { return (uintptr_t)p - (uintptr_t)early < sizeof(early); }

static void *early_alloc(size_t size)
{
	size_t at;

	if (size > sizeof(early))
		return NULL;
	at = atomic_fetch_add(&early_used, (size + 31) & ~(size_t)15);
	return at + size <= sizeof(early) ? early + at : NULL;
}

/* Looks the other allocator up. Threads may do so at the same time: they find the same. */
static bool resolve(void)
{
	if (resolving)
		return false;
	resolving = true;
	next.malloc = dlsym(RTLD_NEXT, "malloc");
	next.calloc = dlsym(RTLD_NEXT, "calloc");
	next.realloc = dlsym(RTLD_NEXT, "realloc");
	next.posix_memalign = dlsym(RTLD_NEXT, "posix_memalign");
	next.aligned_alloc = dlsym(RTLD_NEXT, "aligned_alloc");
	next.memalign = dlsym(RTLD_NEXT, "memalign");
	next.valloc = dlsym(RTLD_NEXT, "valloc");
	next.pvalloc = dlsym(RTLD_NEXT, "pvalloc");
	next.usable = dlsym(RTLD_NEXT, "malloc_usable_size");
	atomic_store_explicit(&next.free, dlsym(RTLD_NEXT, "free"), memory_order_release);
	resolving = false;
	return true;
}

/* Whether the other allocator can be called. */
static inline bool ready(void)
{
	return likely(atomic_load_explicit(&next.free, memory_order_acquire) != NULL) || resolve();
}

static bool off(char **envp)
{
	static const char name[] = "VRNIC_LEND_HEAP=0";

	for (; *envp; envp++)
		if (!strcmp(*envp, name))
			return true;
	return false;
}

static bool sanitized(void)
{
	static const char *const inits[] = { "__asan_init", "__hwasan_init", "__lsan_init",
					    "__msan_init", "__tsan_init" };

	for (size_t i = 0; i < sizeof(inits) / sizeof(*inits); i++)
		if (dlsym(RTLD_DEFAULT, inits[i]))
			return true;
	return false;
}

/* It is linked so that it comes before all others' constructors: libc has not set environ yet. */
__attribute__((constructor)) static void start(int argc, char **argv, char **envp)
{
	(void)argc;
	(void)argv;
	if (!ready() || off(envp))
		return;
	if (sanitized()) {
		static const char why[] =
			"vrnic: this program has a sanitizer, whose malloc it needs: its heap is not lent\n";

		syscall(SYS_write, 2, why, sizeof(why) - 1);
		return;
	}
	on = heap_start() && heap_watch_forks();
}

static inline bool lends(size_t size) { return size >= HEAP_LEAST && likely(on); }

/*
 * Whether such an allocation is of pages. What is no alignment is for the other allocator to
 * refuse.
 */
static inline bool lends_aligned(size_t align, size_t size)
{
	return likely(on) && !(align & (align - 1)) && (size >= HEAP_LEAST || align >= heap_page);
}

EXPORT void *malloc(size_t size)
{
	void *p;

	if (lends(size) && (p = heap_alloc(size, 0, size, false)))
		return p;
	return ready() ? next.malloc(size) : early_alloc(size);
}

EXPORT void *calloc(size_t n, size_t size)
{
	size_t total;
	void *p;

	if (__builtin_mul_overflow(n, size, &total)) {
		errno = ENOMEM;
		return NULL;
	}
	if (lends(total) && (p = heap_alloc(total, 0, total, true)))
		return p;
	return ready() ? next.calloc(n, size) : early_alloc(total);
}

EXPORT void free(void *p)
{
	if (heap_has(p))
		heap_free(p);
	else if (p && !is_early(p) && ready())
		next.free(p);
}

/* Moves p, which has old octets, to new memory of the other allocator or of ours. */
static void *move(void *p, size_t old, size_t size)
{
	/* Who makes memory longer does so again: with room twice as large it is seldom copied. */
	void *q = size >= HEAP_LEAST ? heap_alloc(size, 0, size > old ? 2 * size : size, false) : NULL;

	if (!q)
		q = next.malloc(size);
	if (!q)
		return NULL;
	memcpy(q, p, old < size ? old : size);
	free(p);
	return q;
}

EXPORT void *realloc(void *p, size_t size)
{
	void *q;

	if (!p)
		return malloc(size);
	if (is_early(p)) {
		q = malloc(size);
		if (q) /* how much it was is not known, but not more than there is */
			memcpy(q, p, size < (size_t)(early + sizeof(early) - (char *)p) ? size
			       : (size_t)(early + sizeof(early) - (char *)p));
		return q;
	}
	if (!ready())
		return NULL;
	if (heap_has(p)) {
		if (!size) { /* as glibc does */
			free(p);
			return NULL;
		}
		if (size >= HEAP_LEAST && heap_resize(p, size))
			return p;
		q = move(p, heap_usable(p), size);
		return q || size > heap_usable(p) ? q : p;
	}
	if (lends(size) && next.usable && (q = heap_alloc(size, 0, size, false))) {
		size_t old = next.usable(p);

		memcpy(q, p, old < size ? old : size);
		next.free(p);
		return q;
	}
	return next.realloc(p, size);
}

EXPORT int posix_memalign(void **out, size_t align, size_t size)
{
	void *p;

	if (lends_aligned(align, size) && align >= sizeof(void *) &&
	    (p = heap_alloc(size, align, size, false))) {
		*out = p;
		return 0;
	}
	return ready() ? next.posix_memalign(out, align, size) : ENOMEM;
}

EXPORT void *aligned_alloc(size_t align, size_t size)
{
	void *p;

	if (align && lends_aligned(align, size) && (p = heap_alloc(size, align, size, false)))
		return p;
	return ready() ? next.aligned_alloc(align, size) : NULL;
}

EXPORT void *memalign(size_t align, size_t size)
{
	void *p;

	if (align && lends_aligned(align, size) && (p = heap_alloc(size, align, size, false)))
		return p;
	return ready() ? next.memalign(align, size) : NULL;
}

EXPORT void *valloc(size_t size)
{
	void *p;

	if (likely(on) && (p = heap_alloc(size, 0, size, false)))
		return p;
	return ready() ? next.valloc(size) : NULL;
}

EXPORT void *pvalloc(size_t size)
{
	void *p;

	if (likely(on) && (p = heap_alloc(size, 0, size, false)))
		return p;
	return ready() ? next.pvalloc(size) : NULL;
}

EXPORT size_t malloc_usable_size(void *p)
{
	if (!p || is_early(p))
		return 0;
	if (heap_has(p))
		return heap_usable(p);
	return ready() && next.usable ? next.usable(p) : 0;
}

/* Of C23: newer libcs have them. */
EXPORT void free_sized(void *p, size_t size);
EXPORT void free_aligned_sized(void *p, size_t align, size_t size);

EXPORT void free_sized(void *p, size_t size)
{
	(void)size;
	free(p);
}

EXPORT void free_aligned_sized(void *p, size_t align, size_t size)
{
	(void)align;
	(void)size;
	free(p);
}
