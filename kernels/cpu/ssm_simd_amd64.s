//go:build !purego

#include "textflag.h"

#define CONST8(off, bits) \
	DATA ·siluTable+(off+0)(SB)/4, $bits; \
	DATA ·siluTable+(off+4)(SB)/4, $bits; \
	DATA ·siluTable+(off+8)(SB)/4, $bits; \
	DATA ·siluTable+(off+12)(SB)/4, $bits; \
	DATA ·siluTable+(off+16)(SB)/4, $bits; \
	DATA ·siluTable+(off+20)(SB)/4, $bits; \
	DATA ·siluTable+(off+24)(SB)/4, $bits; \
	DATA ·siluTable+(off+28)(SB)/4, $bits

// Constants of exp, eight times each: bounds of the argument, 1/ln 2, ln 2 in two parts, 1/7! .. 1/2!, 1, sign bit.
CONST8(0, 0x42b00000)   // 88
CONST8(32, 0xc2ae0000)  // -87
CONST8(64, 0x3fb8aa3b)  // 1/ln 2
CONST8(96, 0x3f317200)  // ln 2, high part (exact products)
CONST8(128, 0x35bfbe8e) // ln 2, low part
CONST8(160, 0x39500d01) // 1/5040
CONST8(192, 0x3ab60b61) // 1/720
CONST8(224, 0x3c088889) // 1/120
CONST8(256, 0x3d2aaaab) // 1/24
CONST8(288, 0x3e2aaaab) // 1/6
CONST8(320, 0x3f000000) // 1/2
CONST8(352, 0x3f800000) // 1
CONST8(384, 0x80000000) // sign
GLOBL ·siluTable(SB), RODATA|NOPTR, $416

// Y0 = Y0 / (1 + exp(-Y0)); uses Y1, Y2, Y3.
#define SILU \
	VXORPS ·siluTable+384(SB), Y0, Y1; \
	VMINPS ·siluTable+0(SB), Y1, Y1; \
	VMAXPS ·siluTable+32(SB), Y1, Y1; \
	VMULPS ·siluTable+64(SB), Y1, Y2; \
	VROUNDPS $0, Y2, Y2; \
	VFNMADD231PS ·siluTable+96(SB), Y2, Y1; \
	VFNMADD231PS ·siluTable+128(SB), Y2, Y1; \
	VMOVUPS ·siluTable+160(SB), Y3; \
	VFMADD213PS ·siluTable+192(SB), Y1, Y3; \
	VFMADD213PS ·siluTable+224(SB), Y1, Y3; \
	VFMADD213PS ·siluTable+256(SB), Y1, Y3; \
	VFMADD213PS ·siluTable+288(SB), Y1, Y3; \
	VFMADD213PS ·siluTable+320(SB), Y1, Y3; \
	VFMADD213PS ·siluTable+352(SB), Y1, Y3; \
	VFMADD213PS ·siluTable+352(SB), Y1, Y3; \
	VCVTPS2DQ Y2, Y2; \
	VPSLLD $23, Y2, Y2; \
	VPADDD Y2, Y3, Y3; \
	VADDPS ·siluTable+352(SB), Y3, Y3; \
	VDIVPS Y3, Y0, Y0

// func siluMul8(out, z, y *float32, n int)
// n > 0 is a multiple of 8.
TEXT ·siluMul8(SB), NOSPLIT, $0-32
	MOVQ out+0(FP), DI
	MOVQ z+8(FP), SI
	MOVQ y+16(FP), DX
	MOVQ n+24(FP), CX
siluloop:
	VMOVUPS (SI), Y0
	SILU
	VMULPS (DX), Y0, Y0
	VMOVUPS Y0, (DI)
	ADDQ $32, DI
	ADDQ $32, SI
	ADDQ $32, DX
	SUBQ $8, CX
	JNZ siluloop
	VZEROUPPER
	RET

// func scaleMul8(out, x, w *float32, n int, a float32)
// n > 0 is a multiple of 8; w may be nil.
TEXT ·scaleMul8(SB), NOSPLIT, $0-36
	MOVQ out+0(FP), DI
	MOVQ x+8(FP), SI
	MOVQ w+16(FP), DX
	MOVQ n+24(FP), CX
	VBROADCASTSS a+32(FP), Y1
	XORQ AX, AX
	TESTQ DX, DX
	JZ scaleloop
scalemulloop:
	VMULPS (SI)(AX*1), Y1, Y0
	VMULPS (DX)(AX*1), Y0, Y0
	VMOVUPS Y0, (DI)(AX*1)
	ADDQ $32, AX
	SUBQ $8, CX
	JNZ scalemulloop
	VZEROUPPER
	RET
