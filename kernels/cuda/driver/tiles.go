//go:build cuda

package driver

/*
#include <cuda.h>
#include <string.h>
#cgo noescape reprise_tensor_map
#cgo nocallback reprise_tensor_map
#cgo noescape reprise_page_map
#cgo nocallback reprise_page_map
static CUresult reprise_tensor_map(void *out, unsigned long long at, unsigned long long rows, unsigned long long columns, unsigned long long stride,
                                   unsigned box_rows, unsigned box_columns) {
  CUtensorMap map; // aligned as the driver wants it
  cuuint64_t sizes[2] = {columns, rows}, strides[1] = {stride};
  cuuint32_t box[2] = {box_columns, box_rows}, steps[2] = {1, 1};
  CUresult r = cuTensorMapEncodeTiled(&map, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 2, (void *)at, sizes, strides, box, steps, CU_TENSOR_MAP_INTERLEAVE_NONE,
                                      CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_L2_PROMOTION_L2_128B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  if (!r) memcpy(out, &map, sizeof map);
  return r;
}
static CUresult reprise_page_map(void *out, unsigned long long at, unsigned long long pages, unsigned long long stride, unsigned long long rows,
                                 unsigned long long columns, unsigned box_rows) {
  CUtensorMap map;
  cuuint64_t sizes[5] = {64, 8, columns / 64, rows / 8, pages}, strides[4] = {columns * 2, 128, columns * 16, stride};
  cuuint32_t box[5] = {64, 8, columns / 64, box_rows / 8, 1}, steps[5] = {1, 1, 1, 1, 1};
  CUresult r = cuTensorMapEncodeTiled(&map, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 5, (void *)at, sizes, strides, box, steps, CU_TENSOR_MAP_INTERLEAVE_NONE,
                                      CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_L2_PROMOTION_L2_128B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  if (!r) memcpy(out, &map, sizeof map);
  return r;
}
static CUresult reprise_clusters(CUfunction f, unsigned threads, unsigned shared, unsigned cluster, int *clusters) {
  CUlaunchAttribute a = {0};
  CUlaunchConfig c = {0};
  a.id = CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION;
  a.value.clusterDim.x = cluster, a.value.clusterDim.y = 1, a.value.clusterDim.z = 1;
  c.gridDimX = cluster, c.gridDimY = 1, c.gridDimZ = 1;
  c.blockDimX = threads, c.blockDimY = 1, c.blockDimZ = 1;
  c.sharedMemBytes = shared, c.attrs = &a, c.numAttrs = 1;
  return cuOccupancyMaxActiveClusters(clusters, f, &c);
}
*/
import "C"

import "unsafe"

// TensorMap tells kernels how a bf16 matrix lies in memory and how large the boxes are that they copy (CUtensorMap).
type TensorMap [16]uint64

var _ [128]struct{} = [unsafe.Sizeof(C.CUtensorMap{})]struct{}{}

// Boxes describes a bf16 matrix [rows, columns] at an address, its rows stride bytes apart (both multiples of 16), for boxes
// whose rows of 128 bytes are swizzled. It does not allocate.
func (t *TensorMap) Boxes(at uint64, rows, columns int, stride int64, boxRows, boxColumns int) error {
	return failure("cuTensorMapEncodeTiled", C.reprise_tensor_map(unsafe.Pointer(t), C.ulonglong(at), C.ulonglong(rows), C.ulonglong(columns), C.ulonglong(stride),
		C.uint(boxRows), C.uint(boxColumns)))
}

// PageBoxes describes pages, stride bytes apart, each a bf16 matrix [rows, columns] (multiples of 8 and 64) at its beginning, for
// boxes of rows of a page. A box arrives as eights of rows, each as blocks of 64 columns whose rows of 128 bytes are swizzled: its
// coordinates are 0, 0, 0, the first eight, the page. Address and stride are multiples of 16. It does not allocate.
func (t *TensorMap) PageBoxes(at uint64, pages int, stride int64, rows, columns, boxRows int) error {
	return failure("cuTensorMapEncodeTiled", C.reprise_page_map(unsafe.Pointer(t), C.ulonglong(at), C.ulonglong(pages), C.ulonglong(stride), C.ulonglong(rows),
		C.ulonglong(columns), C.uint(boxRows)))
}

// Clusters is how many clusters of a launch the GPU can run at once.
func (f Function) Clusters(threads, shared, cluster int) (int, error) {
	var n C.int
	err := failure("cuOccupancyMaxActiveClusters", C.reprise_clusters(f.c(), C.uint(threads), C.uint(shared), C.uint(cluster), &n))
	return int(n), err
}
