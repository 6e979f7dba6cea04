// Package abicheck tests the C side's view of two interfaces: the ring ABI, against package shm, and
// the ABI of rdma-core's libraries, against the headers, libraries and programs of Debian.
//
// What it needs, a C compiler and Debian's packages, is asked for by VRNIC_TEST_REQUIRE=verbs;
// otherwise tests that lack it skip.
//
// There is only test code here. Nothing imports this package.
package abicheck
