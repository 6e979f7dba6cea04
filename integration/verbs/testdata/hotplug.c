/*
 * Devices that come and go while a program runs: $VT_LATER is the name of one that comes later, and
 * $VT_GO of a file that is there when it is.
 */
#include <arpa/inet.h>

#include "vt.h"

static int listed(const char *name)
{
	int n, i, is = -1;
	struct ibv_device **list = ibv_get_device_list(&n);

	CHECK(list != NULL);
	CHECK(!list[n]);
	for (i = 0; i < n; i++)
		if (!strcmp(ibv_get_device_name(list[i]), name))
			is = i;
	ibv_free_device_list(list);
	return is;
}

static void say(const char *line)
{
	puts(line);
	fflush(stdout);
}

static void until(const char *name, bool there)
{
	for (int i = 0; (listed(name) >= 0) != there; i++) {
		CHECK(i < VT_PATIENCE / 10);
		usleep(10000);
	}
}

static struct ibv_context *open_named(const char *name)
{
	int n;
	struct ibv_device **list = ibv_get_device_list(&n);
	struct ibv_context *c = ibv_open_device(list[listed(name)]);

	ibv_free_device_list(list);
	return c;
}

/* One that comes is listed, opened and used. */
static void comes(void)
{
	const char *name = getenv("VT_LATER");
	struct ibv_context *c, **all;
	struct ibv_pd *pd;
	struct vt_pair p;
	int n;

	CHECK(listed(name) < 0);
	say("waits for it to come");
	until(name, true);
	c = open_named(name);
	CHECK(c != NULL);
	CHECK((pd = ibv_alloc_pd(c)) != NULL);
	CHECK_EQ(ibv_dealloc_pd(pd), 0);
	CHECK_EQ(ibv_close_device(c), 0);
	vt_open(&p, &(struct vt_opts){ .len = 4096 }); /* to its address */
	CHECK(!strcmp(p.a.id->verbs->device->name, name) || !strcmp(p.b.id->verbs->device->name, name));
	vt_recv(&p.b, 1, 0, 64);
	vt_send(&p.a, 2, 0, 64);
	vt_wc(p.b.rcq, 1, IBV_WC_SUCCESS, IBV_WC_RECV);
	vt_wc(p.a.scq, 2, IBV_WC_SUCCESS, IBV_WC_SEND);
	vt_close(&p);
	CHECK((all = rdma_get_devices(&n)) != NULL);
	CHECK_EQ(n, 3);
	rdma_free_devices(all);
}

/* One that is not in use goes; those that stay work, and it is another when it comes again. */
static void goes(void)
{
	const char *name = getenv("VT_LATER");
	struct ibv_context *c;
	struct vt_pair p;

	CHECK(listed(name) >= 0);
	say("waits for it to go");
	until(name, false);
	vt_open(&p, &(struct vt_opts){ .len = 4096 }); /* between the others */
	vt_close(&p);
	say("waits for it to come again");
	until(name, true);
	c = open_named(name);
	CHECK(c != NULL);
	CHECK_EQ(ibv_close_device(c), 0);
}

/* Who asks for addresses alone finds it, too. */
static void by_address(void)
{
	struct rdma_event_channel *channel = rdma_create_event_channel();
	struct sockaddr_in a = { .sin_family = AF_INET };
	struct rdma_cm_id *id;
	int i, err;

	CHECK_EQ(inet_pton(AF_INET, getenv("VT_SERVER"), &a.sin_addr), 1);
	for (i = 0;; i++) {
		CHECK_EQ(rdma_create_id(channel, &id, NULL, RDMA_PS_TCP), 0);
		err = rdma_bind_addr(id, (struct sockaddr *)&a);
		if (!i) {
			CHECK_EQ(err, -1);
			say("waits for it to come");
		}
		if (!err)
			break;
		CHECK_EQ(rdma_destroy_id(id), 0);
		CHECK(i < VT_PATIENCE / 10);
		usleep(10000);
	}
	CHECK(!strcmp(id->verbs->device->name, getenv("VT_LATER")));
	CHECK_EQ(rdma_destroy_id(id), 0);
	rdma_destroy_event_channel(channel);
}

/* One that goes before anybody has heard of it hides none. */
static void unheard(void)
{
	const char *name = getenv("VT_LATER");
	struct rdma_event_channel *channel = rdma_create_event_channel();
	struct sockaddr_in any = { .sin_family = AF_INET };
	struct rdma_cm_id *id;

	CHECK(listed(name) < 0);
	say("waits for it to come");
	for (int i = 0; access(getenv("VT_GO"), F_OK); i++) {
		CHECK(i < VT_PATIENCE / 10);
		usleep(10000);
	}
	CHECK_EQ(rdma_create_id(channel, &id, NULL, RDMA_PS_TCP), 0);
	CHECK_EQ(rdma_bind_addr(id, (struct sockaddr *)&any), 0); /* has the daemon number it */
	CHECK_EQ(rdma_destroy_id(id), 0);
	rdma_destroy_event_channel(channel);
	say("has numbered it");
	until("next", true);
	CHECK(listed(name) < 0);
	CHECK_EQ(ibv_close_device(open_named("next")), 0);
}

int main(int argc, char **argv)
{
	static const struct vt_case cases[] = { { "comes", comes }, { "goes", goes },
						{ "by_address", by_address },
						{ "unheard", unheard }, { NULL, NULL } };

	return vt_main(argc, argv, cases);
}
