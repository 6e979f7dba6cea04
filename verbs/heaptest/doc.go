// Package heaptest tests libvrnic-heap.so, the allocator that `vrnic exec --lend-heap` preloads: a
// program in C allocates, forks and checks what it has, with the library and, where the rule is
// malloc's, without.
//
// Package ctest builds what the tests need.
//
// There is only test code here. Nothing imports this package.
package heaptest
