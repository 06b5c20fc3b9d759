package weights

import "golang.org/x/sys/unix"

// adviseHuge asks for huge pages: fewer faults while filling, fewer TLB misses while computing.
func adviseHuge(data []byte) { _ = unix.Madvise(data, unix.MADV_HUGEPAGE) }
