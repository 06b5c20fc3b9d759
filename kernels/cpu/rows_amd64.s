//go:build !purego

#include "textflag.h"

// func addRowsAVX2(sum *float32, row *uintptr, factor *float32, count, n int)
// Takes 64 columns at a time, then 8. BX is the offset of the columns, DX the row.
TEXT ·addRowsAVX2(SB), NOSPLIT, $0-40
	MOVQ sum+0(FP), DI
	MOVQ row+8(FP), SI
	MOVQ factor+16(FP), R8
	MOVQ count+24(FP), R9
	MOVQ n+32(FP), CX
	XORQ BX, BX
	SUBQ $64, CX
	JLT  eights

panel:
	VMOVUPS (DI)(BX*1), Y0
	VMOVUPS 32(DI)(BX*1), Y1
	VMOVUPS 64(DI)(BX*1), Y2
	VMOVUPS 96(DI)(BX*1), Y3
	VMOVUPS 128(DI)(BX*1), Y4
	VMOVUPS 160(DI)(BX*1), Y5
	VMOVUPS 192(DI)(BX*1), Y6
	VMOVUPS 224(DI)(BX*1), Y7
	XORQ    DX, DX

panelRow:
	MOVQ         (SI)(DX*8), R10
	VBROADCASTSS (R8)(DX*4), Y8
	ADDQ         BX, R10
	VFMADD231PS  (R10), Y8, Y0
	VFMADD231PS  32(R10), Y8, Y1
	VFMADD231PS  64(R10), Y8, Y2
	VFMADD231PS  96(R10), Y8, Y3
	VFMADD231PS  128(R10), Y8, Y4
	VFMADD231PS  160(R10), Y8, Y5
	VFMADD231PS  192(R10), Y8, Y6
	VFMADD231PS  224(R10), Y8, Y7
	INCQ         DX
	CMPQ         DX, R9
	JLT          panelRow
	VMOVUPS      Y0, (DI)(BX*1)
	VMOVUPS      Y1, 32(DI)(BX*1)
	VMOVUPS      Y2, 64(DI)(BX*1)
	VMOVUPS      Y3, 96(DI)(BX*1)
	VMOVUPS      Y4, 128(DI)(BX*1)
	VMOVUPS      Y5, 160(DI)(BX*1)
	VMOVUPS      Y6, 192(DI)(BX*1)
	VMOVUPS      Y7, 224(DI)(BX*1)
	ADDQ         $256, BX
	SUBQ         $64, CX
	JGE          panel

eights:
	ADDQ $64, CX
	JLE  done

eight:
	VMOVUPS (DI)(BX*1), Y0
	XORQ    DX, DX

eightRow:
	MOVQ         (SI)(DX*8), R10
	VBROADCASTSS (R8)(DX*4), Y8
	VFMADD231PS  (R10)(BX*1), Y8, Y0
	INCQ         DX
	CMPQ         DX, R9
	JLT          eightRow
	VMOVUPS      Y0, (DI)(BX*1)
	ADDQ         $32, BX
	SUBQ         $8, CX
	JG           eight

done:
	VZEROUPPER
	RET

// The eight columns at OFFSET of the row at R13, times the factors, added to three sums.
#define ADD3(OFFSET, A, B, C) \
	VMOVUPS     OFFSET(R13), Y15 \
	VFMADD231PS Y12, Y15, A      \
	VFMADD231PS Y13, Y15, B      \
	VFMADD231PS Y14, Y15, C

#define FACTORS \
	MOVQ         (SI)(DX*8), R13  \
	ADDQ         BX, R13          \
	VBROADCASTSS (R8)(DX*4), Y12  \
	VBROADCASTSS (R9)(DX*4), Y13  \
	VBROADCASTSS (R10)(DX*4), Y14

#define LOAD_SUM(R, A, B, C, D) \
	VMOVUPS (R)(BX*1), A   \
	VMOVUPS 32(R)(BX*1), B \
	VMOVUPS 64(R)(BX*1), C \
	VMOVUPS 96(R)(BX*1), D

#define STORE_SUM(R, A, B, C, D) \
	VMOVUPS A, (R)(BX*1)   \
	VMOVUPS B, 32(R)(BX*1) \
	VMOVUPS C, 64(R)(BX*1) \
	VMOVUPS D, 96(R)(BX*1)

// func addRows3AVX2(sum0, sum1, sum2 *float32, row *uintptr, factor0, factor1, factor2 *float32, count, n int)
// Takes 32 columns at a time, then 8. BX is the offset of the columns, DX the row.
TEXT ·addRows3AVX2(SB), NOSPLIT, $0-72
	MOVQ sum0+0(FP), DI
	MOVQ sum1+8(FP), R11
	MOVQ sum2+16(FP), R12
	MOVQ row+24(FP), SI
	MOVQ factor0+32(FP), R8
	MOVQ factor1+40(FP), R9
	MOVQ factor2+48(FP), R10
	MOVQ count+56(FP), AX
	MOVQ n+64(FP), CX
	XORQ BX, BX
	SUBQ $32, CX
	JLT  eights

panel:
	LOAD_SUM(DI, Y0, Y1, Y2, Y3)
	LOAD_SUM(R11, Y4, Y5, Y6, Y7)
	LOAD_SUM(R12, Y8, Y9, Y10, Y11)
	XORQ DX, DX

panelRow:
	FACTORS
	ADD3(0, Y0, Y4, Y8)
	ADD3(32, Y1, Y5, Y9)
	ADD3(64, Y2, Y6, Y10)
	ADD3(96, Y3, Y7, Y11)
	INCQ DX
	CMPQ DX, AX
	JLT  panelRow
	STORE_SUM(DI, Y0, Y1, Y2, Y3)
	STORE_SUM(R11, Y4, Y5, Y6, Y7)
	STORE_SUM(R12, Y8, Y9, Y10, Y11)
	ADDQ $128, BX
	SUBQ $32, CX
	JGE  panel

eights:
	ADDQ $32, CX
	JLE  done

eight:
	VMOVUPS (DI)(BX*1), Y0
	VMOVUPS (R11)(BX*1), Y4
	VMOVUPS (R12)(BX*1), Y8
	XORQ    DX, DX

eightRow:
	FACTORS
	ADD3(0, Y0, Y4, Y8)
	INCQ    DX
	CMPQ    DX, AX
	JLT     eightRow
	VMOVUPS Y0, (DI)(BX*1)
	VMOVUPS Y4, (R11)(BX*1)
	VMOVUPS Y8, (R12)(BX*1)
	ADDQ    $32, BX
	SUBQ    $8, CX
	JG      eight

done:
	VZEROUPPER
	RET
