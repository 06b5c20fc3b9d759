package weights

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestPopulateReadsUsedTensorsOnly(t *testing.T) {
	big := strings.Repeat("x", 20<<20)
	dir := folder(t, map[string][]byte{singleFile: encoded(t, bytesTensor("a", big), bytesTensor("skipped", big), bytesTensor("b", "B"))})
	c, err := OpenDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer closed(t, c)
	for _, name := range []string{"a", "b"} {
		if _, err := c.Raw(name); err != nil {
			t.Fatal(err)
		}
	}
	calls, last, total := 0, int64(0), int64(0)
	err = c.Populate(func(done, all int64) {
		if done <= last {
			t.Errorf("progress went from %d to %d", last, done)
		}
		calls, last, total = calls+1, done, all
	})
	if err != nil {
		t.Fatal(err)
	}
	if want := int64(len(big)); last != total || total < want || float64(total) > 1.05*float64(want) {
		t.Errorf("read %d of %d bytes, want about %d", last, total, want)
	}
	if calls != 4 {
		t.Errorf("progress was reported %d times, want once for each of 4 chunks", calls)
	}
}

func TestPopulateWithoutFiles(t *testing.T) {
	c, err := OpenBytes("m", encoded(t, bytesTensor("a", "A")))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.Raw("a"); err != nil {
		t.Fatal(err)
	}
	if err := c.Populate(func(int64, int64) { t.Error("progress without work") }); err != nil {
		t.Error(err)
	}
}

// A file that shrinks after it was opened gives an error, not a dead process.
func TestPopulateAfterTruncation(t *testing.T) {
	dir := folder(t, map[string][]byte{singleFile: encoded(t, bytesTensor("a", strings.Repeat("x", 1<<20)))})
	c, err := OpenDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer closed(t, c)
	if !c.regions[0].mapped {
		t.Skip("this system does not map files")
	}
	if _, err := c.Raw("a"); err != nil {
		t.Fatal(err)
	}
	if err := os.Truncate(filepath.Join(dir, singleFile), 4096); err != nil {
		t.Fatal(err)
	}
	if err := c.Populate(nil); err == nil || !strings.Contains(err.Error(), singleFile) {
		t.Errorf("populating a truncated file: %v", err)
	}
}

func TestTouchReportsFaults(t *testing.T) {
	dir := folder(t, map[string][]byte{"f": make([]byte, 1<<16)})
	path := filepath.Join(dir, "f")
	r, err := mapFile(path)
	if err != nil {
		t.Fatal(err)
	}
	defer r.close()
	if err := touch(chunk{path, r.data}); err != nil {
		t.Error(err)
	}
	if !r.mapped {
		t.Skip("this system does not map files")
	}
	if err := os.Truncate(path, 0); err != nil {
		t.Fatal(err)
	}
	if err := touch(chunk{path, r.data}); err == nil || !strings.Contains(err.Error(), path) {
		t.Errorf("touching a truncated file: %v", err)
	}
}

func TestReadOpenEqualsMapping(t *testing.T) {
	content := encoded(t, bytesTensor("a", "AAA"))
	dir := folder(t, map[string][]byte{"f": content})
	f, err := os.Open(filepath.Join(dir, "f"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	r, err := readOpen(f, int64(len(content)))
	if err != nil || string(r.data) != string(content) {
		t.Fatalf("read %q, %v", r.data, err)
	}
	if err := r.close(); err != nil {
		t.Error(err)
	}
	if _, err := readOpen(f, 1); err == nil {
		t.Error("read beyond the end of a file")
	}
}
