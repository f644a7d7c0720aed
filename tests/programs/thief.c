/*
 * thief DEVICE: opens the device, makes every event descriptor that it was given blocking, and reads from each in a loop, so
 * that no other reader of a shared descriptor would get an event. Prints "ready" and runs until it is killed.
 */
#include "check.h"

#include <dirent.h>
#include <fcntl.h>
#include <infiniband/verbs.h>
#include <pthread.h>
#include <stdint.h>
#include <unistd.h>

static void *steal(void *fd)
{
	uint64_t count;

	for (;;)
		if (read((int)(intptr_t)fd, &count, sizeof(count)) < 0)
			sleep(1);
	return NULL;
}

static struct ibv_context *open_device(const char *name)
{
	int devices;
	struct ibv_device **list = ibv_get_device_list(&devices);

	for (int i = 0; list && i < devices; i++)
		if (!strcmp(ibv_get_device_name(list[i]), name))
			return ibv_open_device(list[i]);
	return NULL;
}

int main(int argc, char **argv)
{
	char path[64], what[64];
	int found = 0;
	pthread_t thread;

	CHECK(argc == 2 && open_device(argv[1]));
	for (int fd = 3; fd < 256; fd++) {
		snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
		ssize_t length = readlink(path, what, sizeof(what) - 1);

		if (length < 0)
			continue;
		what[length] = '\0';
		if (strcmp(what, "anon_inode:[eventfd]"))
			continue;
		CHECK(!fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) & ~O_NONBLOCK));
		CHECK(!pthread_create(&thread, NULL, steal, (void *)(intptr_t)fd));
		found++;
	}
	CHECK(found);
	printf("ready %d\n", found);
	fflush(stdout);
	for (;;)
		pause();
}
