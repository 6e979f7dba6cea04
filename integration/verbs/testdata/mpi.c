/* Two processes send each other messages of growing length, and compare what has come. */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { ROUNDS = 50, LONGEST = 4 << 20 };

static char *want, *got;

static void check(int n, const char *what)
{
	if (!memcmp(want, got, n))
		return;
	printf("of %d octets %s has others\n", n, what);
	MPI_Abort(MPI_COMM_WORLD, 1);
}

static void fill(int n, int seed)
{
	for (int i = 0; i < n; i++)
		want[i] = (char)(i * 7 + seed);
}

static void play(int rank, int n)
{
	for (int i = 0; i < ROUNDS; i++) {
		fill(n, i);
		if (rank == 0)
			MPI_Send(want, n, MPI_CHAR, 1, i, MPI_COMM_WORLD);
		memset(got, 0, n);
		MPI_Recv(got, n, MPI_CHAR, !rank, i, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
		check(n, "what comes");
		if (rank == 1)
			MPI_Send(got, n, MPI_CHAR, 0, i, MPI_COMM_WORLD);
	}
}

int main(int argc, char **argv)
{
	int rank, size, sum;

	MPI_Init(&argc, &argv);
	MPI_Comm_rank(MPI_COMM_WORLD, &rank);
	MPI_Comm_size(MPI_COMM_WORLD, &size);
	printf("hello from %d of %d\n", rank, size);
	want = malloc(LONGEST);
	got = malloc(LONGEST);
	for (int n = 1; n <= LONGEST; n *= 8)
		play(rank, n);
	MPI_Allreduce(&(int){ rank + 1 }, &sum, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
	if (sum != size * (size + 1) / 2)
		MPI_Abort(MPI_COMM_WORLD, 1);
	MPI_Finalize();
	if (rank == 0)
		printf("all done\n");
	return 0;
}
