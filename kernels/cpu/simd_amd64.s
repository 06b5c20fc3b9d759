//go:build !purego

#include "textflag.h"

// func dotAVX2(a, b *float32, n int) float32
TEXT ·dotAVX2(SB), NOSPLIT, $0-28
	MOVQ   a+0(FP), SI
	MOVQ   b+8(FP), DI
	MOVQ   n+16(FP), CX
	VXORPS Y0, Y0, Y0
	VXORPS Y1, Y1, Y1
	VXORPS Y2, Y2, Y2
	VXORPS Y3, Y3, Y3
	VXORPS X4, X4, X4
	SUBQ   $32, CX
	JLT    dotEights

dotBlocks:
	VMOVUPS     (SI), Y5
	VMOVUPS     32(SI), Y6
	VMOVUPS     64(SI), Y7
	VMOVUPS     96(SI), Y8
	VFMADD231PS (DI), Y5, Y0
	VFMADD231PS 32(DI), Y6, Y1
	VFMADD231PS 64(DI), Y7, Y2
	VFMADD231PS 96(DI), Y8, Y3
	ADDQ        $128, SI
	ADDQ        $128, DI
	SUBQ        $32, CX
	JGE         dotBlocks

dotEights:
	ADDQ $24, CX
	JLT  dotSingles

dotEight:
	VMOVUPS     (SI), Y5
	VFMADD231PS (DI), Y5, Y0
	ADDQ        $32, SI
	ADDQ        $32, DI
	SUBQ        $8, CX
	JGE         dotEight

dotSingles:
	ADDQ $8, CX
	JLE  dotDone

dotSingle:
	VMOVSS      (SI), X5
	VFMADD231SS (DI), X5, X4
	ADDQ        $4, SI
	ADDQ        $4, DI
	DECQ        CX
	JNZ         dotSingle

dotDone:
	VADDPS       Y1, Y0, Y0
	VADDPS       Y3, Y2, Y2
	VADDPS       Y2, Y0, Y0
	VEXTRACTF128 $1, Y0, X1
	VADDPS       X1, X0, X0
	VHADDPS      X0, X0, X0
	VHADDPS      X0, X0, X0
	VADDSS       X4, X0, X0
	VZEROUPPER
	MOVSS        X0, ret+24(FP)
	RET

// func axpyAVX2(a float32, x, y *float32, n int)
TEXT ·axpyAVX2(SB), NOSPLIT, $0-32
	VBROADCASTSS a+0(FP), Y0
	MOVQ         x+8(FP), SI
	MOVQ         y+16(FP), DI
	MOVQ         n+24(FP), CX
	SUBQ         $32, CX
	JLT          axpyEights

axpyBlocks:
	VMOVUPS     (DI), Y1
	VMOVUPS     32(DI), Y2
	VMOVUPS     64(DI), Y3
	VMOVUPS     96(DI), Y4
	VFMADD231PS (SI), Y0, Y1
	VFMADD231PS 32(SI), Y0, Y2
	VFMADD231PS 64(SI), Y0, Y3
	VFMADD231PS 96(SI), Y0, Y4
	VMOVUPS     Y1, (DI)
	VMOVUPS     Y2, 32(DI)
	VMOVUPS     Y3, 64(DI)
	VMOVUPS     Y4, 96(DI)
	ADDQ        $128, SI
	ADDQ        $128, DI
	SUBQ        $32, CX
	JGE         axpyBlocks

axpyEights:
	ADDQ $24, CX
	JLT  axpySingles

axpyEight:
	VMOVUPS     (DI), Y1
	VFMADD231PS (SI), Y0, Y1
	VMOVUPS     Y1, (DI)
	ADDQ        $32, SI
	ADDQ        $32, DI
	SUBQ        $8, CX
	JGE         axpyEight

axpySingles:
	ADDQ $8, CX
	JLE  axpyDone

axpySingle:
	VMOVSS      (DI), X1
	VFMADD231SS (SI), X0, X1
	VMOVSS      X1, (DI)
	ADDQ        $4, SI
	ADDQ        $4, DI
	DECQ        CX
	JNZ         axpySingle

axpyDone:
	VZEROUPPER
	RET

