# What one does with this project. `make help` lists it.

CARGO ?= cargo
PYTHON ?= python3
# Where cargo builds; set CARGO_TARGET_DIR for another place.
TARGET := $(abspath $(or $(CARGO_TARGET_DIR),target))
BINARY := $(TARGET)/release/model-garden
RUN2_FACTS := --examples 663 --batch-size 2 --gradient-accumulation 4 --memory-limit 32GB

# Tests that draw at random, as cargo and unittest name them. All of them draw by GARDEN_SEED, which is 1 unless it is set.
RANDOM := arrival:: engine:: fused:: claims:: error_rates:: endings:: oracle:: comparison_rates:: judgement:: random:: robust:: gradients:: pictures::broken generation::draws serve::queue::kills train::a_killed_run
RANDOM_PYTHON := -k Families -k Verdicts
SEEDS ?= 5

.DEFAULT_GOAL := help
.PHONY: help build test check soak demo story bench bench-all fmt picture python rust format lints documentation docs docs-test reference recording setup setup-browser setup-nvrtc wheel dist deny lint-workflows gpu-tests bench-gpu parity parity-folders parity-grid parity-grid-record plan-peaks disturbed-training kernels nightly serve-fuzz serve-clients serve-hostile serve-kills

help: ## list what can be done
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-18s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup:
	@command -v $(CARGO) >/dev/null || { echo "error: cargo is not installed"; echo "hint: install Rust 1.89 or newer: https://rustup.rs"; exit 2; }
	@command -v cc >/dev/null || { echo "error: no C linker (cc) found"; echo "hint: apt-get install gcc libc6-dev"; exit 2; }

# The tests that open reports in a browser skip themselves without one, so this only tries.
setup-browser:
	@for name in chromium chromium-browser google-chrome google-chrome-stable chrome; do command -v $$name >/dev/null && exit 0; done; \
	if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
		{ apt-get install -y -qq --no-install-recommends chromium || { apt-get update -qq && apt-get install -y -qq --no-install-recommends chromium; }; } >/dev/null 2>&1 \
			|| echo "no browser could be installed: the tests of reports in a browser are skipped"; \
	else echo "no Chromium or Chrome found: the tests of reports in a browser are skipped"; fi