scaleloop:
	VMULPS (SI)(AX*1), Y1, Y0
	VMOVUPS Y0, (DI)(AX*1)
	ADDQ $32, AX
	SUBQ $8, CX
	JNZ scaleloop
	VZEROUPPER
	RET

// func convSilu8(out, w, bias, x0, x1, x2, x3 *float32, n int)
// Four taps a channel; n > 0 is a multiple of 8; bias may be nil.
TEXT ·convSilu8(SB), NOSPLIT, $0-64
	MOVQ out+0(FP), DI
	MOVQ w+8(FP), SI
	MOVQ bias+16(FP), BX
	MOVQ x0+24(FP), R8
	MOVQ x1+32(FP), R9
	MOVQ x2+40(FP), R10
	MOVQ x3+48(FP), R11
	MOVQ n+56(FP), CX
	XORQ AX, AX // byte offset of the channel
convloop:
	VMOVUPS (SI), X4
	VINSERTF128 $1, 64(SI), Y4, Y4
	VMOVUPS 16(SI), X5
	VINSERTF128 $1, 80(SI), Y5, Y5
	VMOVUPS 32(SI), X6
	VINSERTF128 $1, 96(SI), Y6, Y6
	VMOVUPS 48(SI), X7
	VINSERTF128 $1, 112(SI), Y7, Y7
	VUNPCKLPS Y5, Y4, Y8
	VUNPCKHPS Y5, Y4, Y9
	VUNPCKLPS Y7, Y6, Y10
	VUNPCKHPS Y7, Y6, Y11
	VUNPCKLPD Y10, Y8, Y4
	VUNPCKHPD Y10, Y8, Y5
	VUNPCKLPD Y11, Y9, Y6
	VUNPCKHPD Y11, Y9, Y7
	VXORPS Y0, Y0, Y0
	TESTQ BX, BX
	JZ nobias
	VMOVUPS (BX)(AX*1), Y0
nobias:
	VFMADD231PS (R8)(AX*1), Y4, Y0
	VFMADD231PS (R9)(AX*1), Y5, Y0
	VFMADD231PS (R10)(AX*1), Y6, Y0
	VFMADD231PS (R11)(AX*1), Y7, Y0
	SILU
	VMOVUPS Y0, (DI)(AX*1)
	ADDQ $128, SI
	ADDQ $32, AX
	SUBQ $8, CX
	JNZ convloop
	VZEROUPPER
	RET

// func dot8(out, a, v *float32, lda, n int)
// out[i] = a[i*lda : +n] . v for i < 8; n > 0 is a multiple of 8.
TEXT ·dot8(SB), NOSPLIT, $0-40
	MOVQ out+0(FP), DI
	MOVQ a+8(FP), AX
	MOVQ v+16(FP), DX
	MOVQ lda+24(FP), R8
	MOVQ n+32(FP), CX
	SHLQ $2, R8
	LEAQ (R8)(R8*2), BX
	LEAQ (AX)(BX*1), R9
	LEAQ (R9)(BX*1), R10
	VXORPS Y0, Y0, Y0
	VXORPS Y1, Y1, Y1
	VXORPS Y2, Y2, Y2
	VXORPS Y3, Y3, Y3
	VXORPS Y4, Y4, Y4
	VXORPS Y5, Y5, Y5
	VXORPS Y6, Y6, Y6
	VXORPS Y7, Y7, Y7
	CMPQ CX, $16
	JL dot8last
dot8loop:
	VMOVUPS (DX), Y8
	VFMADD231PS (AX), Y8, Y0
	VFMADD231PS (AX)(R8*1), Y8, Y1
	VFMADD231PS (AX)(R8*2), Y8, Y2
	VFMADD231PS (R9), Y8, Y3
	VFMADD231PS (R9)(R8*1), Y8, Y4
	VFMADD231PS (R9)(R8*2), Y8, Y5
	VFMADD231PS (R10), Y8, Y6
	VFMADD231PS (R10)(R8*1), Y8, Y7
	VMOVUPS 32(DX), Y8
	VFMADD231PS 32(AX), Y8, Y0
	VFMADD231PS 32(AX)(R8*1), Y8, Y1
	VFMADD231PS 32(AX)(R8*2), Y8, Y2
	VFMADD231PS 32(R9), Y8, Y3
	VFMADD231PS 32(R9)(R8*1), Y8, Y4
	VFMADD231PS 32(R9)(R8*2), Y8, Y5
	VFMADD231PS 32(R10), Y8, Y6
	VFMADD231PS 32(R10)(R8*1), Y8, Y7
	ADDQ $64, DX
	ADDQ $64, AX
	ADDQ $64, R9
	ADDQ $64, R10
	SUBQ $16, CX
	CMPQ CX, $16
	JGE dot8loop
	TESTQ CX, CX
	JZ dot8sum
