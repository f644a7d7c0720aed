// One rank of two that run Gloo's collective operations over its transport ibverbs, and check what they give; the ranks meet in a folder.
// usage: gloo_collectives FOLDER RANK GID-INDEX
//
// Gloo's algorithms do not wait for the completion of their last notification. If the completion is still to come when the algorithm is
// destroyed, Gloo throws "Destructing buffer expecting completions": the destructor of its buffers demands that no send is pending.
// Nothing that an algorithm waits for says that its own last SEND was acknowledged, because the notifications of two ranks cross. So each
// algorithm is kept until a later WRITE of the same queue pair has completed: completions of one queue pair come in order.
//
// Nor does a pair's destructor wait for the thread of Gloo's device, which may be handling an event of that pair: the program ends by SIGSEGV
// then, over the kernel's soft-RoCE, too. So contexts are kept to the end, and no destructor runs there.

#include <cstdio>
#include <cstdlib>
#include <functional>
#include <gloo/allreduce_halving_doubling.h>
#include <gloo/allreduce_ring.h>
#include <gloo/allreduce_ring_chunked.h>
#include <gloo/barrier_all_to_all.h>
#include <gloo/broadcast_one_to_all.h>
#include <gloo/rendezvous/context.h>
#include <gloo/rendezvous/file_store.h>
#include <gloo/rendezvous/prefix_store.h>
#include <gloo/transport/ibverbs/device.h>
#include <string>
#include <unistd.h>
#include <vector>

using Context = std::shared_ptr<gloo::rendezvous::Context>;
using Algorithm = std::unique_ptr<gloo::Algorithm>;
using Make = std::function<Algorithm(const Context &, const std::vector<float *> &, int)>;

static const int RUNS = 5, TURNS = 4;

static void check(bool right, const char *what)
{
	if (!right) {
		fprintf(stderr, "gloo_collectives: %s\n", what);
		exit(1);
	}
}

// Returns when all earlier sends to the other rank have completed, here and there.
static void complete(const Context &context, int rank)
{
	char out = 1, in = 0;
	int slot = context->nextSlot();
	auto &pair = context->getPair(!rank);
	auto sender = pair->createSendBuffer(slot, &out, 1), receiver = pair->createRecvBuffer(slot, &in, 1);

	sender->send();
	sender->waitSend();
	receiver->waitRecv();
}

static void run(const Context &context, int rank, const char *name, const Make &make, float expected)
{
	for (int count : {1, 1000, 250000}) {
		std::vector<float> data(count, float(rank + 1));
		Algorithm algorithm = make(context, {data.data()}, count);
		for (int i = 0; i < RUNS; i++)
			algorithm->run();
		for (float value : data)
			check(expected == 0 || value == expected, name);
		complete(context, rank);
	}
}

int main(int argc, char **argv)
{
	check(argc == 4, "usage: gloo_collectives FOLDER RANK GID-INDEX");
	int rank = atoi(argv[2]);
	auto device = gloo::transport::ibverbs::CreateDevice({"burst0", 1, atoi(argv[3])});
	gloo::rendezvous::FileStore files(argv[1]);
	std::vector<Context> kept;
	for (int turn = 0; turn < TURNS; turn++) {
		auto context = std::make_shared<gloo::rendezvous::Context>(rank, 2);
		kept.push_back(context);
		gloo::rendezvous::PrefixStore store(std::to_string(turn), files);
		context->connectFullMesh(store, device);
		// The first run sums 1 and 2, each later one twice the sum before.
		float sum = 3 << (RUNS - 1);
		run(context, rank, "AllreduceRing", [](const Context &c, const std::vector<float *> &data, int count) {
			return Algorithm(new gloo::AllreduceRing<float>(c, data, count));
		}, sum);
		run(context, rank, "AllreduceRingChunked", [](const Context &c, const std::vector<float *> &data, int count) {
			return Algorithm(new gloo::AllreduceRingChunked<float>(c, data, count));
		}, sum);
		run(context, rank, "AllreduceHalvingDoubling", [](const Context &c, const std::vector<float *> &data, int count) {
			return Algorithm(new gloo::AllreduceHalvingDoubling<float>(c, data, count));
		}, sum);
		run(context, rank, "BroadcastOneToAll", [](const Context &c, const std::vector<float *> &data, int count) {
			return Algorithm(new gloo::BroadcastOneToAll<float>(c, data, count));
		}, 1);
		run(context, rank, "BarrierAllToAll", [](const Context &c, const std::vector<float *> &, int) {
			return Algorithm(new gloo::BarrierAllToAll(c));
		}, 0);
	}
	// An engine in this program ends with it: the other rank's last sends need it until they have completed.
	files.set("ended" + std::to_string(rank), {1});
	files.wait({"ended" + std::to_string(!rank)});
	puts("checked");
	fflush(stdout);
	_exit(0);
}
