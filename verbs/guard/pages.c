/* What is known of each page, found without a lock, so that the handler of a signal may. */
#include <sched.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "guard.h"

/* What a page is, beside how many parts of outstanding requests are on it. */
#define HELD	(1u << 27) /* it is taken from the program */
#define EVER	(1u << 28) /* it was once, so a fault may have been on its way since */
#define TAKING	(1u << 29) /* it is being taken: until then nobody forgets it */
#define USES	(GUARD_MAY - 1)

/* Addresses of programs have up to 48 bits; 18 of a page's number are its place in a table. */
#define ADDRESS_BITS 48
#define LOW_BITS 18
#define TABLES (1u << (ADDRESS_BITS - 12 - LOW_BITS))

/* A run of pages costs the kernel up to two mappings more, of which a process has 65530. */
#define MOST_RUNS 8192

#define MOST_YIELDS 100000

typedef _Atomic uint32_t page;

static _Atomic(page *) tables[TABLES];
static size_t page_size;
static unsigned int page_shift;
static uint32_t runs; /* of one thread at a time, as the tables are */
static void (*on_read)(uintptr_t addr, const void *pc);

__attribute__((constructor)) static void begin(void)
{
	page_size = (size_t)sysconf(_SC_PAGESIZE);
	page_shift = (unsigned int)__builtin_ctzl(page_size);
}

static page *look(uintptr_t number)
{
	page *t = number >> LOW_BITS < TABLES ? atomic_load(&tables[number >> LOW_BITS]) : NULL;

	return t ? &t[number & ((1u << LOW_BITS) - 1)] : NULL;
}

/* The pages from first up to end that [p, p + n) touches, or of which it holds all. */
struct range {
	uintptr_t first, end;
};

static struct range touched(const void *p, size_t n)
{
	uintptr_t a = (uintptr_t)p, most = (uintptr_t)1 << ADDRESS_BITS;

	if (!n || !page_size || a >= most)
		return (struct range){ 0 };
	if (n > most - a)
		n = most - a;
	return (struct range){ a >> page_shift, ((a + n - 1) >> page_shift) + 1 };
}

static struct range whole(const void *p, size_t n)
{
	struct range r = touched(p, n);

	if (r.first < r.end && (uintptr_t)p & (page_size - 1))
		r.first++;
	if (r.first < r.end && ((uintptr_t)p + n) & (page_size - 1))
		r.end--;
	return r;
}

/* The next page from *at on that is known of, in r; NULL: there is none. */
static page *step(const struct range *r, uintptr_t *at)
{
	page *p = NULL;

	while (*at < r->end && !(p = look(*at)))
		*at = ((*at >> LOW_BITS) + 1) << LOW_BITS;
	return p;
}

