// Package integration tests vrnic as its users have it: the built program, run as a daemon and
// as clients, over Unix-stream links without privilege, over TAPs between network namespaces,
// and against Linux siw in a QEMU guest.
//
// A test that needs more than an ordinary user has says so and skips: root, tshark, QEMU. Where
// those must be there, VRNIC_TEST_REQUIRE lists them ("root tshark") and a skip for want of them
// is a failure. `make interop` runs the tests against siw.
//
// There is only test code here. Nothing imports this package.
package integration
