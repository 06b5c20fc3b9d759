//go:build !purego

#include "textflag.h"

// Every routine takes sixteen elements at a time and the rest under a mask. What an element becomes is what the
// routine of simd_amd64.s or rows_amd64.s makes of it, bit for bit.

// K1 = the lowest CX bits, for CX of 1 to 16 elements left; uses AX.
#define MASK_REST \
	MOVQ  $-1, AX    \
	BZHIQ CX, AX, AX \
	KMOVW AX, K1

// func axpyAVX512(a float32, x, y *float32, n int)
TEXT ·axpyAVX512(SB), NOSPLIT, $0-32
	VBROADCASTSS a+0(FP), Z0
	MOVQ         x+8(FP), SI
	MOVQ         y+16(FP), DI
	MOVQ         n+24(FP), CX
	SUBQ         $64, CX
	JLT          sixteens

blocks:
	VMOVUPS     (DI), Z1
	VMOVUPS     64(DI), Z2
	VMOVUPS     128(DI), Z3
	VMOVUPS     192(DI), Z4
	VFMADD231PS (SI), Z0, Z1
	VFMADD231PS 64(SI), Z0, Z2
	VFMADD231PS 128(SI), Z0, Z3
	VFMADD231PS 192(SI), Z0, Z4
	VMOVUPS     Z1, (DI)
	VMOVUPS     Z2, 64(DI)
	VMOVUPS     Z3, 128(DI)
	VMOVUPS     Z4, 192(DI)
	ADDQ        $256, SI
	ADDQ        $256, DI
	SUBQ        $64, CX
	JGE         blocks

sixteens:
	ADDQ $48, CX
	JLT  rest

sixteen:
	VMOVUPS     (DI), Z1
	VFMADD231PS (SI), Z0, Z1
	VMOVUPS     Z1, (DI)
	ADDQ        $64, SI
	ADDQ        $64, DI
	SUBQ        $16, CX
	JGE         sixteen

rest:
	ADDQ        $16, CX
	JLE         done
	MASK_REST
	VMOVUPS.Z   (DI), K1, Z1
	VMOVUPS.Z   (SI), K1, Z2
	VFMADD231PS Z2, Z0, Z1
	VMOVUPS     Z1, K1, (DI)

done:
	VZEROUPPER
	RET

// func scaleAVX512(a float32, x *float32, n int)
TEXT ·scaleAVX512(SB), NOSPLIT, $0-24
	VBROADCASTSS a+0(FP), Z0
	MOVQ         x+8(FP), SI
	MOVQ         n+16(FP), CX
	SUBQ         $16, CX
	JLT          rest

sixteen:
	VMULPS  (SI), Z0, Z1
	VMOVUPS Z1, (SI)
	ADDQ    $64, SI
	SUBQ    $16, CX
	JGE     sixteen

rest:
	ADDQ      $16, CX
	JLE       done
	MASK_REST
	VMOVUPS.Z (SI), K1, Z1
	VMULPS    Z1, Z0, Z1
	VMOVUPS   Z1, K1, (SI)

done:
	VZEROUPPER
	RET

// func expAVX512(dst, x *float32, n int)
TEXT ·expAVX512(SB), NOSPLIT, $0-24
	MOVQ         dst+0(FP), DI
	MOVQ         x+8(FP), SI
	MOVQ         n+16(FP), CX
	VBROADCASTSS ·expTable+0(SB), Z4
	VBROADCASTSS ·expTable+4(SB), Z5
	VBROADCASTSS ·expTable+8(SB), Z6
	VBROADCASTSS ·expTable+12(SB), Z7
	VBROADCASTSS ·expTable+16(SB), Z8
	VBROADCASTSS ·expTable+20(SB), Z9
	VBROADCASTSS ·expTable+24(SB), Z10
	VBROADCASTSS ·expTable+28(SB), Z11
	VBROADCASTSS ·expTable+32(SB), Z12
	VBROADCASTSS ·expTable+36(SB), Z13
	VBROADCASTSS ·expTable+40(SB), Z14
	VPBROADCASTD ·expTable+44(SB), Z15
	KXNORW       K1, K1, K1

loop:
	CMPQ CX, $16
	JGE  whole
	MASK_REST