# NVRTC compiles the kernels of GPUs, and needs none: of a CUDA toolkit, or as a Python package.
NVRTC := ls /usr/local/cuda/lib64/libnvrtc.so.1? $(TARGET)/nvrtc-venv/lib/python3*/site-packages/nvidia/*/lib/libnvrtc.so.1? 2>/dev/null | head -n 1
setup-nvrtc:
	@if [ -z "$$($(NVRTC))" ]; then \
		{ $(PYTHON) -m venv $(TARGET)/nvrtc-venv && $(TARGET)/nvrtc-venv/bin/python -m pip install --quiet --disable-pip-version-check nvidia-cuda-nvrtc; } >/dev/null 2>&1 \
		|| echo "NVRTC could not be installed: kernels of GPUs are not compiled"; fi

build: setup ## build the binary: target/release/model-garden
	$(CARGO) build --release --locked

# Does each of these, whatever became of the others; tells at the end what was skipped and what failed.
define each
	@mkdir -p $(TARGET) && rm -f $(TARGET)/*.tests; failed=; \
	for part in $(1); do $(MAKE) --no-print-directory $$part || failed="$$failed $$part"; done; echo; \
	grep -hos 'skipped: .*' $(TARGET)/*.tests | sort -u; \
	grep -hosE '^test .* FAILED$$|^(FAIL|ERROR): .*' $(TARGET)/*.tests | sort -u; \
	if [ -n "$$failed" ]; then echo "failed:$$failed"; exit 1; fi; echo "passed: $(1)"
endef

# Shows what a command tells, keeps it for the end, and passes its exit code on.
define told
	{ $(2); echo $$? > $(TARGET)/$(1).code; } 2>&1 | tee $(TARGET)/$(1).tests; exit $$(cat $(TARGET)/$(1).code)
endef

test: setup setup-browser setup-nvrtc ## run every test
	$(call each,rust python)

check: setup setup-browser setup-nvrtc ## what CI runs: format, lints, tests, documentation
	$(call each,format lints rust python documentation)

# What these tests say about memory and time is about processors; `make gpu-tests` is about GPUs.
rust:
	@mkdir -p $(TARGET); export CUDA_VISIBLE_DEVICES= GARDEN_NVRTC="$$($(NVRTC))"; $(call told,rust,$(CARGO) test --workspace --locked --no-fail-fast $(RUST_TESTS))

format:
	$(CARGO) fmt --all --check

lints:
	$(CARGO) clippy --workspace --all-targets --locked -- -D warnings

documentation:
	RUSTDOCFLAGS="-D warnings" $(CARGO) doc --workspace --no-deps --locked --quiet

# The package needs nothing, but its tests are about images and arrays, and the server's about OpenAI's client: without a network those skip themselves.
python: ## run the tests of the Python package with the binary of this build
	@mkdir -p $(TARGET); export CUDA_VISIBLE_DEVICES=; \
	if ! $(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 9))' 2>/dev/null; then \
		echo "skipped: the tests of the Python package need Python 3.9 or newer" | tee $(TARGET)/python.tests; exit 0; fi; \
	python=$(PYTHON); \
	if ! $(PYTHON) -c 'import PIL, numpy, openai' 2>/dev/null; then \
		python=$(TARGET)/python-venv/bin/python; \
		$$python -c 'import PIL, numpy, openai' 2>/dev/null || { $(PYTHON) -m venv $(TARGET)/python-venv \
			&& $$python -m pip install --quiet --disable-pip-version-check --retries 1 --timeout 10 pillow numpy openai; } >/dev/null 2>&1 \
			|| { echo "Pillow, numpy and openai could not be installed: the tests that need them are skipped"; python=$(PYTHON); }; \
	fi; \
	$(CARGO) build --workspace --locked --quiet && MODEL_GARDEN_BINARY="$(TARGET)/debug/model-garden" && export MODEL_GARDEN_BINARY \
		&& { $(call told,python,$$python -u python/tests $(PYTHON_TESTS)); }

soak: setup ## run every random test with new seeds: make soak SEEDS=20
	@failed=; for number in $$(seq $(SEEDS)); do \
		GARDEN_SEED=$$(od -An -N4 -tu4 /dev/urandom | tr -d ' '); export GARDEN_SEED; \
		echo "== GARDEN_SEED=$$GARDEN_SEED, $$number of $(SEEDS)"; \
		$(MAKE) --no-print-directory rust RUST_TESTS="--test it -- $(RANDOM)" || failed="$$failed rust:$$GARDEN_SEED"; \
		MODEL_GARDEN_TEST_DRAWS=1 $(MAKE) --no-print-directory python PYTHON_TESTS="$(RANDOM_PYTHON)" || failed="$$failed python:$$GARDEN_SEED"; \
	done; \
	if [ -n "$$failed" ]; then echo; echo "seeds that fail:$$failed"; exit 1; fi; echo "all $(SEEDS) seeds passed"

kernels: setup setup-nvrtc ## compile the kernels of GPUs for every card that is supported; needs no GPU
	GARDEN_NVRTC="$$($(NVRTC))" GARDEN_CARDS=all $(CARGO) test --locked -p garden-device --test it kernels::

# Crates whose tests run on a GPU, and what those read.
GPU_CRATES := garden-device garden-model
GPU_FIXTURES := testdata/tiny-model testdata/reference/recorded testdata/reference/recorded_generation testdata/reference/recorded_merged testdata/reference/recorded_quantised testdata/reference/recorded_mixed
GPU_TESTS := dist/gpu-tests

# Stripped, since the symbols are three quarters of a test program.
gpu-tests: setup ## pack the tests that need an NVIDIA GPU, and run them if there is one: dist/gpu-tests.tar.gz
	@rm -rf $(GPU_TESTS) $(GPU_TESTS).tar.gz && mkdir -p $(GPU_TESTS)/testdata/reference
	@for crate in $(GPU_CRATES); do \
		$(CARGO) test --locked -p $$crate --test it --no-run --message-format=json > $(GPU_TESTS)/$$crate.json || exit 2; \
		program=$$(sed -n 's/.*"executable":"\([^"]*\)".*/\1/p' $(GPU_TESTS)/$$crate.json | tail -n 1); \
		rm $(GPU_TESTS)/$$crate.json; cp "$$program" $(GPU_TESTS)/$$crate && strip $(GPU_TESTS)/$$crate || exit 2; \
	done
	@for folder in $(GPU_FIXTURES); do cp -r $$folder $(GPU_TESTS)/$$folder || exit 2; done
	@cp testdata/gpu/run.sh $(GPU_TESTS)/
	@echo "$$(git describe --always --dirty 2>/dev/null || echo unknown), $$(rustc --version)" > $(GPU_TESTS)/build.txt
	@tar -czf $(GPU_TESTS).tar.gz -C dist gpu-tests
	@echo "packed: $(GPU_TESTS) ($$(du -sh $(GPU_TESTS) | cut -f 1)), $(GPU_TESTS).tar.gz ($$(du -h $(GPU_TESTS).tar.gz | cut -f 1))"
	@if nvidia-smi -L >/dev/null 2>&1; then $(GPU_TESTS)/run.sh; else \
		echo "there is no GPU here: copy $(GPU_TESTS).tar.gz to a machine that has one, unpack it there and start gpu-tests/run.sh (--sanitize for memcheck and racecheck)"; fi

