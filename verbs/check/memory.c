/* Protection domains, regions and windows, and the memory that requests name. */
#include <string.h>

#include "check.h"
#include "guard/guard.h"

/* Regions that have been deregistered, the last ones. */
#define GRAVES 1024

static struct grave {
	struct object o; /* not in the book */
	const struct ibv_context *context;
	uint64_t iova;
	uint32_t rkey;
	struct site gone;
} graves[GRAVES];
static unsigned int buried;

/* ---- protection domains ---- */

static struct ibv_pd *add_pd(struct ibv_pd *pd, struct ibv_context *c, struct ibv_pd *of)
{
	struct object *o;
	struct site site;

	if (!pd)
		return NULL;
	site_take(&site);
	book_lock();
	o = book_add(KIND_PD, pd, sizeof(*o), &site);
	if (o) {
		o->internal = site_from_cm(&site);
		book_use(o, book_find(KIND_CONTEXT, c));
		book_use(o, of ? book_find(KIND_PD, of) : NULL);
	}
	book_unlock();
	return pd;
}

CHECK_EXPORT struct ibv_pd *ibv_alloc_pd(struct ibv_context *c)
{
	context_adopt(c);
	return add_pd(next()->ibv_alloc_pd(c), c, NULL);
}

struct ibv_pd *check_alloc_parent_domain(struct ibv_context *c,
					 struct ibv_parent_domain_init_attr *attr)
{
	return add_pd(context_next.v.alloc_parent_domain(c, attr), c, attr->pd);
}

CHECK_EXPORT int ibv_dealloc_pd(struct ibv_pd *pd)
{
	struct object *o;
	struct site site;
	int err;

	site_take(&site);
	book_lock();
	o = book_find(KIND_PD, pd);
	book_unlock();
	err = next()->ibv_dealloc_pd(pd);
	book_lock();
	if (o && err)
		destroy_tell("busy", "ibv_dealloc_pd", o, &site);
	else if (o)
		book_remove(o);
	book_unlock();
	return err;
}

struct object *memory_domain(struct ibv_pd *pd)
{
	struct object *o = book_find(KIND_PD, pd);
	int i;

	for (i = 0; o && i < OBJECT_USES; i++)
		if (o->uses[i] && o->uses[i]->kind == KIND_PD)
			return o->uses[i];
	return o;
}

/* ---- regions ---- */

static void set_region(struct mr *m, struct ibv_mr *mr, uint64_t iova, int access)
{
	m->addr = mr->addr;
	m->o.octets = mr->length;
	m->iova = iova;
	m->access = access;
	m->rkey = mr->rkey;
	book_set_number(&m->o, mr->lkey);
}

static void follow_memory(struct ibv_mr *mr, int access)
{
	memory_watch(mr->addr, mr->length);
	early_region(mr, access);
}

static struct ibv_mr *add_region(struct ibv_pd *pd, struct ibv_mr *mr, uint64_t iova, int access)
{
	struct site site;
	struct mr *m;

	if (!mr)
		return NULL;
	site_take(&site);
	book_lock();
	m = book_add(KIND_MR, mr, sizeof(*m), &site);
	if (m) {
		m->o.internal = site_from_cm(&site);
		book_use(&m->o, book_find(KIND_PD, pd));
		m->context = mr->context;
		set_region(m, mr, iova, access);
		rights_given(&m->o, access);
		follow_memory(mr, access);
	}
	book_unlock();
	return mr;
}

static uint64_t own_iova(void *addr, int access)
{
	return access & IBV_ACCESS_ZERO_BASED ? 0 : (uintptr_t)addr;
}

CHECK_EXPORT struct ibv_mr *ibv_reg_mr(struct ibv_pd *pd, void *addr, size_t length, int access)
{
	guard_open(addr, length); /* so that it is found to be there */
	return add_region(pd, next()->ibv_reg_mr(pd, addr, length, access), own_iova(addr, access),
			  access);
}

CHECK_EXPORT struct ibv_mr *ibv_reg_mr_iova(struct ibv_pd *pd, void *addr, size_t length,
					    uint64_t iova, int access)
{
	guard_open(addr, length);
	return add_region(pd, next()->ibv_reg_mr_iova(pd, addr, length, iova, access), iova, access);
}

/* What ibv_reg_mr is in programs of today. */
CHECK_EXPORT struct ibv_mr *ibv_reg_mr_iova2(struct ibv_pd *pd, void *addr, size_t length,
					     uint64_t iova, unsigned int access)
{
	guard_open(addr, length);
	return add_region(pd, next()->ibv_reg_mr_iova2(pd, addr, length, iova, access), iova,
			  (int)access);
}

static void bury(const struct mr *m, const struct site *site)
{
	struct grave *g = &graves[buried++ % GRAVES];

	g->o = m->o;
	g->context = m->context;
	g->iova = m->iova;
	g->rkey = m->rkey;
	g->gone = *site;
}

