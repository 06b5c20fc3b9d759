//go:build cuda

package driver

/*
#include <cuda.h>
#include <dlfcn.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

// The part of cublasLt.h (version 13) that is used, by value.
enum { LT_COMPUTE_32F = 68, LT_REAL_32F = 0, LT_REAL_16BF = 14, LT_TRANSA = 3, LT_OP_T = 1, LT_PREF_WORKSPACE = 1, LT_PREF_ALIGN_A = 5 };
typedef struct {
  uint64_t algo[8];
  size_t workspace;
  int state;
  float waves;
  int reserved[4];
} lt_result;

typedef struct {
  void *handle;
  int (*create)(void **);
  int (*destroy)(void *);
  int (*desc_create)(void **, int, int);
  int (*desc_set)(void *, int, const void *, size_t);
  int (*desc_destroy)(void *);
  int (*layout_create)(void **, int, uint64_t, uint64_t, int64_t);
  int (*layout_destroy)(void *);
  int (*pref_create)(void **);
  int (*pref_set)(void *, int, const void *, size_t);
  int (*pref_destroy)(void *);
  int (*heuristic)(void *, void *, void *, void *, void *, void *, void *, int, lt_result *, int *);
  int (*matmul)(void *, void *, const void *, const void *, void *, const void *, void *, const void *, const void *, void *,
                void *, void *, const void *, void *, size_t, CUstream);
} lt_lib;

typedef struct {
  void *desc, *w, *x, *y;
  lt_result algo;
} lt_plan;

static lt_lib *lt_open(void) {
  static const char *places[] = {"libcublasLt.so.13", "/usr/local/cuda/lib64/libcublasLt.so.13", "/usr/local/cuda/targets/x86_64-linux/lib/libcublasLt.so.13", "/opt/cuda/lib64/libcublasLt.so.13"};
  void *so = 0;
  for (unsigned i = 0; i < sizeof places / sizeof *places && !so; i++) so = dlopen(places[i], RTLD_NOW | RTLD_LOCAL);
  if (!so) return 0;
  lt_lib *l = calloc(1, sizeof *l);
  struct { void **to; const char *name; } table[] = {
    {(void **)&l->create, "cublasLtCreate"}, {(void **)&l->destroy, "cublasLtDestroy"},
    {(void **)&l->desc_create, "cublasLtMatmulDescCreate"}, {(void **)&l->desc_set, "cublasLtMatmulDescSetAttribute"},
    {(void **)&l->desc_destroy, "cublasLtMatmulDescDestroy"}, {(void **)&l->layout_create, "cublasLtMatrixLayoutCreate"},
    {(void **)&l->layout_destroy, "cublasLtMatrixLayoutDestroy"}, {(void **)&l->pref_create, "cublasLtMatmulPreferenceCreate"},
    {(void **)&l->pref_set, "cublasLtMatmulPreferenceSetAttribute"}, {(void **)&l->pref_destroy, "cublasLtMatmulPreferenceDestroy"},
    {(void **)&l->heuristic, "cublasLtMatmulAlgoGetHeuristic"}, {(void **)&l->matmul, "cublasLtMatmul"}};
  int ok = 1;
  for (unsigned i = 0; i < sizeof table / sizeof *table; i++) ok &= (*table[i].to = dlsym(so, table[i].name)) != 0;
  if (ok && l->create(&l->handle) == 0) return l;
  free(l);
  return 0;
}

static void lt_close(lt_lib *l) {
  l->destroy(l->handle);
  free(l);
}

static void lt_forget(lt_lib *l, lt_plan *p) {
  if (p->y) l->layout_destroy(p->y);
  if (p->x) l->layout_destroy(p->x);
  if (p->w) l->layout_destroy(p->w);
  if (p->desc) l->desc_destroy(p->desc);
  free(p);
}

// Column-major: Y^T [n, m] = W [n, k] X^T [k, m].
static int lt_describe(lt_lib *l, lt_plan *p, int m, int n, int k, int64_t ldw, int64_t ldx, int64_t ldy, int wide, size_t workspace, uint32_t *align) {
  int transposed = LT_OP_T, r, found = 0, y = wide ? LT_REAL_32F : LT_REAL_16BF;
  void *pref = 0;
  if ((r = l->desc_create(&p->desc, LT_COMPUTE_32F, LT_REAL_32F)) || (r = l->desc_set(p->desc, LT_TRANSA, &transposed, sizeof transposed)) ||
      (r = l->layout_create(&p->w, LT_REAL_16BF, k, n, ldw)) || (r = l->layout_create(&p->x, LT_REAL_16BF, k, m, ldx)) ||
      (r = l->layout_create(&p->y, y, n, m, ldy)) || (r = l->pref_create(&pref)))
    return r;
  r = l->pref_set(pref, LT_PREF_WORKSPACE, &workspace, sizeof workspace);
  for (int i = 0; i < 4 && !r; i++) r = l->pref_set(pref, LT_PREF_ALIGN_A + i, &align[i], sizeof align[i]);
  if (!r) r = l->heuristic(l->handle, p->desc, p->w, p->x, p->y, p->y, pref, 1, &p->algo, &found);
  l->pref_destroy(pref);
  return r ? r : found ? p->algo.state : 15; // CUBLAS_STATUS_NOT_SUPPORTED
}

static lt_plan *lt_plan_new(lt_lib *l, int m, int n, int k, int64_t ldw, int64_t ldx, int64_t ldy, int wide, size_t workspace, uint32_t ax, uint32_t ay, int *status) {
  lt_plan *p = calloc(1, sizeof *p);
  uint32_t align[4] = {256, ax, ay, ay};
  if ((*status = lt_describe(l, p, m, n, k, ldw, ldx, ldy, wide, workspace, align))) {
    lt_forget(l, p);
    return 0;
  }
  return p;
}

static int lt_run(lt_lib *l, lt_plan *p, uint64_t w, uint64_t x, uint64_t y, int add, uint64_t space, size_t bytes, CUstream s) {
  float alpha = 1, beta = add ? 1 : 0;
  return l->matmul(l->handle, p->desc, &alpha, (void *)w, p->w, (void *)x, p->x, &beta, (void *)y, p->y, (void *)y, p->y, p->algo.algo, (void *)space, bytes, s);
}
*/
import "C"

