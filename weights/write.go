package weights

import (
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"

	"reprise/kernels"
)

// headerEntry is a tensor in a header, in the order that writers of the format use.
type headerEntry struct {
	DType   string   `json:"dtype"`
	Shape   []int    `json:"shape"`
	Offsets [2]int64 `json:"data_offsets"`
}

// Write writes a safetensors file of tensors, their data in the order given, aligned to 8 bytes if every tensor's
// size is a multiple of 8. metadata may be nil.
func Write(w io.Writer, metadata map[string]string, tensors []kernels.HostTensor) error {
	header, err := makeHeader(metadata, tensors)
	if err != nil {
		return err
	}
	for len(header)%8 != 0 {
		header = append(header, ' ')
	}
	if len(header) > maxHeader {
		return fmt.Errorf("header of %d bytes: more than the format's limit of %d", len(header), maxHeader)
	}
	if _, err := w.Write(binary.LittleEndian.AppendUint64(nil, uint64(len(header)))); err != nil {
		return err
	}
	if _, err := w.Write(header); err != nil {
		return err
	}
	for _, t := range tensors {
		if _, err := w.Write(t.Data); err != nil {
			return fmt.Errorf("tensor %s: %w", quote(t.Name), err)
		}
	}
	return nil
}

func makeHeader(metadata map[string]string, tensors []kernels.HostTensor) ([]byte, error) {
	header := map[string]any{}
	if metadata != nil {
		header["__metadata__"] = metadata
	}
	at := int64(0)
	for _, t := range tensors {
		name, ok := typeNames[t.DType]
		if !ok {
			return nil, fmt.Errorf("tensor %s: cannot write dtype %v", quote(t.Name), t.DType)
		}
		if _, taken := header[t.Name]; taken || t.Name == "__metadata__" {
			return nil, fmt.Errorf("tensor %s: name already taken", quote(t.Name))
		}
		e := entry{name: t.Name, typeName: name, shape: t.Shape, begin: at, end: at + int64(len(t.Data))}
		if err := e.check(); err != nil {
			return nil, fmt.Errorf("tensor %s: %w", quote(t.Name), err)
		}
		header[t.Name] = headerEntry{name, append([]int{}, t.Shape...), [2]int64{e.begin, e.end}}
		at = e.end
	}
	return json.Marshal(header)
}

// typeNames are the supported names of elementTypes by type.
var typeNames = func() map[kernels.DType]string {
	names := map[kernels.DType]string{}
	for name, t := range elementTypes {
		if t.dtype != kernels.Invalid {
			names[t.dtype] = name
		}
	}
	return names
}()
