/*
 * The regions of the process by lkey, for messages that go through a slab: the daemon sees no key
 * of those. Sessions give out the same keys, so a region is found by its PD, too, which is of one
 * session.
 */
#include "objects.h"

static pthread_rwlock_t lock = PTHREAD_RWLOCK_INITIALIZER;
static struct vrnic_table regions;

/* A fork finds the table whole: a child that has a session of its own goes on in it. */
static void before_fork(void) { pthread_rwlock_rdlock(&lock); }
static void in_parent(void) { pthread_rwlock_unlock(&lock); }

static void in_child(void)
{
	pthread_rwlock_unlock(&lock);
	pthread_rwlock_init(&lock, NULL); /* other readers are not here */
}

__attribute__((constructor)) static void watch_forks(void)
{
	pthread_atfork(before_fork, in_parent, in_child);
}

static struct vrnic_mr *mr_of(struct vrnic_entry *e)
{
	return e ? container_of(e, struct vrnic_mr, entry) : NULL;
}

void vrnic_region_add(struct vrnic_mr *mr)
{
	pthread_rwlock_wrlock(&lock);
	vrnic_table_add(&regions, &mr->entry, mr->mr.lkey);
	pthread_rwlock_unlock(&lock);
}

void vrnic_region_remove(struct vrnic_mr *mr)
{
	pthread_rwlock_wrlock(&lock);
	vrnic_table_remove(&regions, &mr->entry);
	pthread_rwlock_unlock(&lock);
}

/* Where the octets of an SGE are, or NULL: with the lock held. */
static void *sge_at(struct ibv_pd *pd, const struct ibv_sge *sge, bool write)
{
	struct vrnic_entry *e = vrnic_table_find(&regions, sge->lkey);
	struct vrnic_mr *mr;
	uint64_t off;

	while (e && mr_of(e)->mr.pd != pd)
		e = vrnic_table_again(e);
	mr = mr_of(e);
	if (!mr || mr->revoked)
		return NULL;
	if (write ? !(mr->access & IBV_ACCESS_LOCAL_WRITE) : mr->area != NULL)
		return NULL;
	off = sge->addr - mr->iova;
	if (sge->addr < mr->iova || off > mr->mr.length || sge->length > mr->mr.length - off)
		return NULL;
	return (char *)mr->mr.addr + off;
}

bool vrnic_sges_local(struct ibv_pd *pd, const struct ibv_sge *sge, int n, bool write,
		      struct iovec *iov)
{
	bool ok = true;
	int i;

	pthread_rwlock_rdlock(&lock);
	for (i = 0; i < n && ok; i++) {
		iov[i].iov_base = NULL;
		iov[i].iov_len = sge[i].length;
		if (sge[i].length) {
			iov[i].iov_base = sge_at(pd, &sge[i], write);
			ok = iov[i].iov_base != NULL;
		}
	}
	pthread_rwlock_unlock(&lock);
	return ok;
}

void vrnic_mr_revoked(struct vrnic_session *s, uint32_t key)
{
	struct vrnic_entry *e;

	pthread_rwlock_wrlock(&lock);
	for (e = vrnic_table_find(&regions, key); e; e = vrnic_table_again(e))
		if (mr_of(e)->s == s)
			mr_of(e)->revoked = true;
	pthread_rwlock_unlock(&lock);
}
