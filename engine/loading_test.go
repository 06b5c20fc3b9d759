package engine

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"sync"
	"testing"
	"time"

	"reprise/internal/golden"
	"reprise/kernels"
	"reprise/model"
	"reprise/weights"
)

// checkpointFiles is a checkpoint in shards of made-up weights.
type checkpointFiles struct {
	folder *weights.Folder
	files  []string
	total  int64 // bytes of weights
}

// times is how long a plain parallel read of the files and a copy to the device take, and how long loading the model does: the
// best of a few runs in turn.
func (c *checkpointFiles) times(t *testing.T, open func() kernels.Device, repeats int) (plain, load time.Duration) {
	t.Helper()
	plain, load = time.Hour, time.Hour
	for range repeats {
		plain = min(plain, onDevice(t, open(), func(dev kernels.Device) time.Time { return plainRead(t, dev, c.files) }))
		load = min(load, onDevice(t, open(), func(dev kernels.Device) time.Time { return c.load(t, dev) }))
	}
	return plain, load
}

// onDevice is how long f and what it enqueues take on a device, from the time that f returns.
func onDevice(t *testing.T, dev kernels.Device, f func(kernels.Device) time.Time) time.Duration {
	t.Helper()
	begin := f(dev)
	if err := dev.Wait(dev.Mark()); err != nil {
		t.Fatal(err)
	}
	d := time.Since(begin)
	if err := dev.Close(); err != nil {
		t.Fatal(err)
	}
	return d
}

// load loads the model. A device that has weights of its own must then hold them, but for what it may keep in fewer bits.
func (c *checkpointFiles) load(t *testing.T, dev kernels.Device) (begin time.Time) {
	t.Helper()
	begin = time.Now()
	config, err := ParseConfig(c.folder)
	if err != nil {
		t.Fatal(err)
	}
	_, tensors, err := Source{Folder: c.folder}.load(dev, config, 256, Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { tensors.Close() }) // unmapping is no part of loading
	if b, ok := dev.(booked); ok && !dev.HostWeights() {
		if device, _ := b.MemoryTaken(); device < c.total/10*9 {
			t.Errorf("the device has taken %d bytes for %d bytes of weights", device, c.total)
		}
	}
	return begin
}

// plainRead reads files side by side into pinned memory, each piece copied as soon as it is there; it begins when it has
// its memory.
func plainRead(t *testing.T, dev kernels.Device, files []string) (begin time.Time) {
	t.Helper()
	const piece, pieces, target = 4 << 20, 48, 1 << 30
	type read struct {
		buffer []byte
		n      int
		err    error
	}
	empty, full, jobs := make(chan []byte, pieces), make(chan read, pieces), readJobs(t, files, piece)
	memory, err := dev.Alloc(target)
	if err != nil {
		t.Fatal(err)
	}
	for range pieces {
		b, err := dev.AllocHost(piece)
		if err != nil {
			t.Fatal(err)
		}
		empty <- b
	}
	left := len(jobs)
	begin = time.Now()
	for range runtime.GOMAXPROCS(0) {
		go func() {
			for j := range jobs {
				b := <-empty
				n, err := j.file.ReadAt(b[:j.n], j.at)
				full <- read{b, n, err}
			}
		}()
	}
	type copying struct {
		buffer []byte
		ticket kernels.Ticket
	}
	var inFlight []copying
	for at := int64(0); left > 0; left-- {
		r := <-full
		if r.err != nil {
			t.Fatal(r.err)
		}
		dst := memory.Slice(at%target, int64(r.n))
		at += piece
		dev.Submit(kernels.ProgramFunc(func(o kernels.Ops) { o.Upload(dst, r.buffer[:r.n]) }))
		inFlight = append(inFlight, copying{r.buffer, dev.Mark()})
		if len(inFlight) > pieces/2 {
			if err := dev.Wait(inFlight[0].ticket); err != nil {
				t.Fatal(err)
			}
			empty <- inFlight[0].buffer
			inFlight = inFlight[1:]
		}
	}
	return begin
}

type readJob struct {
	file *os.File
	at   int64
	n    int64
}

// readJobs cuts files into pieces, in a channel that is closed.
func readJobs(t *testing.T, files []string, piece int64) chan readJob {
	t.Helper()
	var list []readJob
	for _, name := range files {
		f, err := os.Open(name)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { f.Close() })
		info, err := f.Stat()
		if err != nil {
			t.Fatal(err)
		}
		for at := int64(0); at < info.Size(); at += piece {
			list = append(list, readJob{f, at, min(piece, info.Size()-at)})
		}
	}
	jobs := make(chan readJob, len(list))
	for _, j := range list {
		jobs <- j
	}
	close(jobs)
	return jobs
}

