/* Libraries of providers that programs are linked to look at a device that is not theirs. */
#define _GNU_SOURCE
#include "vt.h"

#include <dlfcn.h>

#include <infiniband/efadv.h>
#include <infiniband/mlx5dv.h>

static void efa(void)
{
	struct ibv_context *ctx = vt_open_device();
	struct efadv_device_attr attr;

	CHECK_EQ(efadv_query_device(ctx, &attr, sizeof(attr)), EOPNOTSUPP);
	CHECK_EQ(ibv_close_device(ctx), 0);
}

static void mlx5(void)
{
	struct ibv_context *ctx = vt_open_device();
	struct mlx5dv_context attr = {};

	CHECK(!mlx5dv_is_supported(ctx->device));
	CHECK(mlx5dv_query_device(ctx, &attr) != 0);
	CHECK_EQ(ibv_close_device(ctx), 0);
}

/* What their constructors and errors call, and the one symbol that is data. */
static void private_names(void)
{
	struct ibv_context *ctx = vt_open_device();
	void (*log)(struct ibv_context *, uint32_t, const char *, ...) = dlvsym(RTLD_DEFAULT, "__verbs_log", "IBVERBS_PRIVATE_34");
	void (*reg)(const void *) = dlvsym(RTLD_DEFAULT, "verbs_register_driver_34", "IBVERBS_PRIVATE_34");

	CHECK(log && reg);
	log(ctx, 1, "to nobody: %d\n", 1);
	CHECK(dlvsym(RTLD_DEFAULT, "verbs_allow_disassociate_destroy", "IBVERBS_PRIVATE_34"));
	CHECK_EQ(ibv_close_device(ctx), 0);
}

static const struct vt_case cases[] = { { "efa", efa }, { "mlx5", mlx5 }, { "log", private_names }, {} };

int main(int argc, char **argv) { return vt_main(argc, argv, cases); }