bench-gpu: build ## time training steps on an NVIDIA GPU, as ratios to what is recorded
	@if nvidia-smi -L >/dev/null 2>&1; then $(PYTHON) testdata/gpu/bench.py --binary $(BINARY); else \
		echo "there is no GPU here: copy $(BINARY) and testdata/gpu to a machine that has one, and start bench.py there"; fi

demo: build ## train a tiny model on drawn pictures: make demo SEED=7
	@rm -rf $(TARGET)/demo
	@$(BINARY) demo --output-dir $(TARGET)/demo --seed $(or $(SEED),42)

story: build ## diagnose the two built-in production runs
	@echo "== run 1: stopped at step 70 by a person who thought it was leaking =="
	@$(BINARY) diagnose testdata/production/run1.csv $(RUN2_FACTS)
	@echo
	@echo "== run 2: the same job, left running to step 240 =="
	@$(BINARY) diagnose testdata/production/run2.csv $(RUN2_FACTS)

picture: build ## draw docs/report.png again, the picture in the README
	@$(BINARY) diagnose testdata/production/run2.csv $(RUN2_FACTS) --format html -o $(TARGET)/report.html
	@chromium --headless --no-sandbox --disable-gpu --hide-scrollbars --window-size=1200,1000 \
		--screenshot=docs/report.png "file://$(TARGET)/report.html" 2>/dev/null

recording: build ## draw docs/recording.svg again, the terminal recording in the README
	@MODEL_GARDEN_BINARY=$(BINARY) $(PYTHON) docs/tools/recording.py

reference: build ## write docs/reference again: every option, setting, JSON field and exit code
	@MODEL_GARDEN_BINARY=$(BINARY) $(PYTHON) docs/tools/reference.py

# Python with the packages that pages ask for (torch, transformers) runs more blocks: make docs-test PYTHON=venv/bin/python
docs-test: build ## run every shell block of README.md and docs/: make docs-test PAGES=docs/run.md
	@MODEL_GARDEN_BINARY=$(BINARY) $(PYTHON) docs/tools/blocks.py $(PAGES)

# A warning of mdBook fails it, and so does a link that leads nowhere.
docs: ## build the site of the docs with search: target/site/index.html
	@command -v mdbook >/dev/null || { echo "error: mdbook is not installed"; echo "hint: cargo install mdbook --version '^0.4' --no-default-features --features search"; exit 2; }
	@$(PYTHON) docs/tools/links.py || { echo "error: these links lead nowhere"; exit 1; }
	@mkdir -p $(TARGET) && mdbook build --dest-dir $(TARGET)/site > $(TARGET)/site.log 2>&1; code=$$?; cat $(TARGET)/site.log; \
	if [ $$code != 0 ] || grep -qE 'WARN|ERROR' $(TARGET)/site.log; then echo "failed: see $(TARGET)/site.log"; exit 1; fi; \
	rm -rf $(TARGET)/site/tools; echo "built: $(TARGET)/site/index.html"

bench: setup ## measure reading and judging of small and large traces
	$(CARGO) bench --locked -p model-garden

# BENCH_PYTHON with psutil, Pillow, numpy, torch, transformers and peft runs all parts; others are skipped.
bench-all: build ## run every benchmark; tables with date and machine: target/bench-DATE.md
	$(PYTHON) bench/all.py --binary $(BINARY) $(if $(BENCH_PYTHON),--python $(BENCH_PYTHON)) $(if $(PARTS),--parts $(PARTS))

