//go:build !purego

#include "textflag.h"

// The routines of widen_amd64.s, sixteen elements at a time.

#define ARGS \
	MOVQ dst+0(FP), DI \
	MOVQ src+8(FP), SI \
	MOVQ n+16(FP), CX

#define NEXT(BYTES, LOOP) \
	VMOVUPS Z0, (DI)    \
	ADDQ    $BYTES, SI  \
	ADDQ    $64, DI     \
	SUBQ    $16, CX     \
	JG      LOOP        \
	VZEROUPPER          \
	RET

// func widen512BF16(dst *float32, src *byte, n int)
TEXT ·widen512BF16(SB), NOSPLIT, $0-24
	ARGS

loop:
	VPMOVZXWD (SI), Z0
	VPSLLD    $16, Z0, Z0
	NEXT(32, loop)

// func widen512F16(dst *float32, src *byte, n int)
TEXT ·widen512F16(SB), NOSPLIT, $0-24
	ARGS

loop:
	VCVTPH2PS (SI), Z0
	NEXT(32, loop)

// func widen512E4M3(dst *float32, src *byte, n int)
// Through float16, see widenE4M3.
TEXT ·widen512E4M3(SB), NOSPLIT, $0-24
	ARGS
	VPBROADCASTD ·e4m3Table+0(SB), Y5
	VPBROADCASTD ·e4m3Table+4(SB), Y6
	VBROADCASTSS ·e4m3Table+8(SB), Z7

loop:
	VPMOVZXBW (SI), Y0
	VPAND     Y5, Y0, Y1
	VPAND     Y6, Y0, Y0
	VPCMPEQW  Y6, Y0, Y2
	VPSLLW    $8, Y1, Y1
	VPSLLW    $7, Y0, Y0
	VPOR      Y1, Y0, Y0
	VPOR      Y2, Y0, Y0    // all ones is a NaN
	VCVTPH2PS Y0, Z0
	VMULPS    Z7, Z0, Z0
	NEXT(16, loop)

// func widen512E5M2(dst *float32, src *byte, n int)
TEXT ·widen512E5M2(SB), NOSPLIT, $0-24
	ARGS

loop:
	VPMOVZXBW (SI), Y0
	VPSLLW    $8, Y0, Y0
	VCVTPH2PS Y0, Z0
	NEXT(16, loop)