whole:
	VMOVUPS.Z    (SI), K1, Z0
	VMAXPS       Z0, Z4, Z0    // a NaN stays: the last operand wins
	VMINPS       Z0, Z5, Z0
	VMULPS       Z6, Z0, Z1
	VRNDSCALEPS  $0, Z1, Z1    // n
	VFNMADD231PS Z7, Z1, Z0
	VFNMADD231PS Z8, Z1, Z0    // r
	VMOVAPS      Z9, Z2
	VFMADD213PS  Z10, Z0, Z2
	VFMADD213PS  Z11, Z0, Z2
	VFMADD213PS  Z12, Z0, Z2
	VFMADD213PS  Z13, Z0, Z2   // q
	VMULPS       Z0, Z0, Z3
	VFMADD231PS  Z3, Z2, Z0    // r + r^2 q
	VADDPS       Z14, Z0, Z0
	VCVTPS2DQ    Z1, Z1
	VPSRAD       $1, Z1, Z2    // half of n
	VPSUBD       Z2, Z1, Z1
	VPADDD       Z15, Z2, Z2
	VPADDD       Z15, Z1, Z1
	VPSLLD       $23, Z2, Z2
	VPSLLD       $23, Z1, Z1
	VMULPS       Z2, Z0, Z0
	VMULPS       Z1, Z0, Z0
	VMOVUPS      Z0, K1, (DI)
	ADDQ         $64, SI
	ADDQ         $64, DI
	SUBQ         $16, CX
	JG           loop
	VZEROUPPER
	RET

// A-D = which of the next 64 columns exist, sixteen a mask, for CX left; uses AX and R13.
#define MASK_FOUR(A, B, C, D) \
	MOVQ    $64, AX      \
	CMPQ    CX, AX       \
	CMOVQLT CX, AX       \
	MOVQ    $-1, R13     \
	BZHIQ   AX, R13, AX  \
	KMOVW   AX, A        \
	SHRQ    $16, AX      \
	KMOVW   AX, B        \
	SHRQ    $16, AX      \
	KMOVW   AX, C        \
	SHRQ    $16, AX      \
	KMOVW   AX, D

#define LOAD_FOUR(R, A, B, C, D) \
	VMOVUPS.Z (R)(BX*1), K1, A   \
	VMOVUPS.Z 64(R)(BX*1), K2, B  \
	VMOVUPS.Z 128(R)(BX*1), K3, C \
	VMOVUPS.Z 192(R)(BX*1), K4, D

#define STORE_FOUR(R, A, B, C, D) \
	VMOVUPS A, K1, (R)(BX*1)   \
	VMOVUPS B, K2, 64(R)(BX*1)  \
	VMOVUPS C, K3, 128(R)(BX*1) \
	VMOVUPS D, K4, 192(R)(BX*1)

// func addRowsAVX512(sum *float32, row *uintptr, factor *float32, count, n int)
// Takes 128 columns at a time, then 64 under four masks. BX is the offset of the columns, DX the row.
TEXT ·addRowsAVX512(SB), NOSPLIT, $0-40
	MOVQ sum+0(FP), DI
	MOVQ row+8(FP), SI
	MOVQ factor+16(FP), R8
	MOVQ count+24(FP), R9
	MOVQ n+32(FP), CX
	XORQ BX, BX

wide:
	CMPQ    CX, $128
	JLT     panel
	VMOVUPS (DI)(BX*1), Z0
	VMOVUPS 64(DI)(BX*1), Z1
	VMOVUPS 128(DI)(BX*1), Z2
	VMOVUPS 192(DI)(BX*1), Z3
	VMOVUPS 256(DI)(BX*1), Z4
	VMOVUPS 320(DI)(BX*1), Z5
	VMOVUPS 384(DI)(BX*1), Z6
	VMOVUPS 448(DI)(BX*1), Z7
	XORQ    DX, DX

wideRow:
	MOVQ         (SI)(DX*8), R10
	VBROADCASTSS (R8)(DX*4), Z8
	ADDQ         BX, R10
	VFMADD231PS  (R10), Z8, Z0
	VFMADD231PS  64(R10), Z8, Z1
	VFMADD231PS  128(R10), Z8, Z2
	VFMADD231PS  192(R10), Z8, Z3
	VFMADD231PS  256(R10), Z8, Z4
	VFMADD231PS  320(R10), Z8, Z5
	VFMADD231PS  384(R10), Z8, Z6
	VFMADD231PS  448(R10), Z8, Z7
	INCQ         DX
	CMPQ         DX, R9
	JLT          wideRow
	VMOVUPS      Z0, (DI)(BX*1)
	VMOVUPS      Z1, 64(DI)(BX*1)
	VMOVUPS      Z2, 128(DI)(BX*1)
	VMOVUPS      Z3, 192(DI)(BX*1)
	VMOVUPS      Z4, 256(DI)(BX*1)
	VMOVUPS      Z5, 320(DI)(BX*1)
	VMOVUPS      Z6, 384(DI)(BX*1)
	VMOVUPS      Z7, 448(DI)(BX*1)
	ADDQ         $512, BX
	SUBQ         $128, CX
	JMP          wide

panel:
	TESTQ CX, CX
	JLE   done
	MASK_FOUR(K1, K2, K3, K4)
	LOAD_FOUR(DI, Z0, Z1, Z2, Z3)
	XORQ DX, DX

