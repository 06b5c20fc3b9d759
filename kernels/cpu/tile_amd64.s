//go:build !purego

#include "go_asm.h"
#include "textflag.h"

// Registers of all routines: R8-R11 rows w, SI DI DX rows x, CX elements left less 32, BX distance of the prefetch.
// Y0-Y3, Y4-Y7, Y8-Y11 sums of x 0, 1, 2 with the four w; Y12-Y14 eight elements of the x; Y15 of a w.

#define LOAD_TILE \
	MOVQ t+0(FP), AX          \
	MOVQ (dotTile_w+0)(AX), R8   \
	MOVQ (dotTile_w+8)(AX), R9   \
	MOVQ (dotTile_w+16)(AX), R10 \
	MOVQ (dotTile_w+24)(AX), R11 \
	MOVQ (dotTile_x+0)(AX), SI   \
	MOVQ (dotTile_x+8)(AX), DI   \
	MOVQ (dotTile_x+16)(AX), DX  \
	MOVQ dotTile_n(AX), CX       \
	MOVQ dotTile_ahead(AX), BX   \
	SUBQ $32, CX

#define CLEAR4(A, B, C, D) \
	VXORPS A, A, A \
	VXORPS B, B, B \
	VXORPS C, C, C \
	VXORPS D, D, D

// Eight elements, from element I on, of a row.
#define F32(I, R, Y) VMOVUPS (I*4)(R), Y

#define BF16(I, R, Y) \
	VPMOVZXWD (I*2)(R), Y \
	VPSLLD    $16, Y, Y

#define STEP1(I, LOAD) \
	VMOVUPS     (I*4)(SI), Y12 \
	LOAD(I, R8, Y15)           \
	VFMADD231PS Y12, Y15, Y0   \
	LOAD(I, R9, Y14)           \
	VFMADD231PS Y12, Y14, Y1   \
	LOAD(I, R10, Y13)          \
	VFMADD231PS Y12, Y13, Y2   \
	LOAD(I, R11, Y11)          \
	VFMADD231PS Y12, Y11, Y3

#define STEP2(I, LOAD) \
	VMOVUPS     (I*4)(SI), Y12 \
	VMOVUPS     (I*4)(DI), Y13 \
	LOAD(I, R8, Y15)           \
	VFMADD231PS Y12, Y15, Y0   \
	VFMADD231PS Y13, Y15, Y4   \
	LOAD(I, R9, Y14)           \
	VFMADD231PS Y12, Y14, Y1   \
	VFMADD231PS Y13, Y14, Y5   \
	LOAD(I, R10, Y11)          \
	VFMADD231PS Y12, Y11, Y2   \
	VFMADD231PS Y13, Y11, Y6   \
	LOAD(I, R11, Y10)          \
	VFMADD231PS Y12, Y10, Y3   \
	VFMADD231PS Y13, Y10, Y7

#define STEP3(I, LOAD) \
	VMOVUPS     (I*4)(SI), Y12 \
	VMOVUPS     (I*4)(DI), Y13 \
	VMOVUPS     (I*4)(DX), Y14 \
	LOAD(I, R8, Y15)           \
	VFMADD231PS Y12, Y15, Y0   \
	VFMADD231PS Y13, Y15, Y4   \
	VFMADD231PS Y14, Y15, Y8   \
	LOAD(I, R9, Y15)           \
	VFMADD231PS Y12, Y15, Y1   \
	VFMADD231PS Y13, Y15, Y5   \
	VFMADD231PS Y14, Y15, Y9   \
	LOAD(I, R10, Y15)          \
	VFMADD231PS Y12, Y15, Y2   \
	VFMADD231PS Y13, Y15, Y6   \
	VFMADD231PS Y14, Y15, Y10  \
	LOAD(I, R11, Y15)          \
	VFMADD231PS Y12, Y15, Y3   \
	VFMADD231PS Y13, Y15, Y7   \
	VFMADD231PS Y14, Y15, Y11

#define PREFETCH(OFFSET) \
	PREFETCHT0 OFFSET(R8)(BX*1)  \
	PREFETCHT0 OFFSET(R9)(BX*1)  \
	PREFETCHT0 OFFSET(R10)(BX*1) \
	PREFETCHT0 OFFSET(R11)(BX*1)

#define PREFETCH_F32 \
	PREFETCH(0)  \
	PREFETCH(64)

#define PREFETCH_BF16 PREFETCH(0)

