// Two MPI ranks exchange checked data by the calls that programs use most: send and receive of many sizes, with a
// receive from anybody, non-blocking pairs, reductions, an all-to-all, and one-sided put and get. Prints "checked".
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>

static int rank, ranks;

static void must(int true, const char *what)
{
    if (!true) {
        fprintf(stderr, "rank %d: wrong: %s\n", rank, what);
        MPI_Abort(MPI_COMM_WORLD, 1);
    }
}

static unsigned char byte_of(int from, int size, int i)
{
    return (unsigned char)(from * 131 + size * 7 + i * 13 + (i >> 8));
}

static void fill(unsigned char *buffer, int from, int size)
{
    for (int i = 0; i < size; i++)
        buffer[i] = byte_of(from, size, i);
}

static void check(const unsigned char *buffer, int from, int size, const char *what)
{
    for (int i = 0; i < size; i++)
        must(buffer[i] == byte_of(from, size, i), what);
}

static void point_to_point(int peer, int size)
{
    unsigned char *out = malloc(size + 1), *in = malloc(size + 1);
    MPI_Status status;
    int count;
    fill(out, rank, size);
    MPI_Sendrecv(out, size, MPI_BYTE, peer, 1, in, size, MPI_BYTE, MPI_ANY_SOURCE, 1, MPI_COMM_WORLD, &status);
    MPI_Get_count(&status, MPI_BYTE, &count);
    must(count == size && status.MPI_SOURCE == peer, "status");
    check(in, peer, size, "sendrecv");

    MPI_Request requests[2];
    MPI_Irecv(in, size, MPI_BYTE, peer, 2, MPI_COMM_WORLD, &requests[0]);
    MPI_Isend(out, size, MPI_BYTE, peer, 2, MPI_COMM_WORLD, &requests[1]);
    MPI_Waitall(2, requests, MPI_STATUSES_IGNORE);
    check(in, peer, size, "isend");
    free(out);
    free(in);
}

static void collectives(void)
{
    long mine[64], sum[64];
    for (int i = 0; i < 64; i++)
        mine[i] = rank * 1000 + i;
    MPI_Allreduce(mine, sum, 64, MPI_LONG, MPI_SUM, MPI_COMM_WORLD);
    for (int i = 0; i < 64; i++)
        must(sum[i] == 1000L * ranks * (ranks - 1) / 2 + (long)ranks * i, "allreduce");
    int *out = malloc(ranks * sizeof *out), *in = malloc(ranks * sizeof *in);
    for (int i = 0; i < ranks; i++)
        out[i] = rank * 100 + i;
    MPI_Alltoall(out, 1, MPI_INT, in, 1, MPI_INT, MPI_COMM_WORLD);
    for (int i = 0; i < ranks; i++)
        must(in[i] == i * 100 + rank, "alltoall");
    free(out);
    free(in);
}

static void one_sided(int peer)
{
    enum { N = 4096 };
    int *memory, got[N], put[N];
    MPI_Win window;
    MPI_Win_allocate(2 * N * sizeof(int), sizeof(int), MPI_INFO_NULL, MPI_COMM_WORLD, &memory, &window);
    MPI_Win_fence(0, window);
    for (int i = 0; i < N; i++) {
        memory[i] = rank * N + i;
        put[i] = -(rank * N + i);
    }
    MPI_Win_fence(0, window);
    MPI_Get(got, N, MPI_INT, peer, 0, N, MPI_INT, window);
    MPI_Put(put, N, MPI_INT, peer, N, N, MPI_INT, window);
    MPI_Win_fence(0, window);
    for (int i = 0; i < N; i++)
        must(got[i] == peer * N + i && memory[N + i] == -(peer * N + i), "one-sided");
    MPI_Win_free(&window);
}

int main(int argc, char **argv)
{
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    must(ranks == 2, "two ranks");
    static const int sizes[] = {0, 1, 64, 4096, 65536, 1 << 20};
    for (unsigned i = 0; i < sizeof sizes / sizeof *sizes; i++)
        point_to_point(1 - rank, sizes[i]);
    collectives();
    one_sided(1 - rank);
    MPI_Barrier(MPI_COMM_WORLD);
    if (rank == 0)
        printf("checked\n");
    MPI_Finalize();
    return 0;
}
