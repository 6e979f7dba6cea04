/*
 * Memory that is given back while it is registered: free(3), realloc(3) and munmap(2). Most of
 * what a program frees lies outside of all that it has registered, and costs a comparison.
 */
#include <dlfcn.h>
#include <malloc.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/mman.h>

#include "check.h"
#include "guard/guard.h"

/* Nothing that is or was registered is outside. */
static atomic_uintptr_t low = UINTPTR_MAX, high;

static struct {
	void (*free)(void *p);
	void *(*realloc)(void *p, size_t size);
	int (*munmap)(void *p, size_t len);
	size_t (*usable)(void *p);
} libc;

/*
 * dlsym itself frees what it has said of one before that has failed, which may have been called by
 * who has come even earlier: libvrnic-heap.so. The compiler is told that it calls nobody here.
 */
static __thread volatile bool looking __attribute__((tls_model("initial-exec")));

static inline void look_up(void)
{
	if (__builtin_expect(libc.usable != NULL, 1) || looking)
		return;
	looking = true;
	libc.free = (__typeof__(libc.free))dlsym(RTLD_NEXT, "free");
	libc.realloc = (__typeof__(libc.realloc))dlsym(RTLD_NEXT, "realloc");
	libc.munmap = (__typeof__(libc.munmap))dlsym(RTLD_NEXT, "munmap");
	libc.usable = (__typeof__(libc.usable))dlsym(RTLD_NEXT, "malloc_usable_size");
	looking = false;
}

/* Before there are threads. */
__attribute__((constructor)) static void begin(void) { look_up(); }

void memory_watch(const void *p, size_t n)
{
	uintptr_t a = (uintptr_t)p, b = a + n;

	/* Of a region of all memory what is freed need not be used by a request. */
	if (b < a || n == SIZE_MAX)
		return;
	if (a < atomic_load(&low))
		atomic_store(&low, a);
	if (b > atomic_load(&high))
		atomic_store(&high, b);
}

struct freed {
	uintptr_t begin, end;
	struct mr *found;
};

static void find(struct object *o, void *arg)
{
	struct mr *m = container_of(o, struct mr, o);
	uintptr_t begin = (uintptr_t)m->addr, end = begin + o->octets;
	struct freed *f = arg;

	if (m->lost || o->internal || o->generation != book_generation() || o->octets == SIZE_MAX)
		return;
	if (end > begin && begin < f->end && end > f->begin)
		f->found = m;
}

static bool watched(const void *p)
{
	return p && (uintptr_t)p < atomic_load_explicit(&high, memory_order_relaxed) && !book_held();
}

/* n octets at p are about to be nobody's. */
static void given_back(const char *how, const void *p, size_t n)
{
	struct freed f = { .begin = (uintptr_t)p, .end = (uintptr_t)p + n };
	struct report r;
	struct site site;

	if (f.end <= atomic_load(&low) || f.begin >= atomic_load(&high))
		return;
	guard_forget(p, n);
	book_lock();
	book_each(KIND_MR, find, &f);
	if (f.found) {
		f.found->lost = true;
		site_take(&site);
		if (report_begin(&r, "freed", &site)) {
			report_text(&r, "call", how);
			report_number(&r, "addr", f.begin);
			report_number(&r, "length", n);
			report_number(&r, "begin", (uintptr_t)f.found->addr);
			report_site(&r, "here", &site);
			report_object(&r, "made", &f.found->o);
			report_send(&r);
		}
	}
	book_unlock();
}

CHECK_EXPORT void free(void *p)
{
	look_up();
	if (looking) /* a few octets, which stay */
		return;
	if (watched(p))
		given_back("free", p, libc.usable(p));
	libc.free(p);
}

CHECK_EXPORT void *realloc(void *p, size_t size)
{
	size_t had;

	look_up();
	if (!watched(p))
		return libc.realloc(p, size);
	had = libc.usable(p);
	/* where it may grow it stays, and what is registered of it, too */
	if (size > had)
		given_back("realloc", p, had);
	else /* its end may be unmapped */
		guard_forget((char *)p + size, had - size);
	return libc.realloc(p, size);
}

CHECK_EXPORT int munmap(void *p, size_t len)
{
	look_up();
	if (watched(p)) {
		guard_forget_pages(p, len);
		given_back("munmap", p, len);
	}
	return libc.munmap(p, len);
}