// writeCheckpoint writes weights as 16 shards, side by side; all tensors begin with the same numbers.
func writeCheckpoint(t *testing.T, parent string, config []byte) *checkpointFiles {
	t.Helper()
	dir, err := os.MkdirTemp(parent, "checkpoint")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	c := &checkpointFiles{}
	want := tensorsOf(t, config)
	shards := make([][]kernels.HostTensor, 16)
	sizes, where := make([]int64, len(shards)), map[string]string{}
	values := finite(int(largestTensor(want)))
	for _, s := range want {
		i, n := slices.Index(sizes, slices.Min(sizes)), tensorBytes([]model.TensorSpec{s})
		shards[i] = append(shards[i], kernels.HostTensor{Name: s.Name, DType: s.DType, Shape: s.Shape, Data: values[:n]})
		sizes[i], where[s.Name], c.total = sizes[i]+n, shardName(i), c.total+n
	}
	index, err := json.Marshal(map[string]any{"weight_map": where})
	if err != nil {
		t.Fatal(err)
	}
	for name, content := range map[string][]byte{"config.json": config, "model.safetensors.index.json": index} {
		if err := os.WriteFile(filepath.Join(dir, name), content, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	var group sync.WaitGroup
	for i, tensors := range shards {
		path := filepath.Join(dir, shardName(i))
		c.files = append(c.files, path)
		group.Go(func() {
			if err := writeShard(path, tensors); err != nil {
				t.Error(err)
			}
		})
	}
	group.Wait()
	if c.folder, err = weights.OpenFolder(dir); err != nil || t.Failed() {
		t.Fatal(err)
	}
	return c
}

func shardName(i int) string { return fmt.Sprintf("model-%02d.safetensors", i) }

func writeShard(path string, tensors []kernels.HostTensor) error {
	f, err := os.Create(path)
	if err != nil {
		return err
	}
	if err := weights.Write(f, nil, tensors); err != nil {
		f.Close()
		return err
	}
	return f.Close()
}

// largeShape is the configuration of the 27B model with as many layers as fit into so many bytes, 4 at least.
func largeShape(t *testing.T, bytes float64) (config []byte) {
	t.Helper()
	whole, err := os.ReadFile(filepath.Join(golden.Repository(), "model/qwen35/testdata/qwen3.5-27b.json"))
	if err != nil {
		t.Fatal(err)
	}
	for layers := 64; layers > 0; layers -= 4 {
		var c map[string]any
		if err := json.Unmarshal(whole, &c); err != nil {
			t.Fatal(err)
		}
		inner := c["text_config"].(map[string]any)
		inner["num_hidden_layers"], inner["layer_types"] = layers, inner["layer_types"].([]any)[:layers]
		if config, err = json.Marshal(c); err != nil {
			t.Fatal(err)
		}
		if float64(tensorBytes(tensorsOf(t, config))) <= bytes {
			break
		}
	}
	return config
}

// tensorsOf are the tensors of a model.
func tensorsOf(t *testing.T, config []byte) []model.TensorSpec {
	t.Helper()
	parsed, err := ParseConfig(&weights.Folder{Name: "shape", Config: config})
	if err != nil {
		t.Fatal(err)
	}
	return wanted(parsed, Options{})
}

// finite is n bytes of numbers that are no infinities and no NaNs as bfloat16 and as float32, made by all processors.
func finite(n int) []byte {
	out := make([]byte, n)
	const block = 16 << 20
	var group sync.WaitGroup
	for from := 0; from < n; from += block {
		group.Go(func() {
			r := rand.NewPCG(uint64(from), 1)
			for b := out[from:min(from+block, n)]; len(b) >= 8; b = b[8:] {
				binary.LittleEndian.PutUint64(b, r.Uint64()&0xbfffbfffbfffbfff)
			}
		})
	}
	group.Wait()
	return out
}

// largestTensor is the bytes of the largest tensor.
func largestTensor(want []model.TensorSpec) (n int64) {
	for _, s := range want {
		n = max(n, tensorBytes([]model.TensorSpec{s}))
	}
	return n
}

// TestLoading is TestCUDALoading on the CPU with a tiny model: the checkpoint is whole and can be loaded, and a plain read
// reads all of it.
func TestLoading(t *testing.T) {
	for _, name := range []string{"nemotron-moe", "qwen35-dense-tied-mtp"} {
		config := golden.Open(t, name).Folder.Config
		c := writeCheckpoint(t, t.TempDir(), config)
		plain, load := c.times(t, func() kernels.Device { return device(t) }, 1)
		t.Logf("%s: %d bytes in %d files; plain %v, load %v", name, c.total, len(c.files), plain, load)
		checkWritten(t, c, tensorsOf(t, config))
	}
	if layers := len(tensorsOf(t, largeShape(t, 20e9))); layers >= len(tensorsOf(t, largeShape(t, 40e9))) {
		t.Errorf("a checkpoint of 20 GB has %d tensors, no fewer than one of 40", layers)
	}
}

// checkWritten requires that every tensor of a checkpoint holds numbers, the same as all others.
func checkWritten(t *testing.T, c *checkpointFiles, want []model.TensorSpec) {
	t.Helper()
	tensors, err := c.folder.Tensors()
	if err != nil {
		t.Fatal(err)
	}
	defer tensors.Close()
	values, total := finite(int(largestTensor(want))), int64(0)
	for _, s := range want {
		got, err := tensors.Get(s.Name, s.Shape...)
		if err != nil || got.DType != s.DType || !bytes.Equal(got.Data, values[:len(got.Data)]) {
			t.Errorf("%s: %s %v of %d bytes, %v", s.Name, got.DType, got.Shape, len(got.Data), err)
		}
		total += int64(len(got.Data))
	}
	if total != c.total || total == 0 {
		t.Errorf("tensors have %d bytes, want %d", total, c.total)
	}
}
