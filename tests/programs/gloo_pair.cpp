// One rank of two that exchange buffers by Gloo's transport ibverbs; the ranks meet in a folder.
// usage: gloo_pair FOLDER RANK GID-INDEX
//
// Gloo's transport has one completion channel per device, which lives longer than the queues of each context: contexts are made and
// destroyed again and again, so that an event left by a destroyed queue would reach the next context. Every send is waited for before its
// buffer goes, which Gloo's collective operations do not do.

#include <cstdio>
#include <cstdlib>
#include <gloo/rendezvous/context.h>
#include <gloo/rendezvous/file_store.h>
#include <gloo/rendezvous/prefix_store.h>
#include <gloo/transport/ibverbs/device.h>
#include <string>
#include <vector>

static void check(bool right, const char *what)
{
	if (!right) {
		fprintf(stderr, "gloo_pair: %s\n", what);
		exit(1);
	}
}

static void exchange(gloo::transport::Pair &pair, int rank, int slot, size_t count)
{
	std::vector<unsigned> out(count), in(count);
	auto sender = pair.createSendBuffer(slot, out.data(), count * sizeof(unsigned));
	auto receiver = pair.createRecvBuffer(slot, in.data(), count * sizeof(unsigned));
	for (unsigned turn = 0; turn < 20; turn++) {
		for (size_t i = 0; i < count; i++)
			out[i] = unsigned(rank) << 31 | (turn * 7919 + unsigned(i));
		// Rank 1 answers: so no buffer is overwritten before it was read.
		if (rank == 0) {
			sender->send();
			sender->waitSend();
		}
		receiver->waitRecv();
		for (size_t i = 0; i < count; i++)
			check(in[i] == (unsigned(!rank) << 31 | (turn * 7919 + unsigned(i))), "a value is wrong");
		if (rank == 1) {
			sender->send();
			sender->waitSend();
		}
	}
}

int main(int argc, char **argv)
{
	check(argc == 4, "usage: gloo_pair FOLDER RANK GID-INDEX");
	int rank = atoi(argv[2]);
	auto device = gloo::transport::ibverbs::CreateDevice({"burst0", 1, atoi(argv[3])});
	gloo::rendezvous::FileStore files(argv[1]);
	for (int turn = 0; turn < 20; turn++) {
		auto context = std::make_shared<gloo::rendezvous::Context>(rank, 2);
		gloo::rendezvous::PrefixStore store(std::to_string(turn), files);
		context->connectFullMesh(store, device);
		int slot = 0;
		for (size_t count : {1, 1000, 250000})
			exchange(*context->getPair(!rank), rank, slot++, count);
	}
	puts("checked");
}
