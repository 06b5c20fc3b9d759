//go:build !purego

#include "textflag.h"

// The routines of ssm_simd_amd64.s on sixteen floats, the rest under a mask; no bit differs.

// The constants of siluTable in Z16-Z28.
#define SILU_CONSTANTS \
	VBROADCASTSS ·siluTable+0(SB), Z16  \
	VBROADCASTSS ·siluTable+32(SB), Z17  \
	VBROADCASTSS ·siluTable+64(SB), Z18  \
	VBROADCASTSS ·siluTable+96(SB), Z19 \
	VBROADCASTSS ·siluTable+128(SB), Z20 \
	VBROADCASTSS ·siluTable+160(SB), Z21 \
	VBROADCASTSS ·siluTable+192(SB), Z22 \
	VBROADCASTSS ·siluTable+224(SB), Z23 \
	VBROADCASTSS ·siluTable+256(SB), Z24 \
	VBROADCASTSS ·siluTable+288(SB), Z25 \
	VBROADCASTSS ·siluTable+320(SB), Z26 \
	VBROADCASTSS ·siluTable+352(SB), Z27 \
	VBROADCASTSS ·siluTable+384(SB), Z28

// Z0 = Z0 / (1 + exp(-Z0)); uses Z1, Z2, Z3.
#define SILU \
	VPXORD       Z28, Z0, Z1 \
	VMINPS       Z16, Z1, Z1 \
	VMAXPS       Z17, Z1, Z1 \
	VMULPS       Z18, Z1, Z2 \
	VRNDSCALEPS  $0, Z2, Z2  \
	VFNMADD231PS Z19, Z2, Z1 \
	VFNMADD231PS Z20, Z2, Z1 \
	VMOVAPS      Z21, Z3     \
	VFMADD213PS  Z22, Z1, Z3 \
	VFMADD213PS  Z23, Z1, Z3 \
	VFMADD213PS  Z24, Z1, Z3 \
	VFMADD213PS  Z25, Z1, Z3 \
	VFMADD213PS  Z26, Z1, Z3 \
	VFMADD213PS  Z27, Z1, Z3 \
	VFMADD213PS  Z27, Z1, Z3 \
	VCVTPS2DQ    Z2, Z2      \
	VPSLLD       $23, Z2, Z2 \
	VPADDD       Z2, Z3, Z3  \
	VADDPS       Z27, Z3, Z3 \
	VDIVPS       Z3, Z0, Z0

// K1 = which of the next sixteen elements exist, for CX left; uses DX.
#define MASK_NEXT \
	MOVQ    $16, DX    \
	CMPQ    CX, DX     \
	CMOVQGT DX, CX     \
	MOVQ    $-1, DX    \
	BZHIQ   CX, DX, DX \
	KMOVW   DX, K1

// func siluMul16(out, z, y *float32, n int)
TEXT ·siluMul16(SB), NOSPLIT, $0-32
	MOVQ out+0(FP), DI
	MOVQ z+8(FP), SI
	MOVQ y+16(FP), R8
	MOVQ n+24(FP), R9
	XORQ AX, AX
	SILU_CONSTANTS

siluloop:
	MOVQ      R9, CX
	MASK_NEXT
	VMOVUPS.Z (SI)(AX*4), K1, Z0
	VMOVUPS.Z (R8)(AX*4), K1, Z4
	SILU
	VMULPS    Z4, Z0, Z0
	VMOVUPS   Z0, K1, (DI)(AX*4)
	ADDQ      $16, AX
	SUBQ      $16, R9
	JG        siluloop
	VZEROUPPER
	RET

// func scaleMul16(out, x, w *float32, n int, a float32)
// w may be nil.
TEXT ·scaleMul16(SB), NOSPLIT, $0-36
	MOVQ         out+0(FP), DI
	MOVQ         x+8(FP), SI
	MOVQ         w+16(FP), R8
	MOVQ         n+24(FP), R9
	VBROADCASTSS a+32(FP), Z1
	XORQ         AX, AX

scaleloop:
	MOVQ      R9, CX
	MASK_NEXT
	VMOVUPS.Z (SI)(AX*4), K1, Z0
	VMULPS    Z0, Z1, Z0
	TESTQ     R8, R8
	JZ        scaled
	VMOVUPS.Z (R8)(AX*4), K1, Z2
	VMULPS    Z2, Z0, Z0

scaled:
	VMOVUPS Z0, K1, (DI)(AX*4)
	ADDQ    $16, AX
	SUBQ    $16, R9
	JG      scaleloop
	VZEROUPPER
	RET

// Four floats each of the channels c, c+4, c+8, c+12, from byte OFFSET on.
#define CHANNELS(OFFSET, Z, Y, X) \
	VMOVUPS      (OFFSET)(SI), X             \
	VINSERTF128  $1, (OFFSET+64)(SI), Y, Y   \
	VINSERTF32X4 $2, (OFFSET+128)(SI), Z, Z  \
	VINSERTF32X4 $3, (OFFSET+192)(SI), Z, Z

