/*
 * A program whose package brings a verbs library of its own, under a name of its own: the library with -DLIBRARY, the program
 * without. The program prints the devices that it finds.
 */
#ifdef LIBRARY
/* What such a copy finds on a host without RDMA hardware: nothing. */
#include <stddef.h>

void **ibv_get_device_list(int *count)
{
	static void *none;

	*count = 0;
	return &none;
}

const char *ibv_get_device_name(void *device)
{
	(void)device;
	return NULL;
}
#else
#include <stdio.h>

void **ibv_get_device_list(int *count);
const char *ibv_get_device_name(void *device);

int main(void)
{
	int count = 0;
	void **list = ibv_get_device_list(&count);

	for (int i = 0; i < count; i++)
		printf("%s\n", ibv_get_device_name(list[i]));
	printf("%d found\n", count);
	return 0;
}
#endif
