# One command for each task. `make help` lists them.

SHELL := /bin/bash
CARGO ?= cargo
PYTHON ?= python3
PREFIX ?= /usr/local
# Whether the port kind `dpdk` is built: auto (where pkg-config finds libdpdk when the build begins, after `deps`), yes or no.
DPDK ?= auto
export CARGO DPDK
# What scripts/build-portable makes.
PORTABLE = $(or $(CARGO_TARGET_DIR),target)/x86_64-unknown-linux-gnu/release
# Prerequisites run in their order, with -j too: `deps` installs what `build` needs.
.NOTPARALLEL:

.DEFAULT_GOAL := help
.PHONY: help deps build test test-matrix programs interop differential conformance hunt threads demo demo-proxy bench bench-rxe experiments papers lint fuzz mutants doc wheel aarch64 packages image kubernetes install clean

help: ## Show this list
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  make \1\t\2/p' $(MAKEFILE_LIST) | expand -t 20

deps: ## Install what is missing beside Rust, by apt, and say what for
	@scripts/install-deps

build: ## Build burst, burstd and the drop-in libraries (release)
	@scripts/build

test: ## Install what is missing, build, and run every test; a summary at the end
	@scripts/install-deps || echo "make test: going on without these; tests that need them are skipped, with the reason"
	@scripts/test

interop: build ## Test against the kernel's soft-RoCE in an emulated machine, each side as client and as server (docs/interop.md)
	@scripts/install-deps --interop
	@$(PYTHON) tests/interop/run

differential: build ## Ask the kernel's soft-RoCE in an emulated machine what each behaviour does, and compare Burst (docs/differential.md)
	@scripts/install-deps --interop
	@$(PYTHON) tests/differential/run

test-matrix: deps build ## Test all options of perftest, UCX, libfabric, qperf, MPI, QEMU, Mooncake and programs behind the proxy; `make test` runs a part of them
	@scripts/install-deps --matrix
	BURST_MATRIX=1 $(PYTHON) -m pytest -q -rs -p no:cacheprovider --durations=5 tests/test_middleware.py tests/test_storage.py tests/test_mooncake.py tests/test_proxy_programs.py tests/test_metrics_programs.py

threads: ## Test ten million completions on many threads, then ThreadSanitizer and AddressSanitizer (needs a nightly toolchain with rust-src)
	@scripts/threads

programs: build ## Run a table of unmodified programs over Burst, daemon and in process: target/programs.md (docs/programs.md)
	@scripts/install-deps --programs
	BURST_PROGRAMS=1 $(PYTHON) -m pytest -q -rsxX -p no:cacheprovider --durations=5 tests/programs

conformance: build ## Run rdma-core's own test suite (from PyPI) and compare with tests/conformance/expected.txt
	@scripts/install-deps --conformance
	@$(PYTHON) tests/conformance/run
	@$(PYTHON) tests/conformance/run --in-process

hunt: build ## Attack a daemon beside a bystander and search for faults by seeds, for hours; kill a guarded one 200 times; simulate 10,000 random scenarios (tests/hunt/run; PARTS=sim SECONDS=60 KILLS=200 SEEDS=10000)
	$(CARGO) build --release --locked -p burst-control --example attack
	SECONDS_EACH=$(or $(SECONDS),60) KILLS=$(or $(KILLS),200) SEEDS=$(or $(SEEDS),10000) tests/hunt/run $(PARTS)

demo: ## Install and build what it needs, and measure Debian's perftest against kernel TCP between two namespaces (target/demo)
	@scripts/install-deps --demo
	@scripts/build demo
	@scripts/demo

demo-proxy: deps build ## Measure redis, iperf3 and nginx through `burst proxy`, by TCP and by the relay alone (target/demo)
	@scripts/demo-proxy

bench: deps build ## Measure the promised figures, each against its bound and against earlier runs (tests/bench/history.jsonl)
	$(CARGO) build --release --locked -p burst-shm --example doorbells
	$(CARGO) build --release --locked -p burst-engine --examples
	BURST_BENCH=1 $(PYTHON) -m pytest -q -rs tests/bench

bench-rxe: build ## Count instructions of Burst and of the kernel's soft-RoCE in one emulated machine
	@scripts/install-deps --interop
	$(PYTHON) tests/interop/cost.py

