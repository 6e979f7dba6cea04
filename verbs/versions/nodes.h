/*
 * The interface of rdma-core's own providers, whose version has the number of the release that
 * changed it last.
 */
#ifndef VRNIC_NODES_H
#define VRNIC_NODES_H

#define EXPORT __attribute__((visibility("default")))

/* A name of it, that stub_NAME stands for, at the nodes that it has in the releases. */
#define LATER_NODES(stub, name) \
	".symver " stub "," name "@IBVERBS_PRIVATE_57\n\t" \
	".symver " stub "," name "@IBVERBS_PRIVATE_59\n\t" \
	".symver " stub "," name "@IBVERBS_PRIVATE_64\n\t" \
	".symver " stub "," name "@IBVERBS_PRIVATE_65"
#define PRIVATE(name) \
	__asm__(".symver stub_" #name "," #name "@@IBVERBS_PRIVATE_34\n\t" \
		LATER_NODES("stub_" #name, #name))

#endif
