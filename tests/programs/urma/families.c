/* Asks libnl for the numbers of three families of generic netlink: the kernel's own, URMA's, and one that is not there. With LATE
 * libnl is loaded by dlopen for this program alone, so that its symbols are not among those of all. */
#include <dlfcn.h>
#include <netlink/genl/ctrl.h>
#include <netlink/genl/genl.h>
#include <stdio.h>

#ifdef LATE
static void *library;
#define CALL(name) ((__typeof__(&name))dlsym(library, #name))
/* What the linker binds is the first one of the name: liburma's. */
extern int genl_ctrl_resolve(struct nl_sock *, const char *);
#else
#define CALL(name) name
#endif

int main(void)
{
#ifdef LATE
	void *core = dlopen("libnl-3.so.200", RTLD_NOW | RTLD_LOCAL);

	library = dlopen("libnl-genl-3.so.200", RTLD_NOW | RTLD_LOCAL);
	if (!core || !library)
		return 1;
#endif
	struct nl_sock *socket = CALL(nl_socket_alloc)();

	if (!socket || CALL(genl_connect)(socket) < 0)
		return 2;
	printf("nlctrl %d\n", genl_ctrl_resolve(socket, "nlctrl"));
	printf("UBAGG_GENL %d\n", genl_ctrl_resolve(socket, "UBAGG_GENL"));
	printf("unknown %d\n", genl_ctrl_resolve(socket, "no such family"));
	return 0;
}
