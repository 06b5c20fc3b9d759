# The commands a person needs; .ci/run runs the same ones.
GO ?= go
STATICCHECK = honnef.co/go/tools/cmd/staticcheck@v0.8.2

.PHONY: all build test test-short race lint fuzz bench clean

all: build

build: ## the three programs into bin/
	$(GO) build -o bin/ ./cmd/...

test: ## everything that has to hold
	$(GO) test ./...

test-short: ## a first answer in about a minute
	$(GO) test -short ./...

race:
	$(GO) test -race -short ./...

lint: ## vet, staticcheck, gofmt
	$(GO) vet ./...
	$(GO) run $(STATICCHECK) ./...
	@test -z "$$(gofmt -l .)" || { echo "gofmt would change:"; gofmt -l .; exit 1; }

clean:
	rm -rf bin
