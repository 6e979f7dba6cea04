/*
 * The regions of the process by lkey, for messages that go through a slab: the daemon sees no key
 * of those. Sessions give out the same keys, so a region is found by its PD, too, which is of one
 * session.
 */
#include <errno.h>
#include <sys/mman.h>
#include <unistd.h>

#include "objects.h"

#ifndef MADV_POPULATE_READ /* since glibc 2.35 */
#define MADV_POPULATE_READ 22
#define MADV_POPULATE_WRITE 23
#endif

static pthread_rwlock_t lock = PTHREAD_RWLOCK_INITIALIZER;
static struct vrnic_table regions;
static atomic_uint changes; /* of the table and of what is in it; with the lock held to write */

/* A fork finds the table whole: a child that has a session of its own goes on in it. */
static void before_fork(void) { pthread_rwlock_rdlock(&lock); }
static void in_parent(void) { pthread_rwlock_unlock(&lock); }

static void in_child(void)
{
	pthread_rwlock_unlock(&lock);
	pthread_rwlock_init(&lock, NULL); /* other readers are not here */
}

void vrnic_regions_watch_forks(void) { pthread_atfork(before_fork, in_parent, in_child); }

static struct vrnic_mr *mr_of(struct vrnic_entry *e)
{
	return e ? container_of(e, struct vrnic_mr, entry) : NULL;
}

/* What queues remember is old. */
static void changed(void)
{
	atomic_store_explicit(&changes, atomic_load_explicit(&changes, memory_order_relaxed) + 1,
			      memory_order_release);
}

void vrnic_region_add(struct vrnic_mr *mr)
{
	pthread_rwlock_wrlock(&lock);
	changed();
	vrnic_table_add(&regions, &mr->entry, mr->mr.lkey);
	pthread_rwlock_unlock(&lock);
}

void vrnic_region_remove(struct vrnic_mr *mr)
{
	pthread_rwlock_wrlock(&lock);
	changed();
	vrnic_table_remove(&regions, &mr->entry);
	pthread_rwlock_unlock(&lock);
}

/* Whether n octets at addr, as the program counts, are in what begins at iova. */
static bool holds(uint64_t iova, uint64_t length, const struct ibv_sge *sge)
{
	uint64_t off = sge->addr - iova;

	return sge->addr >= iova && off <= length && sge->length <= length - off;
}

/* The region that an SGE lies in, or NULL: with the lock held. */
static struct vrnic_mr *region_of(struct ibv_pd *pd, const struct ibv_sge *sge)
{
	struct vrnic_entry *e = vrnic_table_find(&regions, sge->lkey);
	struct vrnic_mr *mr;

	while (e && !vrnic_same_pd(mr_of(e)->mr.pd, pd))
		e = vrnic_table_again(e);
	mr = mr_of(e);
	return mr && !mr->revoked && holds(mr->iova, mr->mr.length, sge) ? mr : NULL;
}

static char *octets(const struct vrnic_mr *mr, const struct ibv_sge *sge)
{
	return (char *)mr->mr.addr + (sge->addr - mr->iova);
}

/* With the lock held. */
static void remember(struct vrnic_region *r, const struct vrnic_mr *mr)
{
	*r = (struct vrnic_region){
		.pd = to_vpd(mr->mr.pd)->is,
		.changes = atomic_load_explicit(&changes, memory_order_relaxed),
		.lkey = mr->mr.lkey,
		.access = mr->access,
		.shared = mr->area,
		.iova = mr->iova,
		.length = mr->mr.length,
		.at = mr->mr.addr,
	};
}

/* Whether it has what the table has for an SGE. */
static inline bool remembers(const struct vrnic_region *r, struct ibv_pd *pd,
			     const struct ibv_sge *sge)
{
	return r->lkey == sge->lkey && r->pd == to_vpd(pd)->is && holds(r->iova, r->length, sge) &&
	       r->changes == load_acquire(&changes);
}

enum use { READ, READ_PRIVATE, WRITE };

static bool allows(const struct vrnic_region *r, enum use use)
{
	return use == WRITE ? r->access & IBV_ACCESS_LOCAL_WRITE : use == READ || !r->shared;
}