#define ADVANCE(W, X) \
	ADDQ $W, R8  \
	ADDQ $W, R9  \
	ADDQ $W, R10 \
	ADDQ $W, R11 \
	ADDQ $X, SI  \
	ADDQ $X, DI  \
	ADDQ $X, DX

// SIZE bytes an element of w.
#define LOOPS(STEP, LOAD, SIZE, AHEAD) \
	JLT eights                      \
	PCALIGN $32                     \
blocks:                             \
	AHEAD                           \
	STEP(0, LOAD)                   \
	STEP(8, LOAD)                   \
	STEP(16, LOAD)                  \
	STEP(24, LOAD)                  \
	ADVANCE(32*SIZE, 128)           \
	SUBQ $32, CX                    \
	JGE blocks                      \
eights:                             \
	ADDQ $24, CX                    \
	JLT done                        \
eight:                              \
	STEP(0, LOAD)                   \
	ADVANCE(8*SIZE, 32)             \
	SUBQ $8, CX                     \
	JGE eight                       \
done:

// Sums the lanes of A-D and stores the four sums. T is A as an X register.
#define REDUCE(A, B, C, D, XA, XB, OUT) \
	VHADDPS      B, A, A                  \
	VHADDPS      D, C, C                  \
	VHADDPS      C, A, A                  \
	VEXTRACTF128 $1, A, XB                \
	VADDPS       XB, XA, XA               \
	VMOVUPS      XA, (dotTile_out+OUT)(AX)

#define REDUCE1 REDUCE(Y0, Y1, Y2, Y3, X0, X1, 0)
#define REDUCE2 REDUCE(Y4, Y5, Y6, Y7, X4, X5, 16)
#define REDUCE3 REDUCE(Y8, Y9, Y10, Y11, X8, X9, 32)

// func tileF32x1(t *dotTile)
TEXT ·tileF32x1(SB), NOSPLIT, $0-8
	LOAD_TILE
	CLEAR4(Y0, Y1, Y2, Y3)
	CMPQ CX, $0
	LOOPS(STEP1, F32, 4, PREFETCH_F32)
	REDUCE1
	VZEROUPPER
	RET

// func tileF32x2(t *dotTile)
TEXT ·tileF32x2(SB), NOSPLIT, $0-8
	LOAD_TILE
	CLEAR4(Y0, Y1, Y2, Y3)
	CLEAR4(Y4, Y5, Y6, Y7)
	CMPQ CX, $0
	LOOPS(STEP2, F32, 4, PREFETCH_F32)
	REDUCE1
	REDUCE2
	VZEROUPPER
	RET

// func tileF32x3(t *dotTile)
TEXT ·tileF32x3(SB), NOSPLIT, $0-8
	LOAD_TILE
	CLEAR4(Y0, Y1, Y2, Y3)
	CLEAR4(Y4, Y5, Y6, Y7)
	CLEAR4(Y8, Y9, Y10, Y11)
	CMPQ CX, $0
	LOOPS(STEP3, F32, 4, PREFETCH_F32)
	REDUCE1
	REDUCE2
	REDUCE3
	VZEROUPPER
	RET

// func tileBF16x1(t *dotTile)
TEXT ·tileBF16x1(SB), NOSPLIT, $0-8
	LOAD_TILE
	CLEAR4(Y0, Y1, Y2, Y3)
	CMPQ CX, $0
	LOOPS(STEP1, BF16, 2, PREFETCH_BF16)
	REDUCE1
	VZEROUPPER
	RET

// func tileBF16x2(t *dotTile)
TEXT ·tileBF16x2(SB), NOSPLIT, $0-8
	LOAD_TILE
	CLEAR4(Y0, Y1, Y2, Y3)
	CLEAR4(Y4, Y5, Y6, Y7)
	CMPQ CX, $0
	LOOPS(STEP2, BF16, 2, PREFETCH_BF16)
	REDUCE1
	REDUCE2
	VZEROUPPER
	RET

// func tileBF16x3(t *dotTile)
TEXT ·tileBF16x3(SB), NOSPLIT, $0-8
	LOAD_TILE
	CLEAR4(Y0, Y1, Y2, Y3)
	CLEAR4(Y4, Y5, Y6, Y7)
	CLEAR4(Y8, Y9, Y10, Y11)
	CMPQ CX, $0
	LOOPS(STEP3, BF16, 2, PREFETCH_BF16)
	REDUCE1
	REDUCE2
	REDUCE3
	VZEROUPPER
	RET
