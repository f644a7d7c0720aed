/*
 * reload LIBRARY DEVICE: loads the library, opens the device by it and closes both, repeatedly: in four threads at once, then in
 * a child, and in a grandchild whose parent had the device open. The program is not linked with libibverbs.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define THREADS 4
#define ROUNDS 25

static const char *library, *device;

static void must(int true, const char *what)
{
	if (!true) {
		const char *why = dlerror();

		fprintf(stderr, "wrong: %s%s%s\n", what, why ? ": " : "", why ? why : "");
		exit(1);
	}
}

static void *symbol(void *handle, const char *name)
{
	void *at = dlvsym(handle, name, "IBVERBS_1.1");

	must(!!at, name);
	return at;
}

static void round_trip(void)
{
	void *handle = dlopen(library, RTLD_NOW | RTLD_LOCAL);

	must(!!handle, "dlopen");
	void **(*list_of)(int *) = symbol(handle, "ibv_get_device_list");
	void (*free_list)(void **) = symbol(handle, "ibv_free_device_list");
	const char *(*name_of)(void *) = symbol(handle, "ibv_get_device_name");
	void *(*open_device)(void *) = symbol(handle, "ibv_open_device");
	int (*close_device)(void *) = symbol(handle, "ibv_close_device");
	void *(*alloc_pd)(void *) = symbol(handle, "ibv_alloc_pd");
	int (*dealloc_pd)(void *) = symbol(handle, "ibv_dealloc_pd");
	int count = 0;
	void **list = list_of(&count);

	must(list && count == 1 && !strcmp(name_of(list[0]), device), "the list of devices");
	void *context = open_device(list[0]);

	must(!!context, "ibv_open_device");
	free_list(list);
	void *pd = alloc_pd(context);

	must(pd && !dealloc_pd(pd) && !close_device(context), "a protection domain, and the end");
	must(!dlclose(handle), "dlclose");
}

static void *rounds(void *unused)
{
	for (int i = 0; i < ROUNDS; i++)
		round_trip();
	return unused;
}

static void in_child(void (*what)(void))
{
	int status;
	pid_t pid = fork();

	must(pid >= 0, "fork");
	if (!pid) {
		what();
		exit(0);
	}
	must(waitpid(pid, &status, 0) == pid && WIFEXITED(status) && !WEXITSTATUS(status), "a child");
}

static void child_with_child(void)
{
	round_trip();
	in_child(round_trip);
}

int main(int argc, char **argv)
{
	pthread_t threads[THREADS];

	must(argc == 3, "usage: reload LIBRARY DEVICE");
	library = argv[1];
	device = argv[2];
	/* First in a child of a process that has never loaded the library. */
	in_child(round_trip);
	for (int i = 0; i < THREADS; i++)
		must(!pthread_create(&threads[i], NULL, rounds, NULL), "pthread_create");
	/* Forks while threads load the library and open the device. */
	in_child(round_trip);
	for (int i = 0; i < THREADS; i++)
		must(!pthread_join(threads[i], NULL), "pthread_join");
	in_child(child_with_child);
	round_trip();
	printf("loaded and closed\n");
	return 0;
}
