#include "textflag.h"

// func blocks(dst, src *byte, n, ahead int)
//
// SSE2 only, which each amd64 has: wider registers are not faster.
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
	MOVOU  4096(SI), X4
	MOVOU  4112(SI), X5
	MOVOU  4128(SI), X6
	MOVOU  4144(SI), X7
	MOVNTO X0, (DI)
	MOVNTO X1, 16(DI)
	MOVNTO X2, 32(DI)
	MOVNTO X3, 48(DI)
	MOVNTO X4, 4096(DI)
	MOVNTO X5, 4112(DI)
	MOVNTO X6, 4128(DI)
	MOVNTO X7, 4144(DI)
	MOVOU  8192(SI), X0
	MOVOU  8208(SI), X1
	MOVOU  8224(SI), X2
	MOVOU  8240(SI), X3
	MOVOU  12288(SI), X4
	MOVOU  12304(SI), X5
	MOVOU  12320(SI), X6
	MOVOU  12336(SI), X7
	MOVNTO X0, 8192(DI)
	MOVNTO X1, 8208(DI)
	MOVNTO X2, 8224(DI)
	MOVNTO X3, 8240(DI)
	MOVNTO X4, 12288(DI)
	MOVNTO X5, 12304(DI)
	MOVNTO X6, 12320(DI)
	MOVNTO X7, 12336(DI)
	ADDQ   $64, R8
	ADDQ   $64, SI
	ADDQ   $64, DI
	DECQ   BX
	JNZ    line

	ADDQ $12288, SI
	ADDQ $12288, DI
	SUBQ $16384, CX
	JNZ  block
	SFENCE // before stores of the ordinary kind
	RET