panelRow:
	MOVQ         (SI)(DX*8), R10
	VBROADCASTSS (R8)(DX*4), Z8
	LOAD_FOUR(R10, Z4, Z5, Z6, Z7)
	VFMADD231PS  Z4, Z8, Z0
	VFMADD231PS  Z5, Z8, Z1
	VFMADD231PS  Z6, Z8, Z2
	VFMADD231PS  Z7, Z8, Z3
	INCQ         DX
	CMPQ         DX, R9
	JLT          panelRow
	STORE_FOUR(DI, Z0, Z1, Z2, Z3)
	ADDQ         $256, BX
	SUBQ         $64, CX
	JMP          panel

done:
	VZEROUPPER
	RET

// Sixteen columns of a row, times the factors, added to three sums.
#define ADD3(ROW, A, B, C) \
	VFMADD231PS Z12, ROW, A \
	VFMADD231PS Z13, ROW, B \
	VFMADD231PS Z14, ROW, C

// func addRows3AVX512(sum0, sum1, sum2 *float32, row *uintptr, factor0, factor1, factor2 *float32, count, n int)
// Takes 64 columns at a time under four masks. BX is the offset of the columns, DX the row.
TEXT ·addRows3AVX512(SB), NOSPLIT, $0-72
	MOVQ sum0+0(FP), DI
	MOVQ sum1+8(FP), R11
	MOVQ sum2+16(FP), R12
	MOVQ row+24(FP), SI
	MOVQ factor0+32(FP), R8
	MOVQ factor1+40(FP), R9
	MOVQ factor2+48(FP), R10
	MOVQ n+64(FP), CX
	XORQ BX, BX

panel:
	MASK_FOUR(K1, K2, K3, K4)
	LOAD_FOUR(DI, Z0, Z1, Z2, Z3)
	LOAD_FOUR(R11, Z4, Z5, Z6, Z7)
	LOAD_FOUR(R12, Z8, Z9, Z10, Z11)
	XORQ DX, DX

panelRow:
	MOVQ         (SI)(DX*8), R13
	VBROADCASTSS (R8)(DX*4), Z12
	VBROADCASTSS (R9)(DX*4), Z13
	VBROADCASTSS (R10)(DX*4), Z14
	LOAD_FOUR(R13, Z16, Z17, Z18, Z19)
	ADD3(Z16, Z0, Z4, Z8)
	ADD3(Z17, Z1, Z5, Z9)
	ADD3(Z18, Z2, Z6, Z10)
	ADD3(Z19, Z3, Z7, Z11)
	INCQ         DX
	CMPQ         DX, count+56(FP)
	JLT          panelRow
	STORE_FOUR(DI, Z0, Z1, Z2, Z3)
	STORE_FOUR(R11, Z4, Z5, Z6, Z7)
	STORE_FOUR(R12, Z8, Z9, Z10, Z11)
	ADDQ         $256, BX
	SUBQ         $64, CX
	JG           panel
	VZEROUPPER
	RET

// func fmaLoopAVX512(n int) float32
TEXT ·fmaLoopAVX512(SB), NOSPLIT, $0-12
	MOVQ         n+0(FP), CX
	VBROADCASTSS ·expTable+36(SB), Z30
	VMOVAPS      Z30, Z31
	VPXORD       Z0, Z0, Z0
	VMOVAPS      Z0, Z1
	VMOVAPS      Z0, Z2
	VMOVAPS      Z0, Z3
	VMOVAPS      Z0, Z4
	VMOVAPS      Z0, Z5
	VMOVAPS      Z0, Z6
	VMOVAPS      Z0, Z7
	VMOVAPS      Z0, Z8
	VMOVAPS      Z0, Z9
	VMOVAPS      Z0, Z10
	VMOVAPS      Z0, Z11

fmaloop:
	VFMADD132PS Z30, Z31, Z0
	VFMADD132PS Z30, Z31, Z1
	VFMADD132PS Z30, Z31, Z2
	VFMADD132PS Z30, Z31, Z3
	VFMADD132PS Z30, Z31, Z4
	VFMADD132PS Z30, Z31, Z5
	VFMADD132PS Z30, Z31, Z6
	VFMADD132PS Z30, Z31, Z7
	VFMADD132PS Z30, Z31, Z8
	VFMADD132PS Z30, Z31, Z9
	VFMADD132PS Z30, Z31, Z10
	VFMADD132PS Z30, Z31, Z11
	DECQ        CX
	JNZ         fmaloop
	VADDPS      Z1, Z0, Z0
	VADDPS      Z11, Z0, Z0
	VMOVSS      X0, ret+8(FP)
	VZEROUPPER
	RET
