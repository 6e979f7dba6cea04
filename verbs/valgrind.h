/*
 * What is said to valgrind, and does nothing elsewhere: memory that peers may write has a value,
 * whoever wrote it, as far as it is allocated: docs/decisions.md#V28.
 *
 * A request to it is a sequence of instructions that changes nothing, with its words in a register:
 * see client requests in its manual.
 */
#ifndef VRNIC_VALGRIND_H
#define VRNIC_VALGRIND_H

#include <stddef.h>
#include <stdint.h>

static inline void vrnic_tell_valgrind_defined(const void *addr, size_t length)
{
#if defined(__x86_64__) || defined(__aarch64__)
	/* memcheck's MAKE_MEM_DEFINED_IF_ADDRESSABLE */
	volatile uintptr_t words[6] = { 'M' << 24 | 'C' << 16 | 11, (uintptr_t)addr, length };
#endif
#if defined(__x86_64__)
	uintptr_t result = 0;

	__asm__ volatile("rolq $3, %%rdi; rolq $13, %%rdi; rolq $61, %%rdi; rolq $51, %%rdi\n\t"
			 "xchgq %%rbx, %%rbx"
			 : "+d"(result)
			 : "a"(words)
			 : "cc", "memory");
#elif defined(__aarch64__)
	register uintptr_t result __asm__("x3") = 0;
	register volatile uintptr_t *at __asm__("x4") = words;

	__asm__ volatile("ror x12, x12, #3; ror x12, x12, #13\n\t"
			 "ror x12, x12, #51; ror x12, x12, #61\n\t"
			 "orr x10, x10, x10"
			 : "+r"(result)
			 : "r"(at)
			 : "cc", "memory");
#else
	(void)addr;
	(void)length;
#endif
}

#endif
