/*
 * versions look-up FILE: dlvsym finds each of its words LIB NAME VERSION ...
 * versions refusals: what is not served says so as its manual page has it.
 */
#include <dlfcn.h>
#include <errno.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#define IBV "libibverbs.so.1"
#define CM "librdmacm.so.1"

static int failed;

static void *find(const char *lib, const char *name, const char *version)
{
	void *h = dlopen(lib, RTLD_NOW), *f = h ? dlvsym(h, name, version) : NULL;

	if (!f) {
		printf("%s: no %s@%s: %s\n", lib, name, version, dlerror());
		failed = 1;
	}
	return f;
}

/* What a function returns and sets errno to. None of these looks at its arguments. */
enum { MINUS_ONE = -1, NO_POINTER = 0, AN_ERRNO = 1 };

static const struct {
	const char *lib, *name, *version;
	int how, err;
} refusals[] = {
	{ IBV, "ibv_alloc_dmah", "IBVERBS_1.15", NO_POINTER, EOPNOTSUPP },
	{ IBV, "ibv_dealloc_dmah", "IBVERBS_1.15", AN_ERRNO, EOPNOTSUPP },
	{ IBV, "ibv_dm_export_dmabuf_fd", "IBVERBS_1.16", MINUS_ONE, EOPNOTSUPP },
	{ IBV, "ibv_export_buf_dmabuf_fd", "IBVERBS_1.18", MINUS_ONE, ENODATA },
	{ IBV, "_ibv_query_comp_cntr_caps", "IBVERBS_1.18", AN_ERRNO, EOPNOTSUPP },
	{ IBV, "ibv_create_comp_cntr", "IBVERBS_1.18", NO_POINTER, EOPNOTSUPP },
	{ IBV, "ibv_destroy_comp_cntr", "IBVERBS_1.18", AN_ERRNO, EOPNOTSUPP },
	{ IBV, "ibv_set_comp_cntr", "IBVERBS_1.18", AN_ERRNO, EOPNOTSUPP },
	{ IBV, "ibv_set_err_comp_cntr", "IBVERBS_1.18", AN_ERRNO, EOPNOTSUPP },
	{ IBV, "ibv_inc_comp_cntr", "IBVERBS_1.18", AN_ERRNO, EOPNOTSUPP },
	{ IBV, "ibv_inc_err_comp_cntr", "IBVERBS_1.18", AN_ERRNO, EOPNOTSUPP },
	{ IBV, "ibv_read_comp_cntr", "IBVERBS_1.18", AN_ERRNO, EOPNOTSUPP },
	{ IBV, "ibv_read_err_comp_cntr", "IBVERBS_1.18", AN_ERRNO, EOPNOTSUPP },
	{ IBV, "ibv_qp_attach_comp_cntr", "IBVERBS_1.18", AN_ERRNO, EOPNOTSUPP },
	{ IBV, "ibv_get_device_list", "IBVERBS_1.0", NO_POINTER, ENOSYS },
	{ IBV, "ibv_open_device", "IBVERBS_1.0", NO_POINTER, ENOSYS },
	{ IBV, "ibv_close_device", "IBVERBS_1.0", MINUS_ONE, ENOSYS },
	{ IBV, "ibv_query_device", "IBVERBS_1.0", AN_ERRNO, ENOSYS },
	{ IBV, "ibv_reg_mr", "IBVERBS_1.0", NO_POINTER, ENOSYS },
	{ CM, "rdma_write_cm_event", "RDMACM_1.4", MINUS_ONE, EINVAL },
	{ CM, "rdma_resolve_addrinfo", "RDMACM_1.4", MINUS_ONE, EINVAL },
	{ CM, "rdma_query_addrinfo", "RDMACM_1.4", MINUS_ONE, EINVAL },
	{ CM, "repoll_create", "RDMACM_1.5", MINUS_ONE, ENOSYS },
	{ CM, "repoll_ctl", "RDMACM_1.5", MINUS_ONE, ENOSYS },
	{ CM, "repoll_wait", "RDMACM_1.5", MINUS_ONE, ENOSYS },
};

static void refuse(void)
{
	for (size_t i = 0; i < sizeof(refusals) / sizeof(refusals[0]); i++) {
		void *f = find(refusals[i].lib, refusals[i].name, refusals[i].version);
		int err;

		if (!f)
			continue;
		errno = 0;
		if (refusals[i].how == NO_POINTER)
			err = ((void *(*)(void *, void *))f)(NULL, NULL) ? 0 : errno;
		else {
			err = ((int (*)(void *, void *))f)(NULL, NULL);
			if (refusals[i].how == MINUS_ONE)
				err = err == -1 ? errno : 0;
		}
		if (err != refusals[i].err) {
			printf("%s: %s\n", refusals[i].name, strerror(err));
			failed = 1;
		}
	}
}

static void look_up(const char *file)
{
	char lib[100], name[100], version[100];
	FILE *f = fopen(file, "r");

	failed = !f;
	while (f && fscanf(f, "%99s %99s %99s", lib, name, version) == 3)
		find(lib, name, version);
}

int main(int argc, char **argv)
{
	if (argc == 3)
		look_up(argv[2]);
	else
		refuse();
	return failed;
}
