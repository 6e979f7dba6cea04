#include "keys.h"

/* Places at which a key can be. */
#define PROBES 8

bool vrnic_keys_open(const struct vrnic_map *m, struct vrnic_keys *k)
{
	uint32_t n = load_acquire(vrnic_word(m->mem, VRNIC_KEYS_SIZE));
	uint32_t off = load_acquire(vrnic_word(m->mem, VRNIC_KEYS_OFF));

	if (load_acquire(vrnic_word(m->mem, VRNIC_KEYS_MAGIC)) != VRNIC_MAGIC_KEYS || !n ||
	    (n & (n - 1)) || off % 64 || off > m->len || n > (m->len - off) / VRNIC_KEY_LEN)
		return false;
	k->entries = (char *)m->mem + off;
	k->mask = n - 1;
	k->gone = vrnic_word(m->mem, VRNIC_KEYS_GONE);
	return true;
}

static uint32_t load(char *e, size_t off)
{
	return atomic_load_explicit(vrnic_word(e, off), memory_order_relaxed);
}

static uint64_t load64(char *e, size_t off)
{
	return atomic_load_explicit((_Atomic uint64_t *)(e + off), memory_order_relaxed);
}

bool vrnic_keys_find(const struct vrnic_keys *k, const struct vrnic_want *w, uint32_t *mem,
		     uint64_t *offset)
{
	uint64_t addr, length, off;
	uint32_t i, qpn;
	char *e = NULL;

	for (i = 0; i < PROBES; i++) {
		e = k->entries + (size_t)(((w->key >> 8) + i) & k->mask) * VRNIC_KEY_LEN;
		if (load_acquire(vrnic_word(e, VRNIC_KEY_KEY)) == w->key)
			break;
	}
	if (i == PROBES || !w->key)
		return false;
	qpn = load(e, VRNIC_KEY_QPN);
	addr = load64(e, VRNIC_KEY_ADDR);
	length = load64(e, VRNIC_KEY_LENGTH);
	off = w->addr - addr;
	if (!(load(e, VRNIC_KEY_ACCESS) & w->right) || (qpn && qpn != w->qpn) || w->addr < addr ||
	    off > length || w->length > length - off)
		return false;
	*mem = load(e, VRNIC_KEY_MEM);
	*offset = load64(e, VRNIC_KEY_OFFSET) + off;
	return true;
}
