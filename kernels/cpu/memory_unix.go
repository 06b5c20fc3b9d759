//go:build unix

package cpu

import "golang.org/x/sys/unix"

// mapMemory returns at least n zeroed bytes outside the Go heap, aligned to a page.
func mapMemory(n int64) ([]byte, error) {
	if int64(int(n)) != n {
		return nil, unix.ENOMEM
	}
	return unix.Mmap(-1, 0, int(n), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_ANON|unix.MAP_PRIVATE)
}

func unmapMemory(block []byte) error { return unix.Munmap(block) }
