// Package rdma is the vocabulary of vrnic's two Go interfaces to an RNIC: work requests,
// completions, events, and the interfaces that a device offers.
//
// It is implemented twice. vnic.Context works in the process that holds the device; shm.Device
// reaches a device of a vrnic daemon through shared-memory rings. A program written against
// this package runs on either. The names and, where there is one, the numbers are those of
// libibverbs and librdmacm (rdma-core 44), so that a C program's view maps one to one.
//
// The package holds types only: no goroutine, no I/O, nothing beyond the standard library.
//
// Unless a method says otherwise it may be called from several goroutines at once and does not
// block. A slice passed in is borrowed for the call; memory registered with RegisterMemory is
// borrowed until MR.Close returns.
package rdma
