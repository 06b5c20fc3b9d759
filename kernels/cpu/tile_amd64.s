//go:build !purego

#include "go_asm.h"
#include "textflag.h"

// Registers of the tiles: AX the tile, R8-R11 rows w, SI DI DX rows x, CX elements left less 32, BX distance of the
// prefetch, R12 lanes. Y0-Y3, Y4-Y7, Y8-Y11 sums of x 0, 1, 2 with the four w.

DATA ·highHalves+0(SB)/8, $0xffff0000ffff0000
DATA ·highHalves+8(SB)/8, $0xffff0000ffff0000
DATA ·highHalves+16(SB)/8, $0xffff0000ffff0000
DATA ·highHalves+24(SB)/8, $0xffff0000ffff0000
GLOBL ·highHalves(SB), RODATA|NOPTR, $32

#define LOAD_TILE \
	MOVQ t+0(FP), AX             \
	MOVQ (dotTile_w+0)(AX), R8   \
	MOVQ (dotTile_w+8)(AX), R9   \
	MOVQ (dotTile_w+16)(AX), R10 \
	MOVQ (dotTile_w+24)(AX), R11 \
	MOVQ (dotTile_x+0)(AX), SI   \
	MOVQ (dotTile_x+8)(AX), DI   \
	MOVQ (dotTile_x+16)(AX), DX  \
	MOVQ dotTile_n(AX), CX       \
	MOVQ dotTile_ahead(AX), BX   \
	MOVQ dotTile_lanes(AX), R12

#define CLEAR4(A, B, C, D) \
	VXORPS A, A, A \
	VXORPS B, B, B \
	VXORPS C, C, C \
	VXORPS D, D, D

#define LOAD4(OFFSET, A, B, C, D) \
	VMOVUPS (OFFSET)(R12), A    \
	VMOVUPS (OFFSET+32)(R12), B \
	VMOVUPS (OFFSET+64)(R12), C \
	VMOVUPS (OFFSET+96)(R12), D

#define STORE4(OFFSET, A, B, C, D) \
	VMOVUPS A, (OFFSET)(R12)    \
	VMOVUPS B, (OFFSET+32)(R12) \
	VMOVUPS C, (OFFSET+64)(R12) \
	VMOVUPS D, (OFFSET+96)(R12)

#define CLEAR1 CLEAR4(Y0, Y1, Y2, Y3)
#define CLEAR2 CLEAR4(Y4, Y5, Y6, Y7)
#define CLEAR3 CLEAR4(Y8, Y9, Y10, Y11)

#define LANES1(DO) DO(0, Y0, Y1, Y2, Y3)
#define LANES2(DO) DO(128, Y4, Y5, Y6, Y7)
#define LANES3(DO) DO(256, Y8, Y9, Y10, Y11)

// Float32: eight elements from element I on.

#define F32X1(I) \
	VMOVUPS     (I*4)(SI), Y12       \
	VFMADD231PS (I*4)(R8), Y12, Y0   \
	VFMADD231PS (I*4)(R9), Y12, Y1   \
	VFMADD231PS (I*4)(R10), Y12, Y2  \
	VFMADD231PS (I*4)(R11), Y12, Y3

#define F32ROW2(I, R, A, B) \
	VMOVUPS     (I*4)(R), Y15 \
	VFMADD231PS Y12, Y15, A   \
	VFMADD231PS Y13, Y15, B

#define F32X2(I) \
	VMOVUPS (I*4)(SI), Y12  \
	VMOVUPS (I*4)(DI), Y13  \
	F32ROW2(I, R8, Y0, Y4)  \
	F32ROW2(I, R9, Y1, Y5)  \
	F32ROW2(I, R10, Y2, Y6) \
	F32ROW2(I, R11, Y3, Y7)

#define F32ROW3(I, R, A, B, C) \
	VMOVUPS     (I*4)(R), Y15 \
	VFMADD231PS Y12, Y15, A   \
	VFMADD231PS Y13, Y15, B   \
	VFMADD231PS Y14, Y15, C

#define F32X3(I) \
	VMOVUPS (I*4)(SI), Y12       \
	VMOVUPS (I*4)(DI), Y13       \
	VMOVUPS (I*4)(DX), Y14       \
	F32ROW3(I, R8, Y0, Y4, Y8)   \
	F32ROW3(I, R9, Y1, Y5, Y9)   \
	F32ROW3(I, R10, Y2, Y6, Y10) \
	F32ROW3(I, R11, Y3, Y7, Y11)

// BF16: sixteen elements from element I on, the even ones (low halves of 32 bits), then the odd ones.

