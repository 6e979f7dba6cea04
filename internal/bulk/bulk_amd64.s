#include "textflag.h"

// func blocks(dst, src *byte, n, ahead int)
//
// What is stored goes on without a gap: some processors (AMD's Zen 3) are nine times as slow where
// stores past the caches take turns among pages. SSE2 only, which each amd64 has: wider registers
// are not faster.
TEXT ·blocks(SB), NOSPLIT, $0-32
	MOVQ dst+0(FP), DI
	MOVQ src+8(FP), SI
	MOVQ n+16(FP), CX
	MOVQ ahead+24(FP), DX

block:
	MOVQ    $16384, R8 // what is asked for, from SI on
	CMPQ    CX, $16384
	CMOVQEQ DX, R8
	ADDQ    SI, R8
	MOVQ    $64, BX    // lines of a page

line:
	PREFETCHT0 (R8)
	PREFETCHT0 4096(R8)
	PREFETCHT0 8192(R8)
	PREFETCHT0 12288(R8)
	MOVOU  (SI), X0
	MOVOU  16(SI), X1
	MOVOU  32(SI), X2
	MOVOU  48(SI), X3
	MOVOU  64(SI), X4
	MOVOU  80(SI), X5
	MOVOU  96(SI), X6
	MOVOU  112(SI), X7
	MOVNTO X0, (DI)
	MOVNTO X1, 16(DI)
	MOVNTO X2, 32(DI)
	MOVNTO X3, 48(DI)
	MOVNTO X4, 64(DI)
	MOVNTO X5, 80(DI)
	MOVNTO X6, 96(DI)
	MOVNTO X7, 112(DI)
	MOVOU  128(SI), X0
	MOVOU  144(SI), X1
	MOVOU  160(SI), X2
	MOVOU  176(SI), X3
	MOVOU  192(SI), X4
	MOVOU  208(SI), X5
	MOVOU  224(SI), X6
	MOVOU  240(SI), X7
	MOVNTO X0, 128(DI)
	MOVNTO X1, 144(DI)
	MOVNTO X2, 160(DI)
	MOVNTO X3, 176(DI)
	MOVNTO X4, 192(DI)
	MOVNTO X5, 208(DI)
	MOVNTO X6, 224(DI)
	MOVNTO X7, 240(DI)
	ADDQ   $64, R8
	ADDQ   $256, SI
	ADDQ   $256, DI
	DECQ   BX
	JNZ    line

	SUBQ $16384, CX
	JNZ  block
	SFENCE // before stores of the ordinary kind
	RET
