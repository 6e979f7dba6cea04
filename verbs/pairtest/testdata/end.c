/*
 * One end of the pair that descriptor 3 is, of side argv[1] and with argv[2] receives. It does what
 * it is told by lines of its standard input, each of a letter and up to three numbers, and answers
 * each with a line. pair_linux_test.go has the same in Go.
 */
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include "pair/pair.h"

static struct vrnic_pair_out out;
static struct vrnic_pair_in in;
static char echoed[1 << 16];

static void fill(char *b, uint32_t n, uint32_t seed)
{
	for (uint32_t k = 0; k < n; k++)
		b[k] = seed * 31 + k * 7;
}

static uint32_t sum(const char *b, uint32_t n)
{
	uint32_t s = n;

	for (uint32_t k = 0; k < n; k++)
		s = s * 131 + (uint8_t)b[k];
	return s;
}

static void send(uint32_t n, uint32_t seed, uint32_t flags)
{
	char *to = vrnic_pair_begin(&out, n);

	if (!to) {
		puts("no");
		return;
	}
	fill(to, n, seed);
	vrnic_pair_end(&out, n, flags & 1);
	printf("sent %d\n", vrnic_pair_wanted(&out, flags & 1, flags & 2));
}

static void take(uint32_t i)
{
	struct vrnic_pair_message m;

	if (!vrnic_pair_stamped(&in, i)) {
		puts("none");
	} else if (!vrnic_pair_message(&in, i, &m)) {
		puts("nonsense");
	} else {
		printf("%u octets %u\n", m.length, sum(m.from, m.length));
		vrnic_pair_taken(&in, &m);
	}
}

/* Sends back the messages of receives from first on, each with room for the next. */
static void echo(uint32_t first, uint32_t n)
{
	struct vrnic_pair_message m;
	uint32_t i;
	char *to;

	for (i = first; i != first + n; i++) {
		while (!vrnic_pair_stamped(&in, i))
			sched_yield();
		if (!vrnic_pair_message(&in, i, &m)) {
			puts("nonsense");
			return;
		}
		memcpy(echoed, m.from, m.length);
		vrnic_pair_taken(&in, &m);
		vrnic_pair_room(&in, i + in.mask + 1, sizeof(echoed));
		while (!(to = vrnic_pair_begin(&out, m.length)))
			sched_yield();
		memcpy(to, echoed, m.length);
		vrnic_pair_end(&out, m.length, false);
	}
	puts("done");
}

int main(int argc, char **argv)
{
	struct vrnic_map map;
	unsigned int a, b, c;
	struct stat st;
	char op;

	if (argc != 3 || fstat(3, &st))
		return 2;
	map.len = st.st_size;
	map.mem = mmap(NULL, map.len, PROT_READ | PROT_WRITE, MAP_SHARED, 3, 0);
	if (map.mem == MAP_FAILED || !vrnic_pair_open(&map, atoi(argv[1]), atoi(argv[2]), &out, &in))
		return 2;
	setvbuf(stdout, NULL, _IOLBF, 0);
	while (scanf(" %c %u %u %u", &op, &a, &b, &c) == 4) {
		switch (op) {
		case 's':
			send(a, b, c);
			break;
		case 'r':
			vrnic_pair_room(&in, a, b);
			puts("ok");
			break;
		case 't':
			take(a);
			break;
		case 'w':
			store_release(in.want, a);
			puts("ok");
			break;
		case 'x':
			vrnic_pair_spoil(&in);
			puts("ok");
			break;
		case 'o':
			printf("%d %d\n", vrnic_pair_is_open(&out), vrnic_pair_has_room(&out));
			break;
		case 'e':
			echo(a, b);
			break;
		default:
			return 2;
		}
	}
	return 0;
}