#define BF16ROW1(I, R, A, T, U) \
	VMOVUPS     (I*2)(R), T \
	VPSLLD      $16, T, U   \
	VPAND       Y11, T, T   \
	VFMADD231PS Y12, U, A   \
	VFMADD231PS Y13, T, A

#define BF16X1(I) \
	VMOVUPS (I*4)(SI), Y12        \
	VMOVUPS (I*4+32)(SI), Y13     \
	BF16ROW1(I, R8, Y0, Y4, Y5)   \
	BF16ROW1(I, R9, Y1, Y6, Y7)   \
	BF16ROW1(I, R10, Y2, Y8, Y9)  \
	BF16ROW1(I, R11, Y3, Y10, Y15)

#define BF16ROW2(I, R, A, B) \
	VMOVUPS     (I*2)(R), Y14 \
	VPSLLD      $16, Y14, Y15 \
	VPAND       Y8, Y14, Y14  \
	VFMADD231PS Y10, Y15, A   \
	VFMADD231PS Y11, Y15, B   \
	VFMADD231PS Y12, Y14, A   \
	VFMADD231PS Y13, Y14, B

#define BF16X2(I) \
	VMOVUPS (I*4)(SI), Y10    \
	VMOVUPS (I*4)(DI), Y11    \
	VMOVUPS (I*4+32)(SI), Y12 \
	VMOVUPS (I*4+32)(DI), Y13 \
	BF16ROW2(I, R8, Y0, Y4)   \
	BF16ROW2(I, R9, Y1, Y5)   \
	BF16ROW2(I, R10, Y2, Y6)  \
	BF16ROW2(I, R11, Y3, Y7)

#define EVEN3(I, R, A, B, C) \
	VMOVUPS     (I*2)(R), Y15 \
	VPSLLD      $16, Y15, Y15 \
	VFMADD231PS Y12, Y15, A   \
	VFMADD231PS Y13, Y15, B   \
	VFMADD231PS Y14, Y15, C

#define ODD3(I, R, A, B, C) \
	VMOVUPS     (I*2)(R), Y15               \
	VPAND       ·highHalves(SB), Y15, Y15  \
	VFMADD231PS Y12, Y15, A                 \
	VFMADD231PS Y13, Y15, B                 \
	VFMADD231PS Y14, Y15, C

#define BF16X3(I) \
	VMOVUPS (I*4)(SI), Y12     \
	VMOVUPS (I*4)(DI), Y13     \
	VMOVUPS (I*4)(DX), Y14     \
	EVEN3(I, R8, Y0, Y4, Y8)   \
	EVEN3(I, R9, Y1, Y5, Y9)   \
	EVEN3(I, R10, Y2, Y6, Y10) \
	EVEN3(I, R11, Y3, Y7, Y11) \
	VMOVUPS (I*4+32)(SI), Y12  \
	VMOVUPS (I*4+32)(DI), Y13  \
	VMOVUPS (I*4+32)(DX), Y14  \
	ODD3(I, R8, Y0, Y4, Y8)    \
	ODD3(I, R9, Y1, Y5, Y9)    \
	ODD3(I, R10, Y2, Y6, Y10)  \
	ODD3(I, R11, Y3, Y7, Y11)

#define PREFETCH(OFFSET) \
	PREFETCHT0 OFFSET(R8)(BX*1)  \
	PREFETCHT0 OFFSET(R9)(BX*1)  \
	PREFETCHT0 OFFSET(R10)(BX*1) \
	PREFETCHT0 OFFSET(R11)(BX*1)

// Moves on by W bytes of the rows w and X of the rows x.
#define ADVANCE(W, X) \
	ADDQ $W, R8  \
	ADDQ $W, R9  \
	ADDQ $W, R10 \
	ADDQ $W, R11 \
	ADDQ $X, SI  \
	ADDQ $X, DI  \
	ADDQ $X, DX

#define LOOP_F32(STEP) \
	SUBQ $32, CX      \
	JLT  rest         \
	PCALIGN $32       \
blocks:               \
	PREFETCH(0)       \
	PREFETCH(64)      \
	STEP(0)           \
	STEP(8)           \
	STEP(16)          \
	STEP(24)          \
	ADVANCE(128, 128) \
	SUBQ $32, CX      \
	JGE  blocks       \
rest:                 \
	ADDQ $24, CX      \
	JLT  summed       \
one:                  \
	STEP(0)           \
	ADVANCE(32, 32)   \
	SUBQ $8, CX       \
	JGE  one          \
summed:

#define LOOP_BF16(STEP) \
	SUBQ $32, CX      \
	JLT  rest         \
	PCALIGN $32       \
