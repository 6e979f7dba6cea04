/*
 * A program that loads the library when it runs, as one does whose modules use it: Python's, UCX's.
 * It unloads it, and loads it again, some times, which takes no descriptors.
 */
#include <dlfcn.h>
#include <stdio.h>
#include <unistd.h>

static int descriptors(void)
{
	int n = 0;

	for (int fd = 0; fd < 1024; fd++) {
		int copy = dup(fd);

		n += copy >= 0;
		close(copy);
	}
	return n;
}

int main(void)
{
	int n = 0, first = 0;

	for (int round = 0; round < 10; round++) {
		void *lib = dlopen("libibverbs.so.1", RTLD_NOW);
		void *(*devices)(int *n) = lib ? dlsym(lib, "ibv_get_device_list") : NULL;
		void (*release)(void *) = lib ? dlsym(lib, "ibv_free_device_list") : NULL;
		void *list;

		if (!devices || !release) {
			fprintf(stderr, "%s\n", dlerror());
			return 1;
		}
		list = devices(&n);
		if (list)
			release(list);
		dlclose(lib);
		if (!round)
			first = descriptors();
	}
	printf("%d devices\n%d descriptors more\n", n, descriptors() - first);
	return 0;
}