dot8last:
	VMOVUPS (DX), Y8
	VFMADD231PS (AX), Y8, Y0
	VFMADD231PS (AX)(R8*1), Y8, Y1
	VFMADD231PS (AX)(R8*2), Y8, Y2
	VFMADD231PS (R9), Y8, Y3
	VFMADD231PS (R9)(R8*1), Y8, Y4
	VFMADD231PS (R9)(R8*2), Y8, Y5
	VFMADD231PS (R10), Y8, Y6
	VFMADD231PS (R10)(R8*1), Y8, Y7
dot8sum:
	VHADDPS Y1, Y0, Y0
	VHADDPS Y3, Y2, Y2
	VHADDPS Y5, Y4, Y4
	VHADDPS Y7, Y6, Y6
	VHADDPS Y2, Y0, Y0
	VHADDPS Y6, Y4, Y4
	VPERM2F128 $0x20, Y4, Y0, Y1 // low halves
	VPERM2F128 $0x31, Y4, Y0, Y2 // high halves
	VADDPS Y2, Y1, Y0
	VMOVUPS Y0, (DI)
	VZEROUPPER
	RET

// func prefetch64(p *float32, ahead, lines int)
// Asks for lines > 0 cache lines in order, from ahead bytes after p.
TEXT ·prefetch64(SB), NOSPLIT, $0-24
	MOVQ p+0(FP), AX
	ADDQ ahead+8(FP), AX
	MOVQ lines+16(FP), CX
prefetchloop:
	PREFETCHT1 (AX)
	ADDQ $64, AX
	DECQ CX
	JNZ prefetchloop
	RET

// func dot1(out, a, v *float32, n int)
// The same for one row, in the same order.
TEXT ·dot1(SB), NOSPLIT, $0-32
	MOVQ out+0(FP), DI
	MOVQ a+8(FP), AX
	MOVQ v+16(FP), DX
	MOVQ n+24(FP), CX
	VXORPS Y0, Y0, Y0
dot1loop:
	VMOVUPS (DX), Y8
	VFMADD231PS (AX), Y8, Y0
	ADDQ $32, DX
	ADDQ $32, AX
	SUBQ $8, CX
	JNZ dot1loop
	VHADDPS Y0, Y0, Y0
	VHADDPS Y0, Y0, Y0
	VEXTRACTF128 $1, Y0, X1
	VADDPS X1, X0, X0
	VMOVSS X0, (DI)
	VZEROUPPER
	RET

// func tile4x16(dst, src, a, b *float32, ldd, lds, rs, cs, ldb, k int, beta float32)
// dst[4, 16] = beta*src + a b; without src, a b. a has element (i, j) at i*rs + j*cs; k may be 0.
TEXT ·tile4x16(SB), NOSPLIT, $0-84
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
	VBROADCASTSS beta+80(FP), Y15
	SHLQ $2, R8
	SHLQ $2, R9
	SHLQ $2, R10
	SHLQ $2, R11
	SHLQ $2, R12
	VXORPS Y0, Y0, Y0
	VXORPS Y1, Y1, Y1
	VXORPS Y2, Y2, Y2
	VXORPS Y3, Y3, Y3
	VXORPS Y4, Y4, Y4
	VXORPS Y5, Y5, Y5
	VXORPS Y6, Y6, Y6
	VXORPS Y7, Y7, Y7
	TESTQ SI, SI
	JZ tile4start
	VMULPS (SI), Y15, Y0
	VMULPS 32(SI), Y15, Y1
	ADDQ R9, SI
	VMULPS (SI), Y15, Y2
	VMULPS 32(SI), Y15, Y3
	ADDQ R9, SI
	VMULPS (SI), Y15, Y4
	VMULPS 32(SI), Y15, Y5
	ADDQ R9, SI
	VMULPS (SI), Y15, Y6
	VMULPS 32(SI), Y15, Y7
tile4start:
	LEAQ (AX)(R10*2), DX
	TESTQ CX, CX
	JZ tile4store
tile4loop:
	VMOVUPS (BX), Y8
	VMOVUPS 32(BX), Y9
	VBROADCASTSS (AX), Y10
	VBROADCASTSS (AX)(R10*1), Y11
	VBROADCASTSS (DX), Y12
	VBROADCASTSS (DX)(R10*1), Y13
	VFMADD231PS Y8, Y10, Y0
	VFMADD231PS Y9, Y10, Y1
	VFMADD231PS Y8, Y11, Y2
	VFMADD231PS Y9, Y11, Y3
	VFMADD231PS Y8, Y12, Y4
	VFMADD231PS Y9, Y12, Y5
	VFMADD231PS Y8, Y13, Y6
	VFMADD231PS Y9, Y13, Y7
	ADDQ R11, AX
	ADDQ R11, DX
	ADDQ R12, BX
	DECQ CX
	JNZ tile4loop
