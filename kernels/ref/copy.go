package ref

import (
	"fmt"

	"reprise/kernels"
)

func (o ops[F]) Upload(dst kernels.Buffer, src []byte) {
	o.begin("Upload", sameSize(dst.Size, int64(len(src))))
	copy(o.bytes(dst), src)
}

func (o ops[F]) Download(dst []byte, src kernels.Buffer) {
	o.begin("Download", sameSize(int64(len(dst)), src.Size))
	copy(dst, o.bytes(src))
}

func (o ops[F]) Copy(dst, src kernels.Buffer) {
	o.begin("Copy", sameSize(dst.Size, src.Size))
	copy(o.bytes(dst), o.bytes(src))
}

func sameSize(dst, src int64) error {
	if dst != src {
		return fmt.Errorf("kernels: copy of %d bytes to %d bytes", src, dst)
	}
	return nil
}

func (o ops[F]) Zero(b kernels.Buffer) {
	o.begin("Zero", nil)
	clear(o.bytes(b))
}

func (o ops[F]) Scatter(p kernels.Scatter) {
	o.begin("Scatter", p.Validate())
	dst, index, value := o.ints(p.Dst), o.ints(p.Index), o.ints(p.Value)
	for i := range p.Count {
		if at := index.at(i); at >= 0 {
			dst.set(at, value.at(i))
		}
	}
}

func (o ops[F]) AllReduce(kernels.Mat) { o.begin("AllReduce", nil) }
