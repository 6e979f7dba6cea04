// Package mad is the codec of the messages by which RoCE's connection managers agree: management
// datagrams (MADs, InfiniBand Architecture Specification volume 1, chapter 13) with those of the
// communication management class (chapter 12), and the address header that rdma_cm puts in front of
// a program's private data (annex A11).
//
// A MAD is the payload of one UD packet from QP 1 to QP 1, 256 octets. The package is pure, and
// knows no state: which message may follow which is the connection manager's business.
package mad