// func scaleAVX2(a float32, x *float32, n int)
TEXT ·scaleAVX2(SB), NOSPLIT, $0-24
	VBROADCASTSS a+0(FP), Y0
	MOVQ         x+8(FP), SI
	MOVQ         n+16(FP), CX
	SUBQ         $8, CX
	JLT          scaleSingles

scaleEight:
	VMULPS  (SI), Y0, Y1
	VMOVUPS Y1, (SI)
	ADDQ    $32, SI
	SUBQ    $8, CX
	JGE     scaleEight

scaleSingles:
	ADDQ $8, CX
	JLE  scaleDone

scaleSingle:
	VMULSS (SI), X0, X1
	VMOVSS X1, (SI)
	ADDQ   $4, SI
	DECQ   CX
	JNZ    scaleSingle

scaleDone:
	VZEROUPPER
	RET

// The constants of expGo.
DATA ·expTable+0(SB)/4, $0xc2d00000  // expLowest
DATA ·expTable+4(SB)/4, $0x42b20000  // expHighest
DATA ·expTable+8(SB)/4, $0x3fb8aa3b  // invLn2
DATA ·expTable+12(SB)/4, $0x3f317000 // ln2Hi
DATA ·expTable+16(SB)/4, $0x3805fdf4 // ln2Lo
DATA ·expTable+20(SB)/4, $0x3ab6887e // expQ4
DATA ·expTable+24(SB)/4, $0x3c0905b1 // expQ3
DATA ·expTable+28(SB)/4, $0x3d2aaa8d // expQ2
DATA ·expTable+32(SB)/4, $0x3e2aaa6f // expQ1
DATA ·expTable+36(SB)/4, $0x3f000000 // 0.5
DATA ·expTable+40(SB)/4, $0x3f800000 // 1
DATA ·expTable+44(SB)/4, $127
GLOBL ·expTable(SB), RODATA|NOPTR, $48

// func expAVX2(dst, x *float32, n int)
TEXT ·expAVX2(SB), NOSPLIT, $0-24
	MOVQ         dst+0(FP), DI
	MOVQ         x+8(FP), SI
	MOVQ         n+16(FP), CX
	VBROADCASTSS ·expTable+0(SB), Y4
	VBROADCASTSS ·expTable+4(SB), Y5
	VBROADCASTSS ·expTable+8(SB), Y6
	VBROADCASTSS ·expTable+12(SB), Y7
	VBROADCASTSS ·expTable+16(SB), Y8
	VBROADCASTSS ·expTable+20(SB), Y9
	VBROADCASTSS ·expTable+24(SB), Y10
	VBROADCASTSS ·expTable+28(SB), Y11
	VBROADCASTSS ·expTable+32(SB), Y12
	VBROADCASTSS ·expTable+36(SB), Y13
	VBROADCASTSS ·expTable+40(SB), Y14
	VPBROADCASTD ·expTable+44(SB), Y15

expLoop:
	VMOVUPS      (SI), Y0
	VMAXPS       Y0, Y4, Y0    // a NaN stays: the last operand wins
	VMINPS       Y0, Y5, Y0
	VMULPS       Y6, Y0, Y1
	VROUNDPS     $0, Y1, Y1    // n
	VFNMADD231PS Y7, Y1, Y0
	VFNMADD231PS Y8, Y1, Y0    // r
	VMOVAPS      Y9, Y2
	VFMADD213PS  Y10, Y0, Y2
	VFMADD213PS  Y11, Y0, Y2
	VFMADD213PS  Y12, Y0, Y2
	VFMADD213PS  Y13, Y0, Y2   // q
	VMULPS       Y0, Y0, Y3
	VFMADD231PS  Y3, Y2, Y0    // r + r^2 q
	VADDPS       Y14, Y0, Y0
	VCVTPS2DQ    Y1, Y1
	VPSRAD       $1, Y1, Y2    // half of n
	VPSUBD       Y2, Y1, Y1
	VPADDD       Y15, Y2, Y2
	VPADDD       Y15, Y1, Y1
	VPSLLD       $23, Y2, Y2
	VPSLLD       $23, Y1, Y1
	VMULPS       Y2, Y0, Y0
	VMULPS       Y1, Y0, Y0
	VMOVUPS      Y0, (DI)
	ADDQ         $32, SI
	ADDQ         $32, DI
	SUBQ         $8, CX
	JG           expLoop
	VZEROUPPER
	RET