import "fmt"

// Lt is cuBLASLt, found at run time.
type Lt struct{ l *C.lt_lib }

// OpenLt finds the library and makes a handle in the current context; nil if there is none.
func OpenLt() *Lt {
	if l := C.lt_open(); l != nil {
		return &Lt{l}
	}
	return nil
}

// Close gives the handle back.
func (l *Lt) Close() { C.lt_close(l.l) }

// Shape describes Y [M, N] = X [M, K] W^T with bf16 W [N, K] and X; strides in elements, alignments in bytes.
type Shape struct {
	M, N, K                   int
	StrideW, StrideX, StrideY int
	AlignX, AlignY            int
	WideY                     bool // Y is float32, else bf16
}

// Plan is a chosen algorithm for a shape.
type Plan struct{ p *C.lt_plan }

// Plan chooses an algorithm that needs no more than the given workspace.
func (l *Lt) Plan(s Shape, workspace int64) (Plan, error) {
	wide, status := C.int(0), C.int(0)
	if s.WideY {
		wide = 1
	}
	p := C.lt_plan_new(l.l, C.int(s.M), C.int(s.N), C.int(s.K), C.int64_t(s.StrideW), C.int64_t(s.StrideX), C.int64_t(s.StrideY), wide,
		C.size_t(workspace), C.uint32_t(s.AlignX), C.uint32_t(s.AlignY), &status)
	if p == nil {
		return Plan{}, fmt.Errorf("cublasLtMatmulAlgoGetHeuristic: status %d for %+v", int(status), s)
	}
	return Plan{p}, nil
}

// Forget gives a plan back.
func (l *Lt) Forget(p Plan) { C.lt_forget(l.l, p.p) }

// Run enqueues the product; with add Y is added to.
func (l *Lt) Run(p Plan, s Stream, w, x, y uint64, add bool, workspace uintptr, bytes int64) error {
	beta := C.int(0)
	if add {
		beta = 1
	}
	if r := C.lt_run(l.l, p.p, C.uint64_t(w), C.uint64_t(x), C.uint64_t(y), beta, C.uint64_t(workspace), C.size_t(bytes), s.c()); r != 0 {
		return fmt.Errorf("cublasLtMatmul: status %d", int(r))
	}
	return nil
}