static bool make_tables(const struct range *r)
{
	size_t size = sizeof(page) << LOW_BITS;
	uintptr_t i;
	void *t;

	for (i = r->first >> LOW_BITS; r->first < r->end && i <= (r->end - 1) >> LOW_BITS; i++) {
		if (i >= TABLES)
			return false;
		if (atomic_load(&tables[i]))
			continue;
		t = mmap(NULL, size, PROT_READ | PROT_WRITE,
			 MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
		if (t == MAP_FAILED)
			return false;
		atomic_store(&tables[i], t);
	}
	return true;
}

/* ---- taking pages, and giving them back ---- */

static bool protect(uintptr_t first, uintptr_t end, int prot)
{
	return !syscall(SYS_mprotect, first << page_shift, (end - first) << page_shift, prot);
}

static bool is_ever(uintptr_t number)
{
	page *p = look(number);

	return p && atomic_load(p) & EVER;
}

static void make_open(uintptr_t number)
{
	uintptr_t first = number, end = number + 1;

	/* in the middle of others it may be one mapping too many: then all of them */
	if (protect(first, end, PROT_READ | PROT_WRITE))
		return;
	while (is_ever(first - 1))
		first--;
	while (is_ever(end))
		end++;
	protect(first, end, PROT_READ | PROT_WRITE);
}

/*
 * Gives a page back; true: it was taken. In this order: who finds it not HELD may go on. Another
 * thread may have taken it since it was made open, or be about to: who comes last makes it open
 * again, here or in take.
 */
static bool give_back(uintptr_t number)
{
	page *p = look(number);
	bool held;

	make_open(number);
	held = atomic_fetch_and(p, ~HELD) & HELD;
	if (held)
		make_open(number);
	return held;
}

/* In the handler of a signal: false: the program's own. */
static bool fault(uintptr_t addr, bool reads, const void *pc)
{
	page *s = page_size ? look(addr >> page_shift) : NULL;

	if (!s || !(atomic_load(s) & EVER))
		return false;
	if (give_back(addr >> page_shift) && reads)
		on_read(addr, pc);
	return true;
}

/* Gives back what lies between two pages and was taken once. */
static void give_back_all(struct range r)
{
	uintptr_t at, end;

	for (at = r.first; step(&r, &at); at = end > at ? end : at + 1) {
		for (end = at; end < r.end && is_ever(end); end++)
			;
		if (end == at)
			continue;
		protect(at, end, PROT_READ | PROT_WRITE);
		for (uintptr_t i = at; i < end; i++)
			atomic_fetch_and(look(i), ~HELD);
	}
}

static bool may_take(uint32_t s, uint32_t not)
{
	return (s & USES) == 1 && s & GUARD_MAY && !(s & not);
}

/* Says of a page that it is being taken; false: it must not be, or must not any more. */
static bool claim(page *p, uint32_t not)
{
	uint32_t s = atomic_load(p);

	while (may_take(s, not))
		if (atomic_compare_exchange_weak(p, &s, s | HELD | EVER | TAKING))
			return true;
	return false;
}

/* Takes pages, up to the first that must not be: how many. */
static uintptr_t take(struct range r, uint32_t not)
{
	uintptr_t end = r.first, i;
	bool taken;
	page *p;

	if (!may_take(atomic_load(look(r.first)), not))
		return 0;
	if (runs >= MOST_RUNS || !segv_watch(fault))
		return r.end - r.first;
	while (end < r.end && (p = look(end)) && claim(p, not))
		end++;
	if (end == r.first)
		return 0;
	taken = protect(r.first, end, PROT_NONE);
	runs += taken;
	for (i = r.first; i < end; i++) {
		p = look(i);
		if (!taken)
			atomic_fetch_and(p, ~HELD);
		else if (!(atomic_load(p) & HELD))
			make_open(i); /* another thread was faster */
		atomic_fetch_and(p, ~TAKING);
	}
	return end - r.first;
}

/* ---- buffers ---- */

void guard_use(const void *p, size_t n)
{
	struct range r = touched(p, n);
	uintptr_t at;
	page *s;

	for (at = r.first; (s = step(&r, &at)); at++) {
		if (atomic_load(s) & HELD)
			give_back(at);
		atomic_fetch_add(s, 1);
	}
}

void guard_unuse(const void *p, size_t n)
{
	struct range r = touched(p, n);
	uintptr_t at;
	page *s;

	for (at = r.first; (s = step(&r, &at)); at++)
		if (atomic_load(s) & USES)
			atomic_fetch_sub(s, 1);
}

uint32_t guard_hold(const void *p, size_t n, uint32_t not)
{
	struct range r = whole(p, n);
	uint32_t before = runs;

	while (on_read && step(&r, &r.first)) {
		r.first += take(r, not | GUARD_NEVER);
		if (r.first < r.end)
			r.first++;
	}
	return runs - before;
}

void guard_release(const void *p, size_t n) { give_back_all(whole(p, n)); }

void guard_released(uint32_t n) { runs -= n; }

/* ---- memory ---- */

bool guard_mark(const void *p, size_t n, uint32_t set)
{
	struct range r = touched(p, n);
	uintptr_t at;
	page *s;

	if (!make_tables(&r))
		return false;
	for (at = r.first; (s = step(&r, &at)); at++)
		atomic_fetch_or(s, set);
	return true;
}

/*
 * Forgets what a page is, and says what it was. Who is taking it, for a request of another thread,
 * is soon done: in the handler of a signal it may be this thread, which is not waited for for ever.
 */
static uint32_t forget(page *p)
{
	uint32_t s = atomic_load(p), tries = MOST_YIELDS;

	for (;;) {
		if (s & TAKING && tries) {
			tries--;
			sched_yield();
			s = atomic_load(p);
		} else if (atomic_compare_exchange_weak(p, &s, s & (USES | TAKING))) {
			return s;
		}
	}
}

void guard_forget(const void *p, size_t n)
{
	struct range r = touched(p, n);
	uintptr_t at;
	page *s;

	guard_open(p, n);
	r = whole(p, n);
	for (at = r.first; (s = step(&r, &at)); at++)
		if (forget(s) & HELD)
			make_open(at); /* a request has come meanwhile */
}

void guard_forget_pages(const void *p, size_t n)
{
	guard_forget(p, (n + page_size - 1) & ~(page_size - 1));
}

void guard_never(const void *p, size_t n)
{
	struct range r = touched(p, n);
	uintptr_t at;
	page *s;

	guard_open(p, n);
	for (at = r.first; (s = step(&r, &at)); at++)
		atomic_fetch_or(s, GUARD_NEVER);
}

void guard_touch(const void *p, size_t n, bool reads)
{
	struct range r = touched(p, n);
	uintptr_t at;
	page *s;

	for (at = r.first; (s = step(&r, &at)); at++)
		if (atomic_load(s) & HELD && give_back(at) && reads)
			on_read(at == r.first ? (uintptr_t)p : at << page_shift, NULL);
}

void guard_open(const void *p, size_t n) { guard_touch(p, n, false); }

void guard_start(void (*f)(uintptr_t addr, const void *pc)) { on_read = f; }