blocks:               \
	PREFETCH(0)       \
	STEP(0)           \
	STEP(16)          \
	ADVANCE(64, 128)  \
	SUBQ $32, CX      \
	JGE  blocks       \
rest:                 \
	ADDQ $16, CX      \
	JLT  summed       \
	STEP(0)           \
summed:

// Adds the lanes of A-D and stores the four sums.
#define REDUCE(A, B, C, D, XA, XB, OUT) \
	VHADDPS      B, A, A                   \
	VHADDPS      D, C, C                   \
	VHADDPS      C, A, A                   \
	VEXTRACTF128 $1, A, XB                 \
	VADDPS       XB, XA, XA                \
	VMOVUPS      XA, (dotTile_out+OUT)(AX)

#define REDUCE1 REDUCE(Y0, Y1, Y2, Y3, X0, X1, 0)
#define REDUCE2 REDUCE(Y4, Y5, Y6, Y7, X4, X5, 16)
#define REDUCE3 REDUCE(Y8, Y9, Y10, Y11, X8, X9, 32)

#define BEGIN(CLEAR, LOAD) \
	LOAD_TILE                    \
	CLEAR                        \
	CMPQ dotTile_begun(AX), $0   \
	JEQ  cleared                 \
	LOAD                         \
cleared:

#define END(STORE, REDUCE) \
	CMPQ dotTile_more(AX), $0 \
	JEQ  reduce               \
	STORE                     \
	VZEROUPPER                \
	RET                       \
reduce:                       \
	REDUCE                    \
	VZEROUPPER                \
	RET

#define CLEAR12 \
	CLEAR1 \
	CLEAR2

#define CLEAR123 \
	CLEAR12 \
	CLEAR3

#define LANES12(DO) \
	LANES1(DO) \
	LANES2(DO)

#define LANES123(DO) \
	LANES12(DO) \
	LANES3(DO)

#define REDUCE12 \
	REDUCE1 \
	REDUCE2

#define REDUCE123 \
	REDUCE12 \
	REDUCE3

// func tileF32x1(t *dotTile)
TEXT ·tileF32x1(SB), NOSPLIT, $0-8
	BEGIN(CLEAR1, LANES1(LOAD4))
	LOOP_F32(F32X1)
	END(LANES1(STORE4), REDUCE1)

// func tileF32x2(t *dotTile)
TEXT ·tileF32x2(SB), NOSPLIT, $0-8
	BEGIN(CLEAR12, LANES12(LOAD4))
	LOOP_F32(F32X2)
	END(LANES12(STORE4), REDUCE12)

// func tileF32x3(t *dotTile)
TEXT ·tileF32x3(SB), NOSPLIT, $0-8
	BEGIN(CLEAR123, LANES123(LOAD4))
	LOOP_F32(F32X3)
	END(LANES123(STORE4), REDUCE123)

// func tileBF16x1(t *dotTile)
TEXT ·tileBF16x1(SB), NOSPLIT, $0-8
	BEGIN(CLEAR1, LANES1(LOAD4))
	VMOVUPS ·highHalves(SB), Y11
	LOOP_BF16(BF16X1)
	END(LANES1(STORE4), REDUCE1)

// func tileBF16x2(t *dotTile)
TEXT ·tileBF16x2(SB), NOSPLIT, $0-8
	BEGIN(CLEAR12, LANES12(LOAD4))
	VMOVUPS ·highHalves(SB), Y8
	LOOP_BF16(BF16X2)
	END(LANES12(STORE4), REDUCE12)

// func tileBF16x3(t *dotTile)
TEXT ·tileBF16x3(SB), NOSPLIT, $0-8
	BEGIN(CLEAR123, LANES123(LOAD4))
	LOOP_BF16(BF16X3)
	END(LANES123(STORE4), REDUCE123)

// func swizzleAVX2(dst, x *float32, n int)
TEXT ·swizzleAVX2(SB), NOSPLIT, $0-24
	MOVQ dst+0(FP), DI
	MOVQ x+8(FP), SI
	MOVQ n+16(FP), CX

swizzle:
	VMOVUPS (SI), Y0
	VMOVUPS 32(SI), Y1
	VSHUFPS $0x88, Y1, Y0, Y2 // even elements of the halves
	VSHUFPS $0xdd, Y1, Y0, Y3
	VPERMPD $0xd8, Y2, Y2
	VPERMPD $0xd8, Y3, Y3
	VMOVUPS Y2, (DI)
	VMOVUPS Y3, 32(DI)
	ADDQ    $64, SI
	ADDQ    $64, DI
	SUBQ    $16, CX
	JG      swizzle
	VZEROUPPER
	RET
