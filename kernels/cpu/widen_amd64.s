//go:build !purego

#include "textflag.h"

#define ARGS \
	MOVQ dst+0(FP), DI \
	MOVQ src+8(FP), SI \
	MOVQ n+16(FP), CX

// func widenBF16(dst *float32, src *byte, n int)
TEXT ·widenBF16(SB), NOSPLIT, $0-24
	ARGS

widenBF16Loop:
	VPMOVZXWD (SI), Y0
	VPSLLD    $16, Y0, Y0
	VMOVUPS   Y0, (DI)
	ADDQ      $16, SI
	ADDQ      $32, DI
	SUBQ      $8, CX
	JG        widenBF16Loop
	VZEROUPPER
	RET

// func widenF16(dst *float32, src *byte, n int)
TEXT ·widenF16(SB), NOSPLIT, $0-24
	ARGS

widenF16Loop:
	VCVTPH2PS (SI), Y0
	VMOVUPS   Y0, (DI)
	ADDQ      $16, SI
	ADDQ      $32, DI
	SUBQ      $8, CX
	JG        widenF16Loop
	VZEROUPPER
	RET

DATA ·e4m3Table+0(SB)/4, $0x00800080 // sign
DATA ·e4m3Table+4(SB)/4, $0x007f007f // the rest, and NaN
DATA ·e4m3Table+8(SB)/4, $0x43800000 // 2^8: from the exponent bias of 15 to that of 7
GLOBL ·e4m3Table(SB), RODATA|NOPTR, $12

// func widenE4M3(dst *float32, src *byte, n int)
// Through float16, which has the exponents that e4m3 needs and whose conversion takes subnormals in its stride.
TEXT ·widenE4M3(SB), NOSPLIT, $0-24
	ARGS
	VPBROADCASTD ·e4m3Table+0(SB), X5
	VPBROADCASTD ·e4m3Table+4(SB), X6
	VPBROADCASTD ·e4m3Table+8(SB), Y7

widenE4M3Loop:
	VPMOVZXBW (SI), X0
	VPAND     X5, X0, X1
	VPAND     X6, X0, X0
	VPCMPEQW  X6, X0, X2
	VPSLLW    $8, X1, X1
	VPSLLW    $7, X0, X0
	VPOR      X1, X0, X0
	VPOR      X2, X0, X0    // all ones is a NaN
	VCVTPH2PS X0, Y0
	VMULPS    Y7, Y0, Y0
	VMOVUPS   Y0, (DI)
	ADDQ      $8, SI
	ADDQ      $32, DI
	SUBQ      $8, CX
	JG        widenE4M3Loop
	VZEROUPPER
	RET

// func widenE5M2(dst *float32, src *byte, n int)
TEXT ·widenE5M2(SB), NOSPLIT, $0-24
	ARGS

widenE5M2Loop:
	VPMOVZXBW (SI), X0
	VPSLLW    $8, X0, X0
	VCVTPH2PS X0, Y0
	VMOVUPS   Y0, (DI)
	ADDQ      $8, SI
	ADDQ      $32, DI
	SUBQ      $8, CX
	JG        widenE5M2Loop
	VZEROUPPER
	RET

DATA e2m1<>+0(SB)/8, $0x0c08060403020100 // twice the values
DATA e2m1<>+8(SB)/8, $0xf4f8fafcfdfeff00
DATA e2m1<>+16(SB)/4, $0x0f0f0f0f
GLOBL e2m1<>(SB), RODATA|NOPTR, $20

// func widenE2M1(dst *float32, src *byte, halves *float32, n int)
TEXT ·widenE2M1(SB), NOSPLIT, $0-32
	MOVQ dst+0(FP), DI
	MOVQ src+8(FP), SI
	MOVQ halves+16(FP), DX
	MOVQ n+24(FP), CX
	VMOVDQU      e2m1<>+0(SB), X5
	VPBROADCASTD e2m1<>+16(SB), X6

widenE2M1Loop:
	VPMOVZXBW    (SI), X0
	VPSLLW       $4, X0, X1
	VPOR         X1, X0, X0
	VPAND        X6, X0, X0 // a byte a code, the low half of each byte first
	VPSHUFB      X0, X5, X0
	VPMOVSXBD    X0, Y1
	VPSRLDQ      $8, X0, X0
	VPMOVSXBD    X0, Y2
	VBROADCASTSS (DX), Y3
	VCVTDQ2PS    Y1, Y1
	VCVTDQ2PS    Y2, Y2
	VMULPS       Y3, Y1, Y1
	VMULPS       Y3, Y2, Y2
	VMOVUPS      Y1, (DI)
	VMOVUPS      Y2, 32(DI)
	ADDQ         $8, SI
	ADDQ         $64, DI
	ADDQ         $4, DX
	DECQ         CX
	JNZ          widenE2M1Loop
	VZEROUPPER
	RET
