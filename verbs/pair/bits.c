#include "bits.h"

bool vrnic_bits_ask(struct vrnic_session *s, uint32_t qp, uint16_t op, struct vrnic_map *m,
		    struct vrnic_bits *bits)
{
	struct vrnic_handle_request req = { .handle = qp };
	int fd;

	if (vrnic_rpc(s, op, &req, sizeof(req), NULL, 0, -1, &fd, 1) ||
	    vrnic_map_fd(s, fd, VRNIC_BITS_HEADER_LEN + VRNIC_MAX_BITS / 8, m))
		return false;
	/* What is written there is any peer's: of where the words are it says nothing. */
	bits->words = vrnic_word(m->mem, VRNIC_BITS_HEADER_LEN);
	bits->want = vrnic_word(m->mem, VRNIC_BITS_WANT);
	return true;
}