# The glibc that the wheel and the archive need at least: that of RHEL 8; Debian 11 has a newer one. Zig links against it, whatever this machine has, and maturin
# refuses a binary that needs more.
GLIBC := 2_28
WHEELS := $(TARGET)/wheels

# Without Zig the linker of this machine is used, and maturin finds out which glibc that takes.
wheel: setup ## build the Python wheel with the binary in it: target/wheels
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 9))' || { echo "error: Python 3.9 or newer is needed"; echo "hint: make wheel PYTHON=python3.12"; exit 2; }
	test -x $(TARGET)/wheel-venv/bin/maturin || { $(PYTHON) -m venv $(TARGET)/wheel-venv && $(TARGET)/wheel-venv/bin/pip install --quiet 'maturin>=1.10,<2'; }
	@PATH="$(TARGET)/wheel-venv/bin:$$PATH"; export PATH; rm -f $(WHEELS)/*.whl; \
	python -m ziglang version >/dev/null 2>&1 || pip install --quiet --retries 1 ziglang >/dev/null 2>&1; \
	if python -m ziglang version >/dev/null 2>&1; then options="--zig --compatibility manylinux_$(GLIBC)"; else \
		options=; echo "Zig could not be installed (pip install ziglang): linking with this machine's own glibc"; fi; \
	(cd python && maturin build --release --locked $$options --compression-level 9 --out $(WHEELS)) || exit 2; \
	for wheel in $(WHEELS)/*.whl; do \
		needs=$$(echo "$$wheel" | sed -n 's/.*-manylinux_\([0-9]*\)_\([0-9]*\)_[a-z].*/glibc \1.\2 or newer/p'); \
		echo "built: $$wheel ($$(du --apparent-size -h "$$wheel" | cut -f 1)), for $${needs:-machines like this one only}"; \
	done