CHECK_EXPORT int ibv_rereg_mr(struct ibv_mr *mr, int flags, struct ibv_pd *pd, void *addr,
			      size_t length, int access)
{
	struct site site;
	struct mr *m;
	int err, i;

	guard_open(mr->addr, mr->length);
	if (flags & IBV_REREG_MR_CHANGE_TRANSLATION)
		guard_open(addr, length);
	err = next()->ibv_rereg_mr(mr, flags, pd, addr, length, access);
	site_take(&site);
	book_lock();
	m = err ? NULL : book_find(KIND_MR, mr);
	if (m && m->o.number != mr->lkey)
		bury(m, &site);
	if (m) {
		set_region(m, mr, flags & IBV_REREG_MR_CHANGE_TRANSLATION ? (uintptr_t)addr : m->iova,
			   flags & IBV_REREG_MR_CHANGE_ACCESS ? access : m->access);
		for (i = 0; i < OBJECT_USES && (flags & IBV_REREG_MR_CHANGE_PD); i++)
			m->o.uses[i] = i ? NULL : book_find(KIND_PD, pd);
		follow_memory(mr, m->access);
	}
	book_unlock();
	return err;
}

struct in_use {
	const struct mr *m;
	struct post *post;
};

static void find_use(struct object *o, void *arg)
{
	struct qp *qp = container_of(o, struct qp, o);
	struct in_use *u = arg;
	struct queue *queues[] = { &qp->sq, &qp->rq };
	struct post *p;
	int i, k;

	if (qp->ended || o->generation != book_generation())
		return;
	for (k = qp->sends_end; k < 2; k++)
		for (p = queues[k]->head; p && !u->post; p = p->next)
			for (i = 0; i < p->nsge; i++)
				if (p->octets[i] && p->sge[i].lkey == u->m->o.number &&
				    u->m->o.uses[0] == memory_domain(qp->pd))
					u->post = p;
}

/* Requests that the device may still be at. */
static void tell_use(const struct mr *m, const struct site *site)
{
	struct in_use u = { .m = m };
	struct report r;

	book_each(KIND_QP, find_use, &u);
	if (!u.post || !report_begin(&r, "deregistered-in-use", site))
		return;
	report_site(&r, "here", site);
	report_object(&r, "made", &m->o);
	report_site(&r, "post", &u.post->site);
	report_send(&r);
}

CHECK_EXPORT int ibv_dereg_mr(struct ibv_mr *mr)
{
	struct site site;
	struct mr *m;
	int err;

	site_take(&site);
	book_lock();
	early_tell();
	m = book_find(KIND_MR, mr);
	if (m)
		tell_use(m, &site);
	book_unlock();
	guard_open(mr->addr, mr->length);
	err = next()->ibv_dereg_mr(mr);
	book_lock();
	if (m && err) {
		destroy_tell("busy", "ibv_dereg_mr", &m->o, &site);
	} else if (m) {
		bury(m, &site);
		book_remove(&m->o);
	}
	book_unlock();
	return err;
}

/* ---- windows ---- */

struct ibv_mw *check_alloc_mw(struct ibv_pd *pd, enum ibv_mw_type type)
{
	struct ibv_mw *mw = context_next.ops.alloc_mw(pd, type);
	struct object *o;
	struct site site;

	if (!mw)
		return NULL;
	site_take(&site);
	book_lock();
	o = book_add(KIND_MW, mw, sizeof(*o), &site);
	if (o) {
		o->number = mw->rkey;
		book_use(o, book_find(KIND_PD, pd));
	}
	book_unlock();
	return mw;
}

int check_dealloc_mw(struct ibv_mw *mw)
{
	struct object *o;
	int err;

	book_lock();
	o = book_find(KIND_MW, mw);
	book_unlock();
	err = context_next.ops.dealloc_mw(mw);
	book_lock();
	if (o && !err)
		book_remove(o);
	book_unlock();
	return err;
}

/* ---- what requests name ---- */

static void tell(const char *what, const struct ibv_sge *sge, const struct site *site,
		 const struct object *qp, const struct object *mr, uint64_t begin,
		 const struct site *gone)
{
	struct report r;

	if (!report_begin(&r, what, site))
		return;
	report_number(&r, "lkey", sge->lkey);
	report_number(&r, "addr", sge->addr);
	report_number(&r, "length", sge->length);
	report_number(&r, "begin", begin);
	report_site(&r, "post", site);
	report_object(&r, "qp", qp);
	if (mr)
		report_object(&r, "made", mr);
	if (gone)
		report_site(&r, "gone", gone);
	report_send(&r);
}

/* A key that no region has: it had one, or its octets are the wrong way round. */
static void tell_no_region(const struct ibv_sge *sge, const struct site *site,
			   const struct object *qp)
{
	struct object *other = book_number(KIND_MR, __builtin_bswap32(sge->lkey), NULL);
	unsigned int i;

	for (i = 0; i < GRAVES && i < buried; i++) {
		const struct grave *g = &graves[(buried - 1 - i) % GRAVES];

		if (g->o.number == sge->lkey && g->o.generation == book_generation()) {
			tell("dead-key", sge, site, qp, &g->o, g->iova, &g->gone);
			return;
		}
	}
	if (other)
		tell("swapped-key", sge, site, qp, other, 0, NULL);
}

