//go:build !purego

#include "go_asm.h"
#include "textflag.h"

// The tiles of tile_amd64.s with two rows of w in a register: rows 0 and 1 in the halves of one, 2 and 3 in those of
// the other. A product is summed in the same eight lanes in the same order, so no bit differs. Registers: AX the tile,
// R8-R11 rows w, SI a row x, R13 the offset in rows x, CX elements left, BX distance of the prefetch. Z8 and Z9 are
// the sums of x 0, and so on to Z30 and Z31 of x 11; Z0-Z7 pass by.

// Two rows of 32 bytes.
#define PAIR(OFFSET, R, S, Z, Y) \
	VMOVUPS      OFFSET(R), Y        \
	VINSERTF32X8 $1, OFFSET(S), Z, Z

#define CLEAR(A, B) \
	VPXORD A, A, A \
	VPXORD B, B, B

#define BEGIN \
	MOVQ t+0(FP), AX             \
	MOVQ (dotTile_w+0)(AX), R8   \
	MOVQ (dotTile_w+8)(AX), R9   \
	MOVQ (dotTile_w+16)(AX), R10 \
	MOVQ (dotTile_w+24)(AX), R11 \
	MOVQ dotTile_n(AX), CX       \
	MOVQ dotTile_ahead(AX), BX   \
	MOVQ dotTile_lanes(AX), DI   \
	XORQ R13, R13

// EACH does one thing for the sums of so many tokens.
#define EACH1(DO) DO(0, Z8, Z9)
#define EACH2(DO) EACH1(DO) \
	DO(1, Z10, Z11)
#define EACH3(DO) EACH2(DO) \
	DO(2, Z12, Z13)
#define EACH4(DO) EACH3(DO) \
	DO(3, Z14, Z15)
#define EACH6(DO) EACH4(DO) \
	DO(4, Z16, Z17)         \
	DO(5, Z18, Z19)
#define EACH8(DO) EACH6(DO) \
	DO(6, Z20, Z21)         \
	DO(7, Z22, Z23)
#define EACH12(DO) EACH8(DO) \
	DO(8, Z24, Z25)          \
	DO(9, Z26, Z27)          \
	DO(10, Z28, Z29)         \
	DO(11, Z30, Z31)

#define ZERO(J, A, B) \
	CLEAR(A, B)

#define LOAD(J, A, B) \
	VMOVUPS (J*128)(DI), A    \
	VMOVUPS (J*128+64)(DI), B

#define STORE(J, A, B) \
	VMOVUPS A, (J*128)(DI)    \
	VMOVUPS B, (J*128+64)(DI)

// Adds the lanes of each row: neighbours, pairs of them, halves.
#define REDUCE(J, A, B) \
	VEXTRACTF32X8 $1, A, Y1                \
	VEXTRACTF32X8 $0, A, Y0                \
	VEXTRACTF32X8 $1, B, Y3                \
	VEXTRACTF32X8 $0, B, Y2                \
	VHADDPS       Y1, Y0, Y0               \
	VHADDPS       Y3, Y2, Y2               \
	VHADDPS       Y2, Y0, Y0               \
	VEXTRACTF128  $1, Y0, X1               \
	VADDPS        X1, X0, X0               \
	VMOVUPS       X0, (dotTile_out+J*16)(AX)

// Eight float32 elements of x J from byte OFFSET on.
#define F32(J, A, B, OFFSET, W, V) \
	MOVQ            (dotTile_x+J*8)(AX), SI  \
	VBROADCASTF32X8 OFFSET(SI)(R13*1), Z4    \
	VFMADD231PS     Z4, W, A                 \
	VFMADD231PS     Z4, V, B

#define F32FIRST(J, A, B) F32(J, A, B, 0, Z0, Z1)
#define F32SECOND(J, A, B) F32(J, A, B, 32, Z2, Z3)

// Sixteen elements of x J: those for the even elements of w, then those for the odd ones.
#define BF16(J, A, B) \
	MOVQ            (dotTile_x+J*8)(AX), SI  \
	VBROADCASTF32X8 (SI)(R13*1), Z4          \
	VBROADCASTF32X8 32(SI)(R13*1), Z5        \
	VFMADD231PS     Z4, Z0, A                \
	VFMADD231PS     Z4, Z1, B                \
	VFMADD231PS     Z5, Z2, A                \
	VFMADD231PS     Z5, Z3, B

// Sixteen elements of w: Z0 and Z1 the even ones (low halves of 32 bits), Z2 and Z3 the odd ones.
#define WIDEN(OFFSET) \
	PAIR(OFFSET, R8, R9, Z2, Y2)   \
	PAIR(OFFSET, R10, R11, Z3, Y3) \
	VPSLLD $16, Z2, Z0             \
	VPSLLD $16, Z3, Z1             \
	VPANDD Z6, Z2, Z2              \
	VPANDD Z6, Z3, Z3

#define PREFETCH \
	PREFETCHT0 (R8)(BX*1)  \
	PREFETCHT0 (R9)(BX*1)  \
	PREFETCHT0 (R10)(BX*1) \
	PREFETCHT0 (R11)(BX*1)

// Moves on by W bytes of the rows w and X of the rows x.
#define ADVANCE(W, X) \
	ADDQ $W, R8  \
	ADDQ $W, R9  \
	ADDQ $W, R10 \
	ADDQ $W, R11 \
	ADDQ $X, R13

#define SUMS(EACH) \
	EACH(ZERO)                 \
	CMPQ dotTile_begun(AX), $0 \
	JEQ  cleared               \
	EACH(LOAD)                 \
cleared:

#define END(EACH) \
	CMPQ dotTile_more(AX), $0 \
	JEQ  reduce               \
	EACH(STORE)               \
	VZEROUPPER                \
	RET                       \
