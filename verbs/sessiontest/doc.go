// Package sessiontest tests the control plane of the C libraries, libibverbs.so.1 and librdmacm.so.1, against daemons that the tests play: honest ones
// that are told when to raise events and when to die, and hostile ones, whose replies and memory make no sense.
//
// What it needs, a C compiler and make, is asked for by VRNIC_TEST_REQUIRE=verbs; otherwise its tests skip.
// VRNIC_TEST_LIBS names libraries that are there, such as ones built with a sanitizer.
//
// There is only test code here. Nothing imports this package.
package sessiontest
