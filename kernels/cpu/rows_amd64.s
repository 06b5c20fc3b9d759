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