reduce:                       \
	EACH(REDUCE)              \
	VZEROUPPER                \
	RET

#define TILE_F32(EACH) \
	BEGIN                        \
	SUMS(EACH)                   \
	SUBQ $16, CX                 \
	JLT  rest                    \
	PCALIGN $32                  \
blocks:                          \
	PREFETCH                     \
	PAIR(0, R8, R9, Z0, Y0)      \
	PAIR(0, R10, R11, Z1, Y1)    \
	PAIR(32, R8, R9, Z2, Y2)     \
	PAIR(32, R10, R11, Z3, Y3)   \
	EACH(F32FIRST)               \
	EACH(F32SECOND)              \
	ADVANCE(64, 64)              \
	SUBQ $16, CX                 \
	JGE  blocks                  \
rest:                            \
	ADDQ $8, CX                  \
	JLT  summed                  \
	PAIR(0, R8, R9, Z0, Y0)      \
	PAIR(0, R10, R11, Z1, Y1)    \
	EACH(F32FIRST)               \
summed:                          \
	END(EACH)

#define TILE_BF16(EACH) \
	BEGIN                                 \
	VPBROADCASTD ·highHalves(SB), Z6    \
	SUMS(EACH)                            \
	SUBQ $32, CX                          \
	JLT  rest                             \
	PCALIGN $32                           \
blocks:                                   \
	PREFETCH                              \
	WIDEN(0)                              \
	EACH(BF16)                            \
	ADDQ $64, R13                         \
	WIDEN(32)                             \
	EACH(BF16)                            \
	ADVANCE(64, 64)                       \
	SUBQ $32, CX                          \
	JGE  blocks                           \
rest:                                     \
	ADDQ $16, CX                          \
	JLT  summed                           \
	WIDEN(0)                              \
	EACH(BF16)                            \
summed:                                   \
	END(EACH)

// func tile512F32x1(t *dotTile)
TEXT ·tile512F32x1(SB), NOSPLIT, $0-8
	TILE_F32(EACH1)

// func tile512F32x2(t *dotTile)
TEXT ·tile512F32x2(SB), NOSPLIT, $0-8
	TILE_F32(EACH2)

// func tile512F32x3(t *dotTile)
TEXT ·tile512F32x3(SB), NOSPLIT, $0-8
	TILE_F32(EACH3)

// func tile512F32x4(t *dotTile)
TEXT ·tile512F32x4(SB), NOSPLIT, $0-8
	TILE_F32(EACH4)

// func tile512F32x6(t *dotTile)
TEXT ·tile512F32x6(SB), NOSPLIT, $0-8
	TILE_F32(EACH6)

// func tile512F32x8(t *dotTile)
TEXT ·tile512F32x8(SB), NOSPLIT, $0-8
	TILE_F32(EACH8)

// func tile512F32x12(t *dotTile)
TEXT ·tile512F32x12(SB), NOSPLIT, $0-8
	TILE_F32(EACH12)

// func tile512BF16x1(t *dotTile)
TEXT ·tile512BF16x1(SB), NOSPLIT, $0-8
	TILE_BF16(EACH1)

// func tile512BF16x2(t *dotTile)
TEXT ·tile512BF16x2(SB), NOSPLIT, $0-8
	TILE_BF16(EACH2)

// func tile512BF16x3(t *dotTile)
TEXT ·tile512BF16x3(SB), NOSPLIT, $0-8
	TILE_BF16(EACH3)

// func tile512BF16x4(t *dotTile)
TEXT ·tile512BF16x4(SB), NOSPLIT, $0-8
	TILE_BF16(EACH4)

// func tile512BF16x6(t *dotTile)
TEXT ·tile512BF16x6(SB), NOSPLIT, $0-8
	TILE_BF16(EACH6)

// func tile512BF16x8(t *dotTile)
TEXT ·tile512BF16x8(SB), NOSPLIT, $0-8
	TILE_BF16(EACH8)

// func tile512BF16x12(t *dotTile)
TEXT ·tile512BF16x12(SB), NOSPLIT, $0-8
	TILE_BF16(EACH12)

DATA swizzle512<>+0(SB)/4, $0
DATA swizzle512<>+4(SB)/4, $2
DATA swizzle512<>+8(SB)/4, $4
DATA swizzle512<>+12(SB)/4, $6
DATA swizzle512<>+16(SB)/4, $8
DATA swizzle512<>+20(SB)/4, $10
DATA swizzle512<>+24(SB)/4, $12
DATA swizzle512<>+28(SB)/4, $14
DATA swizzle512<>+32(SB)/4, $1
DATA swizzle512<>+36(SB)/4, $3
DATA swizzle512<>+40(SB)/4, $5
DATA swizzle512<>+44(SB)/4, $7
DATA swizzle512<>+48(SB)/4, $9
DATA swizzle512<>+52(SB)/4, $11
DATA swizzle512<>+56(SB)/4, $13
DATA swizzle512<>+60(SB)/4, $15
GLOBL swizzle512<>(SB), RODATA|NOPTR, $64

// func swizzleAVX512(dst, x *float32, n int)
TEXT ·swizzleAVX512(SB), NOSPLIT, $0-24
	MOVQ    dst+0(FP), DI
	MOVQ    x+8(FP), SI
	MOVQ    n+16(FP), CX
	VMOVUPS swizzle512<>(SB), Z1

swizzle:
	VPERMPS (SI), Z1, Z0
	VMOVUPS Z0, (DI)
	ADDQ    $64, SI
	ADDQ    $64, DI
	SUBQ    $16, CX
	JG      swizzle
	VZEROUPPER
	RET
