// Boxes of matrices that a tensor map describes, copied to shared memory by one thread and counted by a barrier; what blocks of a
// cluster have for each other.
#pragma once
#include "linear.cuh"
#include "wgmma.cuh"

// Boxes of products: columns, and bytes of a row.
constexpr int CHUNK = 64, ROW = 128;

// A CUtensorMap, made by the host; lies in the kernel's parameters.
struct alignas(64) TensorMap {
  uint64_t opaque[16];
};

// A barrier of the cluster behind which nobody reads what others wrote before it: it costs no fence.
__device__ __forceinline__ void cluster_barrier_relaxed() {
  __syncwarp();
  asm volatile("barrier.cluster.arrive.relaxed.aligned;\nbarrier.cluster.wait.aligned;" ::: "memory");
}
// Makes opened barriers known to asynchronous copies.
__device__ __forceinline__ void barriers_opened() {
  asm volatile("fence.mbarrier_init.release.cluster;\nfence.proxy.async.shared::cta;" ::: "memory");
}
// Arrives, and lets the phase end only when as many bytes have come.
__device__ __forceinline__ void barrier_expect(uint32_t barrier, uint32_t bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes) : "memory");
}
// Four floats at the same place in a block of the cluster.
__device__ __forceinline__ float4 load_remote4(uint32_t shared, uint32_t rank) {
  uint32_t a;
  float4 v;
  asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(a) : "r"(shared), "r"(rank));
  asm volatile("ld.shared::cluster.v4.f32 {%0,%1,%2,%3}, [%4];" : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w) : "r"(a) : "memory");
  return v;
}
// A barrier of the first N threads of a block.
template <int N>
__device__ __forceinline__ void group_barrier() {
  asm volatile("bar.sync 1, %0;" ::"n"(N) : "memory");
}

enum : uint64_t { KEEP_NORMAL = 0x1000000000000000, KEEP_SHORT = 0x12f0000000000000 };  // how long L2 keeps what is read

// Fetches a map that is used soon.
__device__ __forceinline__ void tile_prefetch(const TensorMap& map) { asm volatile("prefetch.tensormap [%0];" ::"l"(&map) : "memory"); }
// Copies the map's box from (row, column) on into shared memory; out of bounds are zeros. The barrier counts its bytes.
__device__ __forceinline__ void tile_load(uint32_t to, const TensorMap& map, int column, int row, uint32_t barrier, uint64_t keep) {
  asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%0], [%1, {%3, %4}], [%2], %5;" ::"r"(to),
               "l"(&map), "r"(barrier), "r"(column), "r"(row), "l"(keep) : "memory");
}
// Makes what other kernels, or other blocks, wrote by stores known to tile loads.
__device__ __forceinline__ void tile_fence() { asm volatile("fence.proxy.async.global;" ::: "memory"); }
