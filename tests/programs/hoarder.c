/*
 * hoarder DEVICE: creates completion channels until one is refused, and closes its own descriptor of each, so that only the
 * daemon's descriptors are used up. Prints "ready COUNT ERRNO" and sleeps until it is killed.
 */
#include "check.h"

#include <infiniband/verbs.h>
#include <unistd.h>

int main(int argc, char **argv)
{
	int devices, count = 0;
	struct ibv_device **list = ibv_get_device_list(&devices);
	struct ibv_context *context = NULL;
	struct ibv_comp_channel *channel;

	for (int i = 0; argc == 2 && list && i < devices; i++)
		if (!strcmp(ibv_get_device_name(list[i]), argv[1]))
			context = ibv_open_device(list[i]);
	CHECK(context);
	while ((channel = ibv_create_comp_channel(context))) {
		close(channel->fd);
		count++;
	}
	printf("ready %d %d\n", count, errno);
	fflush(stdout);
	for (;;)
		pause();
}
