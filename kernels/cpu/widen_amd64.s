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

DATA e4m3<>+0(SB)/4, $0x00800080 // sign
DATA e4m3<>+4(SB)/4, $0x007f007f // the rest, and NaN
DATA e4m3<>+8(SB)/4, $0x43800000 // 2^8: from the exponent bias of 15 to that of 7
GLOBL e4m3<>(SB), RODATA|NOPTR, $12

// func widenE4M3(dst *float32, src *byte, n int)
// Through float16, which has the exponents that e4m3 needs and whose conversion takes subnormals in its stride.
TEXT ·widenE4M3(SB), NOSPLIT, $0-24
	ARGS
	VPBROADCASTD e4m3<>+0(SB), X5
	VPBROADCASTD e4m3<>+4(SB), X6
	VPBROADCASTD e4m3<>+8(SB), Y7

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
