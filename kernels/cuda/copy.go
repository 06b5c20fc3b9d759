//go:build cuda

package cuda

import (
	"reprise/kernels"
	"reprise/kernels/cuda/driver"
)

// Upload copies src to dst. src that is not of AllocHost is copied to pinned memory first.
func (o *ops) Upload(dst kernels.Buffer, src []byte) {
	o.enter("Upload")
	sameSize(dst.Size, int64(len(src)))
	m := &o.dev.memory
	switch {
	case len(src) == 0:
	case m.isPinned(src):
		must(o.dev.stream.Upload(dst.Addr, src))
	case o.capturing != nil:
		must(o.dev.stream.Upload(dst.Addr, o.frozen(src)))
	default:
		must(m.uploadStaged(dst.Addr, src))
	}
}

// frozen is a pinned copy that lives as long as the device.
func (o *ops) frozen(src []byte) []byte {
	b, err := driver.AllocHost(int64(len(src)))
	must(err)
	o.dev.memory.pinned = append(o.dev.memory.pinned, b)
	copy(b, src)
	return b
}

func (m *memory) uploadStaged(dst uintptr, src []byte) error {
	for len(src) > 0 {
		b, err := m.stage(min(len(src), stagingBytes/4))
		if err != nil {
			return err
		}
		n := copy(b, src)
		if err := m.stream.Upload(dst, b); err != nil {
			return err
		}
		dst, src = dst+uintptr(n), src[n:]
	}
	return nil
}

// Download copies src to dst. If dst is not of AllocHost, it waits for the stream.
func (o *ops) Download(dst []byte, src kernels.Buffer) {
	o.enter("Download")
	sameSize(int64(len(dst)), src.Size)
	m := &o.dev.memory
	switch {
	case len(dst) == 0:
	case m.isPinned(dst):
		must(o.dev.stream.Download(dst, src.Addr))
	default:
		if o.capturing != nil {
			panic("cuda: capture of a download into Go memory")
		}
		must(m.downloadStaged(dst, src.Addr))
	}
}

func (m *memory) downloadStaged(dst []byte, src uintptr) error {
	for len(dst) > 0 {
		b, err := m.stage(min(len(dst), stagingBytes/4))
		if err != nil {
			return err
		}
		if err := m.stream.Download(b, src); err != nil {
			return err
		}
		if err := m.stream.Synchronize(); err != nil {
			return err
		}
		n := copy(dst, b)
		dst, src = dst[n:], src+uintptr(n)
		m.used = 0
	}
	return nil
}

// Copy copies src to dst.
func (o *ops) Copy(dst, src kernels.Buffer) {
	o.enter("Copy")
	sameSize(dst.Size, src.Size)
	if dst.Size > 0 {
		must(o.dev.stream.Copy(dst.Addr, src.Addr, dst.Size))
	}
}

// Zero clears b.
func (o *ops) Zero(b kernels.Buffer) {
	o.enter("Zero")
	if b.Size > 0 {
		must(o.dev.stream.Clear(b.Addr, b.Size))
	}
}

// AllReduce is the identity: a group has one device.
func (o *ops) AllReduce(kernels.Mat) { o.enter("AllReduce") }
