//go:build cuda

package engine

import (
	"encoding/binary"
	"encoding/json"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"sync"
	"testing"
	"time"

	"reprise/kernels"
	"reprise/model"
	"reprise/weights"
)

var (
	loadDir = flag.String("load.dir", "", "TestCUDALoading: folder in memory (tmpfs) for its checkpoint; without one it is skipped")
	loadGB  = flag.Float64("load.gb", 40, "TestCUDALoading: size of the checkpoint")
)

// TestCUDALoading writes a checkpoint of the Qwen3.5-27B shape with fewer layers to a folder in memory and loads it at 70 % or more
// of the rate at which the same files can be read, by all processors through pinned memory, and copied to the device:
//
//	engine.test -test.v -test.run TestCUDALoading -load.dir /dev/shm
//
// It needs that much memory for the files and on the device.
func TestCUDALoading(t *testing.T) {
	if *loadDir == "" {
		t.Skip("no -load.dir")
	}
	begin := time.Now()
	folder, files, total := writeCheckpoint(t, *loadDir, *loadGB*1e9)
	t.Logf("%.1f GB in %d files written in %.1f s", float64(total)/1e9, len(files), time.Since(begin).Seconds())
	plain, load := time.Hour, time.Hour
	for range 2 {
		plain = min(plain, onGPU(t, func(dev kernels.Device) time.Time { return plainRead(t, dev, files) }))
		load = min(load, onGPU(t, func(dev kernels.Device) time.Time { return loadModel(t, dev, folder) }))
	}
	rate := func(d time.Duration) float64 { return float64(total) / 1e9 / d.Seconds() }
	t.Logf("plain parallel read and copy: %.2f s, %.1f GB/s; load: %.2f s, %.1f GB/s, %.0f %% of it",
		plain.Seconds(), rate(plain), load.Seconds(), rate(load), 100*rate(load)/rate(plain))
	if rate(load) < 0.7*rate(plain) {
		t.Errorf("loading reaches %.0f %% of a plain read, want 70 %%", 100*rate(load)/rate(plain))
	}
}

// onGPU is how long f and what it enqueues take on a device of its own, from the time that f returns.
func onGPU(t *testing.T, f func(kernels.Device) time.Time) time.Duration {
	t.Helper()
	dev := gpu(t, kernels.BF16)
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

func loadModel(t *testing.T, dev kernels.Device, folder *weights.Folder) (begin time.Time) {
	t.Helper()
	begin = time.Now()
	config, err := ParseConfig(folder)
	if err != nil {
		t.Fatal(err)
	}
	_, tensors, err := Source{Folder: folder}.load(dev, config, 256, Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { tensors.Close() }) // unmapping is no part of loading
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

// writeCheckpoint writes about so many bytes of weights as 16 shards, side by side.
func writeCheckpoint(t *testing.T, parent string, bytes float64) (folder *weights.Folder, files []string, total int64) {
	t.Helper()
	dir, err := os.MkdirTemp(parent, "checkpoint")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	text, want := shape(t, bytes)
	shards := make([][]kernels.HostTensor, 16)
	sizes, where := make([]int64, len(shards)), map[string]string{}
	values := finite(int(largestTensor(want)))
	for _, s := range want {
		i, n := slices.Index(sizes, slices.Min(sizes)), tensorBytes([]model.TensorSpec{s})
		shards[i] = append(shards[i], kernels.HostTensor{Name: s.Name, DType: s.DType, Shape: s.Shape, Data: values[:n]})
		sizes[i], where[s.Name], total = sizes[i]+n, fmt.Sprintf("model-%02d.safetensors", i), total+n
	}
	index, err := json.Marshal(map[string]any{"weight_map": where})
	if err != nil {
		t.Fatal(err)
	}
	for name, content := range map[string][]byte{"config.json": text, "model.safetensors.index.json": index} {
		if err := os.WriteFile(filepath.Join(dir, name), content, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	var group sync.WaitGroup
	for i, tensors := range shards {
		path := filepath.Join(dir, fmt.Sprintf("model-%02d.safetensors", i))
		files = append(files, path)
		group.Go(func() {
			f, err := os.Create(path)
			if err == nil {
				err = weights.Write(f, nil, tensors)
			}
			if err == nil {
				err = f.Close()
			}
			if err != nil {
				t.Error(err)
			}
		})
	}
	group.Wait()
	if folder, err = weights.OpenFolder(dir); err != nil || t.Failed() {
		t.Fatal(err)
	}
	return folder, files, total
}

// shape is the configuration of the 27B model with as many layers as fit, and its tensors.
func shape(t *testing.T, bytes float64) (config []byte, want []model.TensorSpec) {
	t.Helper()
	whole, err := os.ReadFile("../model/qwen35/testdata/qwen3.5-27b.json")
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
		parsed, err := ParseConfig(&weights.Folder{Name: "shape", Config: config})
		if err != nil {
			t.Fatal(err)
		}
		if want = wanted(parsed, Options{}); float64(tensorBytes(want)) <= bytes || layers == 4 {
			break
		}
	}
	return config, want
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
