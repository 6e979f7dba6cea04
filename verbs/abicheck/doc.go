// Package abicheck tests the C side's view of two interfaces: the ABI, against package shm/abi, and
// the ABI of rdma-core's libraries, against the headers, libraries and programs of Debian.
//
// Package ctest builds what the tests need. Debian's packages are asked for by
// VRNIC_TEST_REQUIRE=verbs too.
//
// There is only test code here. Nothing imports this package.
package abicheck
