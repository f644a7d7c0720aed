# One command for each thing. `make help` lists them.

SHELL := /bin/bash
CARGO ?= cargo
PYTHON ?= python3
PREFIX ?= /usr/local
LIB := target/release/lib
# The port kind `dpdk` is built where pkg-config knows libdpdk; DPDK=no leaves it out.
DPDK ?= $(shell pkg-config --exists libdpdk 2>/dev/null && echo yes || echo no)
FEATURES := $(if $(filter yes,$(DPDK)),--features burstd/dpdk)

.DEFAULT_GOAL := help
.PHONY: help deps build test interop conformance demo bench bench-rxe lint doc install clean

help: ## This list
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  make \1\t\2/p' $(MAKEFILE_LIST) | expand -t 18

deps: ## Install what is needed beside Rust (apt; says what it does)
	@scripts/install-deps

build: ## Release build: burst, burstd, the drop-in libraries
	@echo "make: $(if $(FEATURES),with,without) the port kind dpdk$(if $(FEATURES),, (libdpdk-dev is not installed))"
	$(CARGO) build --release --locked -p burst -p burstd $(FEATURES)
	$(CARGO) build --release --locked -p burst --example pingpong
	scripts/build-libs.sh release
	scripts/build-c release

test: ## Everything: unit tests to two-namespace runs, with a summary
	@scripts/test

interop: build ## Burst against the kernel's soft-RoCE in an emulated machine, each side as client and as server (docs/interop.md)
	@scripts/install-deps --interop
	@$(PYTHON) tests/interop/run

test-matrix: deps build ## All of perftest's options, UCX, libfabric, qperf, MPI, QEMU, Mooncake, of which `make test` runs a part
	BURST_MATRIX=1 $(PYTHON) -m pytest -q -rs -p no:cacheprovider --durations=5 tests/test_middleware.py tests/test_storage.py tests/test_mooncake.py

threads: ## Ten million completions through many threads, and ThreadSanitizer (needs a nightly toolchain with rust-src)
	@scripts/threads

conformance: build ## rdma-core's own test suite (fetched from PyPI), compared with tests/conformance/expected.txt
	@scripts/install-deps --conformance
	@$(PYTHON) tests/conformance/run

demo: deps build ## Two namespaces, Debian's perftest against kernel TCP on one wire; a table, JSON and SVG in target/demo
	@scripts/demo

bench: deps build ## The figures that are promised, each against its bound; slower than test
	BURST_BENCH=1 $(PYTHON) -m pytest -q -rs tests/bench

bench-rxe: build ## Instructions of Burst beside the kernel's soft-RoCE, counted in one emulated machine
	@scripts/install-deps --interop
	$(PYTHON) tests/interop/cost.py

lint: ## Formatting, the rules of the tree (scripts/tidy), clippy, and that fuzz targets compile
	$(CARGO) fmt --all -- --check
	scripts/tidy
	scripts/check-fuzz
	$(CARGO) clippy --workspace --all-targets --locked -- -D warnings

doc: ## API documentation, warnings are errors
	RUSTDOCFLAGS="-D warnings" $(CARGO) doc --workspace --no-deps --locked

install: build ## Install below PREFIX (default /usr/local)
	install -d $(DESTDIR)$(PREFIX)/bin $(DESTDIR)$(PREFIX)/lib/burst
	install -m 755 target/release/burst target/release/burstd $(DESTDIR)$(PREFIX)/bin
	install -m 755 $(LIB)/burst-pair $(DESTDIR)$(PREFIX)/lib/burst
	install -m 644 $(LIB)/lib*.so.1 $(DESTDIR)$(PREFIX)/lib/burst
	ln -sf libibverbs.so.1 $(DESTDIR)$(PREFIX)/lib/burst/libibverbs.so
	ln -sf librdmacm.so.1 $(DESTDIR)$(PREFIX)/lib/burst/librdmacm.so
	install -d $(DESTDIR)$(PREFIX)/share/burst
	install -m 644 share/*.bt $(DESTDIR)$(PREFIX)/share/burst

clean: ## Remove what was built
	$(CARGO) clean
