/*
 * Prints what the helpers of libibverbs say that need no device. Compiled against Debian's headers;
 * run with Debian's library and with ours, the lines "same" must be the same.
 */
#include <errno.h>
#include <infiniband/verbs.h>
#include <rdma/rdma_cma.h>
#include <rdma/rsocket.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define SAME(...) (printf("same " __VA_ARGS__), putchar('\n'))
#define CHECK(cond) ((cond) ? (void)0 : (printf("wrong %d: %s, errno %d\n", __LINE__, #cond, errno), failed = 1))
#define FAILS(call, err) (errno = 0, CHECK((call) && errno == (err)))

int ibv_read_sysfs_file(const char *dir, const char *file, char *buf, size_t size);

static int failed;

static void rates(void)
{
	for (int i = -1; i <= 40; i++)
		SAME("rate %d: mult %d, mbps %d", i, ibv_rate_to_mult(i), ibv_rate_to_mbps(i));
	for (int i = -1; i <= 500; i++)
		if (mult_to_ibv_rate(i) != IBV_RATE_MAX)
			SAME("mult %d: rate %d", i, mult_to_ibv_rate(i));
	for (int i = -1; i <= 1300000; i++)
		if (mbps_to_ibv_rate(i) != IBV_RATE_MAX)
			SAME("mbps %d: rate %d", i, mbps_to_ibv_rate(i));
}

/* Texts are ours, but each number that has one there has one here, and others have none. */
static void texts(void)
{
	for (int i = -2; i < 40; i++) {
		SAME("wc %d %d", i, !!strstr(ibv_wc_status_str(i), "unknown"));
		SAME("node %d %d", i, !!strstr(ibv_node_type_str(i), "unknown"));
		SAME("port %d %d", i, !!strstr(ibv_port_state_str(i), "unknown"));
		SAME("event %d %d", i, !!strstr(ibv_event_type_str(i), "unknown"));
	}
}

static void sysfs(void)
{
	char dir[] = "/tmp/vrnic-sysfs-XXXXXX", path[64], buf[8];
	FILE *f;

	if (!mkdtemp(dir) || snprintf(path, sizeof(path), "%s/file", dir) < 0 || !(f = fopen(path, "w"))) {
		perror(dir);
		exit(1);
	}
	memset(buf, 'x', sizeof(buf));
	SAME("sysfs empty %d", ibv_read_sysfs_file(dir, "file", buf, sizeof(buf)) <= 0);
	fputs("abc\n", f);
	fflush(f);
	SAME("sysfs line %d %.8s", ibv_read_sysfs_file(dir, "file", buf, sizeof(buf)), buf);
	SAME("sysfs fits %d", ibv_read_sysfs_file(dir, "file", buf, 4));
	fputs("defghijklmnopq\n", f);
	fflush(f);
	SAME("sysfs long %d", ibv_read_sysfs_file(dir, "file", buf, sizeof(buf)));
	SAME("sysfs none %d", ibv_read_sysfs_file(dir, "nothing", buf, sizeof(buf)));
	fclose(f);
	unlink(path);
	rmdir(dir);
}

/* What is not there says so in the way in which its callers look for errors. */
static void stubs(void)
{
	struct sockaddr_storage sa = {};
	__be16 pkey;

	FAILS(!ibv_import_device(0), EOPNOTSUPP);
	FAILS(!ibv_import_pd(NULL, 0), EOPNOTSUPP);
	FAILS(!ibv_import_mr(NULL, 0), EOPNOTSUPP);
	FAILS(!ibv_import_dm(NULL, 0), EOPNOTSUPP);
	FAILS(!ibv_reg_dmabuf_mr(NULL, 0, 0, 0, -1, 0), EOPNOTSUPP);
	CHECK(ibv_fork_init() == 0);
	CHECK(ibv_is_fork_initialized() == IBV_FORK_UNNEEDED);
	CHECK(ibv_query_pkey(NULL, 1, 0, &pkey) == 0 && pkey == 0xffff);
	FAILS(ibv_query_pkey(NULL, 1, 1, &pkey) == -1, EINVAL);
	FAILS(ibv_query_pkey(NULL, 2, 0, &pkey) == -1, EINVAL);
	CHECK(ibv_get_pkey_index(NULL, 1, 0xffff) == 0);
	FAILS(ibv_get_pkey_index(NULL, 1, 1) == -1, EINVAL);
	FAILS(_ibv_query_gid_table(NULL, NULL, 0, 1, sizeof(struct ibv_gid_entry)) == -EOPNOTSUPP, 0);
	CHECK(_ibv_query_gid_ex(NULL, 1, 0, NULL, 1, sizeof(struct ibv_gid_entry)) == EOPNOTSUPP);

	CHECK(rsocket(AF_INET, SOCK_STREAM, 0) == -1);
	FAILS(rsocket(AF_UNIX, SOCK_STREAM, 0) == -1, EOPNOTSUPP);
	FAILS(rbind(1, (struct sockaddr *)&sa, sizeof(sa)) == -1, EBADF);
	CHECK(rpoll(NULL, 0, 0) == 0);
	FAILS(rread(1, &sa, 1) == -1, EBADF);
	FAILS(riomap(1, &sa, 1, 0, 0, 0) == -1, EBADF);
	FAILS(riowrite(1, &sa, 1, 0, 0) == (size_t)-1, EBADF);
	FAILS(rclose(1) == -1, EBADF);
	FAILS(rdma_set_local_ece(NULL, NULL) == -1, EOPNOTSUPP);
	FAILS(rdma_get_remote_ece(NULL, NULL) == -1, EOPNOTSUPP);
}

int main(int argc, char **argv)
{
	rates();
	texts();
	sysfs();
	if (argc > 1 && !strcmp(argv[1], "stubs"))
		stubs();
	return failed;
}
