// Package ringtest tests the data path of the C library libibverbs.so.1, what it does with rings and slabs, against a daemon in
// the same process: testdata/ring_test.c says what. The program is built plainly, and with sanitizers.
//
// What it needs, a C compiler, is asked for by VRNIC_TEST_REQUIRE=verbs; otherwise its tests skip.
//
// There is only test code here. Nothing imports this package.
package ringtest