/* Has r be the region of an SGE: false if it is in none. */
static __attribute__((noinline)) bool find(struct vrnic_region *r, struct ibv_pd *pd,
					   const struct ibv_sge *sge)
{
	struct vrnic_mr *mr;

	pthread_rwlock_rdlock(&lock);
	mr = region_of(pd, sge);
	if (mr)
		remember(r, mr);
	pthread_rwlock_unlock(&lock);
	return mr;
}

static bool sges_at(struct vrnic_region *r, struct ibv_pd *pd, const struct ibv_sge *sge, int n,
		    enum use use, struct iovec *iov)
{
	int i;

	for (i = 0; i < n; i++) {
		iov[i].iov_base = NULL;
		iov[i].iov_len = sge[i].length;
		if (!sge[i].length)
			continue;
		if ((unlikely(!remembers(r, pd, &sge[i])) && !find(r, pd, &sge[i])) || !allows(r, use))
			return false;
		iov[i].iov_base = r->at + (sge[i].addr - r->iova);
	}
	return true;
}

bool vrnic_sges_local(struct vrnic_region *r, struct ibv_pd *pd, const struct ibv_sge *sge, int n,
		      bool write, struct iovec *iov)
{
	return sges_at(r, pd, sge, n, write ? WRITE : READ_PRIVATE, iov);
}

bool vrnic_sges_readable(struct vrnic_region *r, struct ibv_pd *pd, const struct ibv_sge *sge,
			 int n, struct iovec *iov)
{
	return sges_at(r, pd, sge, n, READ, iov);
}

/* Has the pages there that hold n octets at p: 0 or an errno. Kernels before 5.14 cannot. */
static int fetch(char *p, uint32_t n, bool write)
{
	uintptr_t page = sysconf(_SC_PAGESIZE), begin = (uintptr_t)p & ~(page - 1);

	if (!madvise((void *)begin, (uintptr_t)p + n - begin,
		     write ? MADV_POPULATE_WRITE : MADV_POPULATE_READ) || errno == EINVAL)
		return 0;
	return errno == EAGAIN ? EAGAIN : EFAULT;
}

/*
 * All advice is about memory that the daemon finds by itself when a message comes, page by page. It
 * is followed at once: with IBV_ADVISE_MR_FLAG_FLUSH the program waits for that anyway.
 */
int vrnic_advise_mr(struct ibv_pd *pd, enum ibv_advise_mr_advice advice, uint32_t flags,
		    struct ibv_sge *sge, uint32_t n)
{
	bool write = advice == IBV_ADVISE_MR_ADVICE_PREFETCH_WRITE;
	struct vrnic_mr *mr;
	uint32_t i;
	char *p;
	int err = 0;

	if (advice > IBV_ADVISE_MR_ADVICE_PREFETCH_NO_FAULT)
		return ENOTSUP;
	if ((flags & ~(uint32_t)IBV_ADVISE_MR_FLAG_FLUSH) || !n)
		return EINVAL;
	for (i = 0; i < n && !err; i++) {
		pthread_rwlock_rdlock(&lock);
		mr = region_of(pd, &sge[i]);
		if (mr && write && !(mr->access & IBV_ACCESS_LOCAL_WRITE))
			mr = NULL;
		p = mr ? octets(mr, &sge[i]) : NULL;
		pthread_rwlock_unlock(&lock);
		if (!mr)
			err = EFAULT;
		else if (sge[i].length && advice != IBV_ADVISE_MR_ADVICE_PREFETCH_NO_FAULT)
			err = fetch(p, sge[i].length, write);
	}
	return err;
}

void vrnic_mr_revoked(struct vrnic_session *s, uint32_t key)
{
	struct vrnic_entry *e;

	pthread_rwlock_wrlock(&lock);
	changed();
	for (e = vrnic_table_find(&regions, key); e; e = vrnic_table_again(e))
		if (mr_of(e)->s == s)
			mr_of(e)->revoked = true;
	pthread_rwlock_unlock(&lock);
}