experiments: deps build ## Measure a shared bottleneck beside TCP, loss (selective repeat beside go-back-N and TCP), how senders share a link, what many queue pairs cost, and simulate figures of publications (two hours; tables, plots in target)
	$(CARGO) build --release --locked -p burst-engine --example shared_link --example many_queue_pairs --example calibrate
	$(CARGO) build --release --locked -p burst-shm --example doorbells
	$(CARGO) build --release --locked -p burst-urma-studies
	@missed=0; for one in bottleneck/run fairness/run loss/run loss/tcp scale/run calibration/run simulator/run urma/run; do experiments/$$one || missed=1; done; exit $$missed

papers: deps build ## Run the experiments behind the figures of five publications, beside their numbers (docs/papers; QUICK=1, PAPER=openurma, ARGS=--check)
	$(CARGO) build --release --locked -p burst-urma-studies
	experiments/papers/run $(PAPER) $(if $(QUICK),--quick) $(ARGS)

lint: ## Check formatting, the rules of the tree (scripts/tidy), licenses and sources (deny.toml) and clippy, and compile fuzz targets and benches
	$(CARGO) fmt --all -- --check
	scripts/tidy
	scripts/check-python
	scripts/check-fuzz
	scripts/deny
	$(CARGO) clippy --workspace --all-targets --locked -- -D warnings

fuzz: ## Run the fuzz targets: make fuzz [SECONDS=30] [TARGETS='wire session'] (fuzz/README.md)
	@scripts/fuzz $(or $(SECONDS),30) $(TARGETS)

mutants: ## Mutation test of one crate: make mutants CRATE=wire [SHARD=0/4] [FILE=src/packet.rs] [RE=...]; survivors in tests/mutants
	@CRATE=$(CRATE) SHARD=$(SHARD) FILE=$(FILE) RE='$(RE)' JOBS=$(or $(JOBS),1) scripts/mutants

doc: ## Build the API documentation; warnings are errors
	RUSTDOCFLAGS="-D warnings" $(CARGO) doc --workspace --no-deps --locked

wheel: ## Build for glibc 2.28 and newer and make the Python wheel burst-rdma of it: target/packages (docs/python.md; MACHINE=aarch64)
	@scripts/install-deps --wheel
	@scripts/build-portable $(or $(MACHINE),x86_64)
	@scripts/wheel --build $(or $(CARGO_TARGET_DIR),target)/$(or $(MACHINE),x86_64)-unknown-linux-gnu/release

packages: wheel ## Make packages for Debian, rpm and apk and the image for containers of the same build, and try wheel, packages and image (docs/packages.md)
	@scripts/install-deps --image
	@scripts/packages
	@scripts/image
	BURST_PACKAGES=1 BURST_BUILD=$(PORTABLE) $(PYTHON) -m pytest -q -rs -p no:cacheprovider tests/test_packages.py tests/test_image.py

aarch64: ## Make the wheel for aarch64 and try it in an emulated machine: its programs among themselves and with burstd here (docs/packages.md)
	@scripts/install-deps --aarch64
	@scripts/build-portable aarch64
	@scripts/wheel --build $(or $(CARGO_TARGET_DIR),target)/aarch64-unknown-linux-gnu/release
	@scripts/build
	BURST_WHEEL=$$(ls -t target/packages/*aarch64.whl | head -n 1) $(PYTHON) -m pytest -q -rs -p no:cacheprovider tests/test_aarch64.py

image: wheel ## Make the image for containers, and run it and the pods of deploy/kubernetes/pod-mode by rootless podman (docs/containers.md)
	@scripts/install-deps --image
	@scripts/packages --kinds deb
	@scripts/image
	BURST_PACKAGES=1 BURST_BUILD=$(PORTABLE) $(PYTHON) -m pytest -q -rs -p no:cacheprovider tests/test_image.py

kubernetes: ## Test and build the device plugin, the driver and the helm chart of deploy/kubernetes, and check the steps of deploy/ci (docs/containers.md; needs Go)
	@BURST_BUILD=$(BURST_BUILD) scripts/kubernetes

install: ## Install what `make build` has built below PREFIX (default /usr/local), with manual pages and completions; builds nothing
	@PREFIX=$(PREFIX) scripts/install

clean: ## Remove all build output
	$(CARGO) clean
