// Package verbs tests vrnic's libibverbs and librdmacm with programs that know nothing of vrnic:
// Debian's, as their packages have them, and small ones in C (testdata) that are compiled against
// Debian's headers and go where Debian's do not.
//
// A test starts daemons with sockets of its own, runs programs through `vrnic exec` and wants, when
// they have ended, that a daemon holds nothing of theirs. No wait is without a limit; a program
// that is over its limit is shown with its threads' stacks before it is killed.
//
// Programs that are not installed skip their tests, or fail them if VRNIC_TEST_REQUIRE lists
// "verbs". A test run takes one of each; `make verbs-programs` (VRNIC_TEST_VERBS=all) takes all
// programs with all options in all topologies.
//
// There is only test code here. Nothing imports this package.
package verbs