tile4store:
	VMOVUPS Y0, (DI)
	VMOVUPS Y1, 32(DI)
	ADDQ R8, DI
	VMOVUPS Y2, (DI)
	VMOVUPS Y3, 32(DI)
	ADDQ R8, DI
	VMOVUPS Y4, (DI)
	VMOVUPS Y5, 32(DI)
	ADDQ R8, DI
	VMOVUPS Y6, (DI)
	VMOVUPS Y7, 32(DI)
	VZEROUPPER
	RET

// func tile1x16(dst, src, a, b *float32, cs, ldb, k int, beta float32)
// The same for one row.
TEXT ·tile1x16(SB), NOSPLIT, $0-60
	MOVQ dst+0(FP), DI
	MOVQ src+8(FP), SI
	MOVQ a+16(FP), AX
	MOVQ b+24(FP), BX
	MOVQ cs+32(FP), R11
	MOVQ ldb+40(FP), R12
	MOVQ k+48(FP), CX
	VBROADCASTSS beta+56(FP), Y15
	SHLQ $2, R11
	SHLQ $2, R12
	VXORPS Y0, Y0, Y0
	VXORPS Y1, Y1, Y1
	TESTQ SI, SI
	JZ tile1start
	VMULPS (SI), Y15, Y0
	VMULPS 32(SI), Y15, Y1
tile1start:
	TESTQ CX, CX
	JZ tile1store
tile1loop:
	VBROADCASTSS (AX), Y10
	VFMADD231PS (BX), Y10, Y0
	VFMADD231PS 32(BX), Y10, Y1
	ADDQ R11, AX
	ADDQ R12, BX
	DECQ CX
	JNZ tile1loop
tile1store:
	VMOVUPS Y0, (DI)
	VMOVUPS Y1, 32(DI)
	VZEROUPPER
	RET

// func transpose8(dst, src *float32, ldd, lds int)
// dst[8, 8] = src[8, 8] with rows and columns exchanged.
TEXT ·transpose8(SB), NOSPLIT, $0-32
	MOVQ dst+0(FP), DI
	MOVQ src+8(FP), SI
	MOVQ ldd+16(FP), R8
	MOVQ lds+24(FP), R9
	SHLQ $2, R8
	SHLQ $2, R9
	LEAQ (R9)(R9*2), R10
	LEAQ (SI)(R9*4), DX
	VMOVUPS (SI), Y0
	VMOVUPS (SI)(R9*1), Y1
	VMOVUPS (SI)(R9*2), Y2
	VMOVUPS (SI)(R10*1), Y3
	VMOVUPS (DX), Y4
	VMOVUPS (DX)(R9*1), Y5
	VMOVUPS (DX)(R9*2), Y6
	VMOVUPS (DX)(R10*1), Y7
	VUNPCKLPS Y1, Y0, Y8
	VUNPCKHPS Y1, Y0, Y9
	VUNPCKLPS Y3, Y2, Y10
	VUNPCKHPS Y3, Y2, Y11
	VUNPCKLPS Y5, Y4, Y12
	VUNPCKHPS Y5, Y4, Y13
	VUNPCKLPS Y7, Y6, Y14
	VUNPCKHPS Y7, Y6, Y15
	VUNPCKLPD Y10, Y8, Y0
	VUNPCKHPD Y10, Y8, Y1
	VUNPCKLPD Y11, Y9, Y2
	VUNPCKHPD Y11, Y9, Y3
	VUNPCKLPD Y14, Y12, Y4
	VUNPCKHPD Y14, Y12, Y5
	VUNPCKLPD Y15, Y13, Y6
	VUNPCKHPD Y15, Y13, Y7
	VPERM2F128 $0x20, Y4, Y0, Y8
	VPERM2F128 $0x20, Y5, Y1, Y9
	VPERM2F128 $0x20, Y6, Y2, Y10
	VPERM2F128 $0x20, Y7, Y3, Y11
	VPERM2F128 $0x31, Y4, Y0, Y12
	VPERM2F128 $0x31, Y5, Y1, Y13
	VPERM2F128 $0x31, Y6, Y2, Y14
	VPERM2F128 $0x31, Y7, Y3, Y15
	LEAQ (R8)(R8*2), R10
	LEAQ (DI)(R8*4), DX
	VMOVUPS Y8, (DI)
	VMOVUPS Y9, (DI)(R8*1)
	VMOVUPS Y10, (DI)(R8*2)
	VMOVUPS Y11, (DI)(R10*1)
	VMOVUPS Y12, (DX)
	VMOVUPS Y13, (DX)(R8*1)
	VMOVUPS Y14, (DX)(R8*2)
	VMOVUPS Y15, (DX)(R10*1)
	VZEROUPPER
	RET
