package weights

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"os"
	"path/filepath"
	"testing"
)

// BenchmarkOpenDir opens a sparse file of 12 GB with 24,000 tensors: only the header may cost anything.
func BenchmarkOpenDir(b *testing.B) {
	const count, rows, cols = 24_000, 512, 512
	var header bytes.Buffer
	for i := range count {
		at := int64(i) * rows * cols * 2
		fmt.Fprintf(&header, `%c"model.layers.%d.mlp.experts.%d.up_proj.weight":{"dtype":"BF16","shape":[%d,%d],"data_offsets":[%d,%d]}`,
			",{"[min(1, max(0, 1-i))], i/512, i%512, rows, cols, at, at+rows*cols*2)
	}
	header.WriteByte('}')
	path := filepath.Join(b.TempDir(), singleFile)
	start := binary.LittleEndian.AppendUint64(nil, uint64(header.Len()))
	if err := os.WriteFile(path, append(start, header.Bytes()...), 0o644); err != nil {
		b.Fatal(err)
	}
	if err := os.Truncate(path, int64(8+header.Len())+count*rows*cols*2); err != nil {
		b.Fatal(err)
	}
	for b.Loop() {
		c, err := OpenDir(filepath.Dir(path))
		if err != nil {
			b.Fatal(err)
		}
		if err := c.Close(); err != nil {
			b.Fatal(err)
		}
	}
}
