# The commands a person needs; .ci/run runs the same ones.
GO ?= go
STATICCHECK = honnef.co/go/tools/cmd/staticcheck@v0.8.2

.PHONY: all build test test-short race variants lint fuzz bench clean toolchain trampolines fatbins cuda cuda-test sanitize

all: build

build: ## the three programs into bin/
	$(GO) build -o bin/ ./cmd/...

test: ## everything that has to hold
	$(GO) test -timeout 30m ./...

test-short: ## a first answer in about a minute
	$(GO) test -short ./...

RACE = ./engine/... ./server/... ./cmd/... ./chat ./sampler ./spec ./weights ./tokenizer

race: ## the short tests of everything with goroutines, under the race detector
	$(GO) test -race -short -timeout 20m $(RACE)

FUZZTIME ?= 60s

fuzz: ## every fuzz target for FUZZTIME
	GO="$(GO)" FUZZTIME=$(FUZZTIME) scripts/fuzz.sh

variants: ## the short tests that depend on the processor: without assembly, and on one thread
	$(GO) test -short -tags purego -timeout 20m ./kernels/cpu
	$(GO) test -short -tags purego -run 'OneByOne|BatchEqualsSingle' -timeout 20m ./engine
	GOMAXPROCS=1 $(GO) test -short -timeout 20m ./kernels/cpu ./engine/... ./server/...

lint: ## vet, staticcheck, gofmt
	$(GO) vet ./...
	$(GO) run $(STATICCHECK) ./...
	@test -z "$$(gofmt -l .)" || { echo "gofmt would change:"; gofmt -l .; exit 1; }

bench: ## every operation, then both demo models, beside their floors
	$(GO) run ./cmd/bench kernels
	$(GO) run ./cmd/bench engine demo-qwen35
	$(GO) run ./cmd/bench engine demo-nemotron

# CUDA: nvcc and headers of CUDA_HOME, or of wheels that `make toolchain` installs. `make -j2 cuda` uses two cores.
CUDA = $(if $(CUDA_HOME),$(CUDA_HOME),$(CURDIR)/.toolchain/nvidia/cu13)
CUDA_SOURCES = $(wildcard kernels/cuda/src/*.cu)
FATBINS = $(CUDA_SOURCES:kernels/cuda/src/%.cu=kernels/cuda/fatbin/%.fatbin)
NVCC_FLAGS = -std=c++17 -O3 -gencode arch=compute_90a,code=sm_90a -Xptxas -v,-warn-spills -I$(CUDA)/include
CUDA_GO = CGO_ENABLED=1 CGO_CFLAGS="-O2 -I$(CURDIR)/kernels/cuda/driver/shim -I$(CUDA)/include" $(GO)

toolchain: ## the CUDA compiler, unless CUDA_HOME names one
	@scripts/toolchain.sh

trampolines: toolchain ## the jump table into libcuda.so.1; committed
	scripts/trampolines.sh $(CUDA)/include

# What the compiler says of registers and spills is kept beside each file.
kernels/cuda/fatbin/%.fatbin: kernels/cuda/src/%.cu $(wildcard kernels/cuda/src/*.cuh) | toolchain
	@mkdir -p $(@D)
	$(CUDA)/bin/nvcc $(NVCC_FLAGS) -fatbin -o $@ $< 2> $(@:.fatbin=.txt) || { cat $(@:.fatbin=.txt); rm -f $@; exit 1; }

fatbins: $(FATBINS)

cuda: fatbins trampolines ## the three programs with CUDA into bin/
	$(CUDA_GO) build -tags cuda -o bin/ ./cmd/...

cuda-test: fatbins ## the tests of the CUDA device and of the engine on it as programs, for a machine with a GPU
	@mkdir -p bin
	$(CUDA_GO) test -c -tags cuda -ldflags='-s -w' -o bin/cuda.test ./kernels/cuda/
	$(CUDA_GO) test -c -tags "cuda nodemo" -ldflags='-s -w' -o bin/engine.test ./engine/

sanitize: cuda-test ## a reduced conformance suite and mixed steps under every tool of compute-sanitizer
	scripts/sanitize.sh bin/cuda.test bin/engine.test

clean:
	rm -rf bin kernels/cuda/fatbin
