#include "textflag.h"

// func lanes(c uint32, p *byte, words int, shift1, shift2 uint64) uint32
TEXT ·lanes(SB), NOSPLIT, $0-44
	MOVL  c+0(FP), AX
	MOVQ  p+8(FP), SI
	MOVQ  words+16(FP), CX
	LEAQ  (SI)(CX*8), R8
	LEAQ  (R8)(CX*8), R9
	XORL  BX, BX
	XORL  DX, DX
	XORL  DI, DI
	SUBQ  $1, CX
	JZ    last

loop:
	CRC32Q (SI)(DI*8), AX
	CRC32Q (R8)(DI*8), BX
	CRC32Q (R9)(DI*8), DX
	CRC32Q 8(SI)(DI*8), AX
	CRC32Q 8(R8)(DI*8), BX
	CRC32Q 8(R9)(DI*8), DX
	ADDQ  $2, DI
	CMPQ  DI, CX
	JL    loop
	JG    done

last:
	CRC32Q (SI)(DI*8), AX
	CRC32Q (R8)(DI*8), BX
	CRC32Q (R9)(DI*8), DX

done:
	MOVQ  AX, X0
	MOVQ  BX, X1
	MOVQ  shift2+32(FP), X2
	MOVQ  shift1+24(FP), X3
	PCLMULQDQ $0, X2, X0
	PCLMULQDQ $0, X3, X1
	PXOR  X1, X0
	MOVQ  X0, R10
	XORL  AX, AX
	CRC32Q R10, AX
	XORL  DX, AX
	MOVL  AX, ret+40(FP)
	RET

// func tail(c uint32, p *byte, n int) uint32
TEXT ·tail(SB), NOSPLIT, $0-28
	MOVL  c+0(FP), AX
	MOVQ  p+8(FP), SI
	MOVQ  n+16(FP), CX

words:
	SUBQ  $8, CX
	JLT   long
	CRC32Q (SI), AX
	ADDQ  $8, SI
	JMP   words

long:
	TESTQ $4, CX
	JZ    short
	CRC32L (SI), AX
	ADDQ  $4, SI

short:
	TESTQ $2, CX
	JZ    octet
	CRC32W (SI), AX
	ADDQ  $2, SI

octet:
	TESTQ $1, CX
	JZ    done
	CRC32B (SI), AX

done:
	MOVL  AX, ret+24(FP)
	RET
