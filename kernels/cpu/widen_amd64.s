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

DATA e4m3<>+0(SB)/4, $0x80000000 // sign
DATA e4m3<>+4(SB)/4, $0x7f       // the rest, and NaN
DATA e4m3<>+8(SB)/4, $0x7b800000 // 2^120: from the exponent bias of 127 to that of 7
GLOBL e4m3<>(SB), RODATA|NOPTR, $12

// func widenE4M3(dst *float32, src *byte, n int)
TEXT ·widenE4M3(SB), NOSPLIT, $0-24
	ARGS
	VPBROADCASTD e4m3<>+0(SB), Y5
	VPBROADCASTD e4m3<>+4(SB), Y6
	VPBROADCASTD e4m3<>+8(SB), Y7

widenE4M3Loop:
	VPMOVZXBD (SI), Y0
	VPSLLD    $24, Y0, Y1
	VPAND     Y5, Y1, Y1
	VPAND     Y6, Y0, Y0
	VPCMPEQD  Y6, Y0, Y2
	VPSLLD    $20, Y0, Y0
	VMULPS    Y7, Y0, Y0
	VPOR      Y1, Y0, Y0
	VPOR      Y2, Y0, Y0    // all ones is a NaN
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
