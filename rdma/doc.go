// Package rdma is the Go interface to an RNIC, a network card that moves data between the memories
// of programs: what can be asked of it, and what it answers.
//
// It is implemented twice. vnic.Context works in the process that holds the device; shm.Device
// reaches a device of a vrnic daemon through shared memory. A program written against this package
// runs on either. The names and, where there is one, the numbers are those of libibverbs and
// librdmacm (rdma-core 44), so that who knows RDMA in C knows this.
//
// # What there is
//
// A program opens a [Device] and makes on it, in this order:
//
//   - a [PD], a protection domain: what is made in one PD works together, and with nothing else;
//   - an [MR] for each piece of memory that the RNIC may touch, by [PD.RegisterMemory];
//   - a [CQ], which tells what has been done;
//   - a [QP], a queue pair: the send queue takes requests, the receive queue buffers for messages.
//
// [Device.Connect] and [Listener] connect a QP to one of another program. From then on the
// program posts work requests, and polls the CQ for a [WC], a work completion, of each:
//
//   - a Send ([OpSend]) goes into the oldest receive that the peer's program has posted;
//   - a Write ([OpWrite]) and a Read ([OpRead]) go to and from memory of the peer, at an address
//     and with a key that its program has told, and wake nobody there;
//   - an atomic ([AtomicArgs]) changes eight octets there;
//   - a bind ([MW]) or a fast registration ([PD.AllocMR]) opens memory to the peer for a while.
//
// A device of RoCE has more: a program may connect its QPs by itself ([QP.Modify], with numbers and
// GIDs that the programs tell each other), and has QPs of other types ([QPType]): one of datagrams
// sends each message to whom its request names, by an address handle ([AH]), or to a group.
//
// The requests of a queue are carried out in the order of the posts, and complete in it. What
// breaks a rule ends the connection: what is posted then completes with [WCFlush], and Conn.Err
// says why. The examples have one idea each; whole programs are in the folder examples of the
// repository.
//
// # Rules for all methods
//
// Unless a method says otherwise it may be called from several goroutines at once and does not
// block. A slice passed in is borrowed for the call; memory registered with RegisterMemory is
// borrowed until MR.Close returns. Close frees an object; while another one still uses it Close
// does nothing and returns an error that wraps ErrBusy. Closing the Device frees all at once.
//
// The package holds types only: no goroutine, no I/O, nothing beyond the standard library.
package rdma
