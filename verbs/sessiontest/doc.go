// Package sessiontest tests the control plane of the C libraries, libibverbs.so.1 and
// librdmacm.so.1, against daemons that the tests play: honest ones that are told when to raise
// events and when to die, and hostile ones, whose replies and memory make no sense.
//
// Package ctest builds what the tests need.
//
// There is only test code here. Nothing imports this package.
package sessiontest
