package weights

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// resident counts the pages of data that are in memory.
func resident(t testing.TB, data []byte) (in, all int) {
	t.Helper()
	states := make([]byte, (len(data)+pageSize()-1)/pageSize())
	_, _, errno := unix.Syscall(unix.SYS_MINCORE, uintptr(unsafe.Pointer(&data[0])), uintptr(len(data)), uintptr(unsafe.Pointer(&states[0])))
	if errno != 0 {
		t.Skip("mincore: ", errno)
	}
	for _, s := range states {
		in += int(s & 1)
	}
	return in, len(states)
}

// evict drops a file from the page cache.
func evict(t testing.TB, path string) {
	t.Helper()
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if err := f.Sync(); err != nil {
		t.Fatal(err)
	}
	if err := unix.Fadvise(int(f.Fd()), 0, 0, unix.FADV_DONTNEED); err != nil {
		t.Skip("fadvise: ", err)
	}
}

// bytesRead is what this process made the disks read so far.
func bytesRead(t testing.TB) int64 {
	t.Helper()
	text, err := os.ReadFile("/proc/self/io")
	if err != nil {
		t.Skip(err)
	}
	n, at := int64(0), strings.Index(string(text), "\nread_bytes: ")
	if _, err := fmt.Sscanf(string(text[at+1:]), "read_bytes: %d", &n); err != nil {
		t.Skip(err)
	}
	return n
}

// A cold file is wholly in memory after Populate, and little more than its size was read.
func TestPopulateMakesPagesResident(t *testing.T) {
	if testing.Short() {
		t.Skip("writes a large file")
	}
	const size = 32 << 20
	dir := folder(t, map[string][]byte{singleFile: encoded(t, bytesTensor("a", strings.Repeat("x", size)))})
	evict(t, filepath.Join(dir, singleFile))
	c, err := OpenDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer closed(t, c)
	if _, err := c.Raw("a"); err != nil {
		t.Fatal(err)
	}
	if in, all := resident(t, c.regions[0].data); in > all/2 {
		t.Skip("this file system keeps its pages")
	}
	before, start := bytesRead(t), time.Now()
	if err := c.Populate(nil); err != nil {
		t.Fatal(err)
	}
	read := bytesRead(t) - before
	if in, all := resident(t, c.regions[0].data); in != all {
		t.Errorf("%d of %d pages are resident", in, all)
	}
	if read > size*105/100 {
		t.Errorf("read %d bytes for a file of %d", read, size)
	}
	t.Logf("read %d bytes in %v", read, time.Since(start))
}
