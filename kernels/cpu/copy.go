package cpu

import "reprise/kernels"

// Upload copies src to dst.
func (o *ops) Upload(dst kernels.Buffer, src []byte) {
	o.enter("Upload")
	if int64(len(src)) != dst.Size {
		fail("upload of %d bytes into %d", len(src), dst.Size)
	}
	copy(bytesOf(dst), src)
}

// Download copies src to dst.
func (o *ops) Download(dst []byte, src kernels.Buffer) {
	o.enter("Download")
	if int64(len(dst)) != src.Size {
		fail("download of %d bytes into %d", src.Size, len(dst))
	}
	copy(dst, bytesOf(src))
}

// Copy copies src to dst.
func (o *ops) Copy(dst, src kernels.Buffer) {
	o.enter("Copy")
	if dst.Size != src.Size {
		fail("copy of %d bytes to %d", src.Size, dst.Size)
	}
	copy(bytesOf(dst), bytesOf(src))
}

// Zero clears b.
func (o *ops) Zero(b kernels.Buffer) {
	o.enter("Zero")
	clear(bytesOf(b))
}

// Scatter writes single numbers.
func (o *ops) Scatter(s kernels.Scatter) {
	o.enter("Scatter")
	dst, index, value := i32(s.Dst), i32(s.Index), i32(s.Value)
	for i := range s.Count {
		if at := index[i]; at >= 0 {
			dst[at] = value[i]
		}
	}
}

// AllReduce is the identity: the CPU is one device.
func (o *ops) AllReduce(kernels.Mat) { o.enter("AllReduce") }
