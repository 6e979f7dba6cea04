// Package ringtest tests the data path of the C library libibverbs.so.1, what it does with rings
// and slabs, against a daemon in the same process: testdata/ring_test.c says what. The program is
// built plainly, and with sanitizers.
//
// Package ctest builds what the tests need.
//
// There is only test code here. Nothing imports this package.
package ringtest
