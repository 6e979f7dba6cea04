#include "bits.h"

bool vrnic_bits_open(const struct vrnic_map *m, struct vrnic_bits *bits)
{
	uint32_t n = load_acquire(vrnic_word(m->mem, VRNIC_BITS_SIZE));
	uint32_t off = load_acquire(vrnic_word(m->mem, VRNIC_BITS_OFF));

	if (load_acquire(vrnic_word(m->mem, VRNIC_BITS_MAGIC)) != VRNIC_MAGIC_BITS ||
	    n < VRNIC_MAX_BITS || n % 32 || off % 64 || off > m->len || n / 8 > m->len - off)
		return false;
	bits->words = vrnic_word(m->mem, off);
	bits->want = vrnic_word(m->mem, VRNIC_BITS_WANT);
	bits->n = n;
	return true;
}

bool vrnic_bits_ask(struct vrnic_session *s, uint32_t qp, uint16_t op, struct vrnic_map *m,
		    struct vrnic_bits *bits)
{
	struct vrnic_handle_request req = { .handle = qp };
	int fd;

	if (vrnic_rpc(s, op, &req, sizeof(req), NULL, 0, -1, &fd, 1) ||
	    vrnic_map_fd(s, fd, VRNIC_BITS_HEADER_LEN, m))
		return false;
	if (vrnic_bits_open(m, bits))
		return true;
	vrnic_corrupt(s, "a bitmap");
	vrnic_unmap(m);
	return false;
}
