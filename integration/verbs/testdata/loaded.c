/*
 * A program that loads the library when it runs, as one does whose modules use it: Python's, UCX's.
 */
#include <dlfcn.h>
#include <stdio.h>

int main(void)
{
	void *lib = dlopen("libibverbs.so.1", RTLD_NOW);
	void *(*devices)(int *n) = lib ? dlsym(lib, "ibv_get_device_list") : NULL;
	if (!devices) {
		fprintf(stderr, "%s\n", dlerror());
		return 1;
	}
	int n = 0;
	devices(&n);
	printf("%d devices\n", n);
	return 0;
}
