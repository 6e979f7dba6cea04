// Package guardtest tests verbs/guard, by which `vrnic exec --check` sees who reads the buffer of a
// request too early: programs in C with its sources.
//
// Package ctest builds what the tests need.
//
// There is only test code here. Nothing imports this package.
package guardtest