dist: wheel ## pack a release: archive, wheel, bill of materials, checksums: dist
	@$(PYTHON) packaging/dist.py $(WHEELS)/*.whl

deny: ## check the licences, duplicates and sources of all dependencies
	@if command -v cargo-deny >/dev/null; then $(CARGO) deny --offline --locked check licenses bans sources; else \
		echo "skipped: cargo-deny is not installed (cargo install --locked cargo-deny)"; fi

lint-workflows: ## check the workflow files
	@if command -v actionlint >/dev/null; then actionlint && echo "workflows: no complaints"; else \
		echo "skipped: actionlint is not installed"; fi

# PARITY_PYTHON is a Python that has the packages of testdata/training/requirements.txt; without it, they are installed beside the build. They include PyTorch.
# The tests that have transformers, peft, bitsandbytes and TensorBoard read what we write.
PARITY_TESTS := training::peft_takes merging::several_files packing::cpu::a_saved_checkpoint tensorboard::tensorboard_reads_it results::transformers_and_peft

# A Python that has these packages, for the commands that follow.
define parity_python
	python="$(if $(findstring /,$(PARITY_PYTHON)),$(abspath $(PARITY_PYTHON)),$(PARITY_PYTHON))"; \
	if [ -z "$$python" ]; then \
		python=$(TARGET)/parity-venv/bin/python; packages=testdata/training/requirements.txt; \
		cmp -s $$packages $(TARGET)/parity-venv/installed.txt || { $(PYTHON) -m venv $(TARGET)/parity-venv \
			&& $$python -m pip install --quiet --disable-pip-version-check -r $$packages && cp $$packages $(TARGET)/parity-venv/installed.txt; } \
			|| { echo "error: the packages of $$packages could not be installed"; \
				echo "hint: install them where there is a network, and name that Python: make parity PARITY_PYTHON=venv/bin/python"; exit 2; }; \
	fi; \
	export CUDA_VISIBLE_DEVICES=
endef

parity: build ## train beside transformers and peft, and have them read what we write; fails if they differ: make parity PARITY_PYTHON=venv/bin/python
	@$(parity_python); $$python testdata/training/compare_models.py --binary $(BINARY) --work $(TARGET)/parity || exit 1; \
	$$python testdata/training/foreign_adapters.py --binary $(BINARY) --work $(TARGET)/parity/adapters || exit 1; \
	GARDEN_PYTHON=$$python GARDEN_TENSORBOARD=$$python $(CARGO) test --locked -p garden-model -p garden-train -p model-garden --test it -- $(PARITY_TESTS) \
		> $(TARGET)/parity.tests 2>&1; code=$$?; grep -E '^test |^test result|panicked|^skipped: ' $(TARGET)/parity.tests; \
	if [ $$code != 0 ] || grep -q '^skipped: .*\(GARDEN_\|has no\)' $(TARGET)/parity.tests; then echo "failed: see $(TARGET)/parity.tests"; exit 1; fi

parity-folders: build ## change each field of a model's folder: transformers and this program mean the same, or it is refused
	@$(parity_python); $$python testdata/training/changed_fields.py --binary $(BINARY) --work $(TARGET)/parity-folders

# Pictures of all formats are made with Pillow, which `make python` has installed beside the build where it was not there.
plan-peaks: build ## compare planned memory with what real runs needed, in thirty configurations
	@python=$(PYTHON); $$python -c 'import PIL' 2>/dev/null || python=$(TARGET)/python-venv/bin/python; \
	CUDA_VISIBLE_DEVICES= $$python testdata/training/plan_peaks.py --binary $(BINARY) --work $(TARGET)/plan-peaks

# Root has a disk of its own for the runs that fill one.
RUNS ?= 100
disturbed-training: build ## disturb training runs and resume them: the same bits, or refused: make disturbed-training RUNS=10
	@CUDA_VISIBLE_DEVICES= $(PYTHON) testdata/guard/disturbed_training.py --binary $(BINARY) --runs $(RUNS)

# The peer's losses are recorded, so that ten minutes with numpy and Pillow are enough; recording them again takes forty with the packages of parity.
parity-grid: build ## how far training in bf16 is from float32, beside transformers and peft, over a grid of settings
	@$(or $(PARITY_PYTHON),$(PYTHON)) testdata/training/parity_grid.py --binary $(BINARY) --work $(TARGET)/parity-grid --recorded

parity-grid-record: build ## record the peer's losses of parity-grid again: make parity-grid-record PARITY_PYTHON=venv/bin/python
	@CUDA_VISIBLE_DEVICES= $(PARITY_PYTHON) testdata/training/parity_grid.py --binary $(BINARY) --work $(TARGET)/parity-grid --phase make,peer,check

nightly: ## what takes too long for every change: kernels for all cards; comparisons with transformers and peft; planned memory; disturbed runs; the server fuzzed, with official clients, under hostile load, and killed
	$(call each,kernels parity parity-folders parity-grid plan-peaks disturbed-training serve-fuzz serve-clients serve-hostile serve-kills)

# The packages of testdata/server/requirements.txt are installed beside the build. Another seed draws other requests.
serve-fuzz: setup ## fuzz the server through its OpenAPI description and with broken requests: make serve-fuzz SEED=7
	@python=$(TARGET)/fuzz-venv/bin/python; packages=testdata/server/requirements.txt; \
	cmp -s $$packages $(TARGET)/fuzz-venv/installed.txt || { $(PYTHON) -m venv $(TARGET)/fuzz-venv \
		&& $$python -m pip install --quiet --disable-pip-version-check -r $$packages && cp $$packages $(TARGET)/fuzz-venv/installed.txt; } \
		|| { echo "error: the packages of $$packages could not be installed"; exit 2; }; \
	$(CARGO) build --locked -p model-garden && $$python testdata/server/fuzz.py --binary $(TARGET)/debug/model-garden --work $(TARGET)/fuzz --seed $(or $(SEED),1)

# The clients are installed beside the build, the newest of each series that testdata/server/clients/run.py names.
serve-clients: setup ## run OpenAI's official clients and LiteLLM against the server: make serve-clients CLIENTS=openai-3
	@$(CARGO) build --locked -p model-garden \
		&& { $(call told,clients,$(PYTHON) -u testdata/server/clients/run.py --binary $(TARGET)/debug/model-garden --work $(TARGET)/clients $(CLIENTS)); }

# 10,000 jobs and 100,000 requests; what else the machine does is in the figures.
serve-hostile: build ## measure the server's memory and its ordinary clients' waits beside hostile ones
	@$(PYTHON) bench/serve_hostile.py --binary $(BINARY)

# Needs root for a disk of its own, and is skipped elsewhere.
KILLS ?= 200
serve-kills: build ## kill the server and its jobs at random on a disk that is full now and then: make serve-kills KILLS=20 SEED=7
	@$(PYTHON) testdata/server/kills.py --binary $(BINARY) --work $(TARGET)/kills --kills $(KILLS) $(if $(SEED),--seeds $(SEED))

fmt: ## format the code
	$(CARGO) fmt --all