// func convSilu16(out, w, bias, x0, x1, x2, x3 *float32, n int)
// Four taps a channel; n > 0 is a multiple of 16; bias may be nil.
TEXT ·convSilu16(SB), NOSPLIT, $0-64
	MOVQ out+0(FP), DI
	MOVQ w+8(FP), SI
	MOVQ bias+16(FP), BX
	MOVQ x0+24(FP), R8
	MOVQ x1+32(FP), R9
	MOVQ x2+40(FP), R10
	MOVQ x3+48(FP), R11
	MOVQ n+56(FP), CX
	XORQ AX, AX // byte offset of the channel
	SILU_CONSTANTS

convloop:
	CHANNELS(0, Z4, Y4, X4)
	CHANNELS(16, Z5, Y5, X5)
	CHANNELS(32, Z6, Y6, X6)
	CHANNELS(48, Z7, Y7, X7)
	VUNPCKLPS   Z5, Z4, Z8
	VUNPCKHPS   Z5, Z4, Z9
	VUNPCKLPS   Z7, Z6, Z10
	VUNPCKHPS   Z7, Z6, Z11
	VUNPCKLPD   Z10, Z8, Z4
	VUNPCKHPD   Z10, Z8, Z5
	VUNPCKLPD   Z11, Z9, Z6
	VUNPCKHPD   Z11, Z9, Z7
	VPXORD      Z0, Z0, Z0
	TESTQ       BX, BX
	JZ          nobias
	VMOVUPS     (BX)(AX*1), Z0

nobias:
	VFMADD231PS (R8)(AX*1), Z4, Z0
	VFMADD231PS (R9)(AX*1), Z5, Z0
	VFMADD231PS (R10)(AX*1), Z6, Z0
	VFMADD231PS (R11)(AX*1), Z7, Z0
	SILU
	VMOVUPS     Z0, (DI)(AX*1)
	ADDQ        $256, SI
	ADDQ        $64, AX
	SUBQ        $16, CX
	JNZ         convloop
	VZEROUPPER
	RET

#define BOTH(DO, R, STEP) \
	DO(R, Z0, Z1)   \
	ADDQ STEP, R    \
	DO(R, Z2, Z3)   \
	ADDQ STEP, R    \
	DO(R, Z4, Z5)   \
	ADDQ STEP, R    \
	DO(R, Z6, Z7)   \
	ADDQ STEP, R    \
	DO(R, Z8, Z9)   \
	ADDQ STEP, R    \
	DO(R, Z10, Z11) \
	ADDQ STEP, R    \
	DO(R, Z12, Z13) \
	ADDQ STEP, R    \
	DO(R, Z14, Z15)

#define CLEAR2(R, A, B) \
	VPXORD A, A, A \
	VPXORD B, B, B

#define SCALED2(R, A, B) \
	VMULPS (R), Z31, A   \
	VMULPS 64(R), Z31, B

#define STORE2(R, A, B) \
	VMOVUPS A, (R)   \
	VMOVUPS B, 64(R)

// Element AT of a with 32 columns of b in Z16 and Z17.
#define ROW2(AT, S, A, B) \
	VBROADCASTSS AT, S    \
	VFMADD231PS Z16, S, A \
	VFMADD231PS Z17, S, B

// func tile8x32(dst, src, a, b *float32, ldd, lds, rs, cs, ldb, k int, beta float32)
// dst[8, 32] = beta*src + a b; without src, a b. a has element (i, j) at i*rs + j*cs; k may be 0.
TEXT ·tile8x32(SB), NOSPLIT, $0-84
	MOVQ dst+0(FP), DI
	MOVQ src+8(FP), SI
	MOVQ a+16(FP), AX
	MOVQ b+24(FP), BX
	MOVQ ldd+32(FP), R8
	MOVQ lds+40(FP), R9
	MOVQ rs+48(FP), R10
	MOVQ cs+56(FP), R11
	MOVQ ldb+64(FP), R12
	MOVQ k+72(FP), CX
	VBROADCASTSS beta+80(FP), Z31
	SHLQ $2, R8
	SHLQ $2, R9
	SHLQ $2, R10
	SHLQ $2, R11
	SHLQ $2, R12
	TESTQ SI, SI
	JZ    nosource
	BOTH(SCALED2, SI, R9)
	JMP   start

nosource:
	BOTH(CLEAR2, SI, R9)

start:
	LEAQ  (R10)(R10*2), R13
	LEAQ  (AX)(R10*4), DX
	TESTQ CX, CX
	JZ    store

loop:
	VMOVUPS (BX), Z16
	VMOVUPS 64(BX), Z17
	ROW2((AX), Z18, Z0, Z1)
	ROW2((AX)(R10*1), Z19, Z2, Z3)
	ROW2((AX)(R10*2), Z20, Z4, Z5)
	ROW2((AX)(R13*1), Z21, Z6, Z7)
	ROW2((DX), Z22, Z8, Z9)
	ROW2((DX)(R10*1), Z23, Z10, Z11)
	ROW2((DX)(R10*2), Z24, Z12, Z13)
	ROW2((DX)(R13*1), Z25, Z14, Z15)
	ADDQ R11, AX
	ADDQ R11, DX
	ADDQ R12, BX
	DECQ CX
	JNZ  loop

store:
	BOTH(STORE2, DI, R8)
	VZEROUPPER
	RET