static struct mr *region(struct object *domain, uint32_t lkey, struct mr **other)
{
	struct object *o = NULL;

	*other = NULL;
	while ((o = book_number(KIND_MR, lkey, o))) {
		struct mr *m = container_of(o, struct mr, o);

		if (o->uses[0] && (o->uses[0] == domain ||
				   memory_domain(o->uses[0]->at) == domain))
			return m;
		/* sessions have the same keys, so it has to be of the same device */
		if (o->uses[0] && domain && o->uses[0]->uses[0] == domain->uses[0])
			*other = m;
	}
	return NULL;
}

const char *memory_check(struct ibv_pd *pd, const struct ibv_sge *sge, enum use use,
			 const struct site *site, const struct object *qp)
{
	struct object *domain = memory_domain(pd);
	struct mr *other, *m;
	uint64_t off;

	if (!domain || !sge->length)
		return NULL;
	m = region(domain, sge->lkey, &other);
	if (!m) {
		if (other)
			tell("other-domain", sge, site, qp, &other->o, other->iova, NULL);
		else
			tell_no_region(sge, site, qp);
		return NULL;
	}
	off = sge->addr - m->iova;
	if (sge->addr < m->iova || off > m->o.octets || sge->length > m->o.octets - off) {
		if (__builtin_bswap64(sge->addr) - m->iova < m->o.octets)
			tell("swapped-address", sge, site, qp, &m->o, m->iova, NULL);
		else
			tell("outside", sge, site, qp, &m->o, m->iova, NULL);
		return NULL;
	}
	if (use == USE_WRITE && !(m->access & IBV_ACCESS_LOCAL_WRITE))
		tell("not-writable", sge, site, qp, &m->o, m->iova, NULL);
	if (m->lost || m->o.generation != book_generation())
		return NULL;
	return m->addr + off;
}

/* Another session's region may have the key of one that has gone. */
bool memory_readable(uint32_t lkey, const char *octets, size_t n)
{
	struct object *o = NULL;

	while ((o = book_number(KIND_MR, lkey, o))) {
		const struct mr *m = container_of(o, struct mr, o);
		size_t off = (uintptr_t)octets - (uintptr_t)m->addr;

		if (!m->lost && o->generation == book_generation() && off <= o->octets &&
		    n <= o->octets - off)
			return true;
	}
	return false;
}

/* ---- what peers have asked for; a context of NULL is any ---- */

static const struct grave *find_grave(const struct ibv_context *context, uint32_t rkey)
{
	const struct grave *g;
	unsigned int i;

	for (i = 0; i < GRAVES && i < buried; i++) {
		g = &graves[(buried - 1 - i) % GRAVES];
		if (g->rkey == rkey && (!context || g->context == context) &&
		    g->o.generation == book_generation())
			return g;
	}
	return NULL;
}

struct owner {
	const struct ibv_context *context;
	uint32_t rkey;
	const struct mr *m;
};

static void match_rkey(struct object *o, void *arg)
{
	const struct mr *m = container_of(o, struct mr, o);
	struct owner *w = arg;

	if (m->rkey == w->rkey && (!w->context || m->context == w->context) &&
	    o->generation == book_generation())
		w->m = m;
}

static const struct mr *find_rkey(const struct ibv_context *context, uint32_t rkey)
{
	struct owner w = { context, rkey, NULL };

	book_each(KIND_MR, match_rkey, &w);
	return w.m;
}

bool memory_is_own(uint32_t rkey)
{
	return find_rkey(NULL, rkey) || find_grave(NULL, rkey);
}

static void tell_refused(const char *what, const struct qp *qp, const struct qp_counts *c,
			 const struct object *mr, uint64_t begin, const struct site *gone)
{
	struct report r;

	if (!report_begin(&r, what, gone ? gone : &mr->made))
		return;
	report_text(&r, "use", c->use);
	report_number(&r, "rkey", c->rkey);
	report_number(&r, "addr", c->addr);
	report_number(&r, "length", c->octets);
	report_number(&r, "begin", begin);
	if (gone)
		report_site(&r, "gone", gone);
	report_object(&r, "made", mr);
	report_object(&r, "qp", &qp->o);
	report_send(&r);
}

/* By now the region may have gone that was there then. */
void memory_refused(const struct qp *qp, const struct qp_counts *c)
{
	static const struct {
		const char *why, *what;
	} facts[] = {
		{ "stranger", "stranger" }, { "no-right", "no-right" }, { "outside", "peer-outside" },
	};
	const struct mr *m = find_rkey(qp->context, c->rkey);
	const struct grave *g = find_grave(qp->context, c->rkey);
	size_t i;

	if (g && !strcmp(c->why, "no-region"))
		tell_refused("dead-rkey", qp, c, &g->o, g->iova, &g->gone);
	for (i = 0; i < sizeof(facts) / sizeof(facts[0]); i++) {
		if (strcmp(c->why, facts[i].why))
			continue;
		if (m)
			tell_refused(facts[i].what, qp, c, &m->o, m->iova, NULL);
		else if (g)
			tell_refused(facts[i].what, qp, c, &g->o, g->iova, NULL);
	}
}
