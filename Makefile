# What one does with this project. `make help` lists it.

CARGO ?= cargo
PYTHON ?= python3
# Where cargo builds; set CARGO_TARGET_DIR for another place.
TARGET := $(abspath $(or $(CARGO_TARGET_DIR),target))
BINARY := $(TARGET)/release/model-garden
RUN2_FACTS := --examples 663 --batch-size 2 --gradient-accumulation 4 --memory-limit 32GB

.DEFAULT_GOAL := help
.PHONY: help build test check demo story bench fmt picture python setup setup-browser wheel

help: ## list what can be done
	@awk -F ':.*## ' '/^[a-z]+:.*## / {printf "  make %-8s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

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

build: setup ## build the binary: target/release/model-garden
	$(CARGO) build --release --locked

test: setup setup-browser ## run every test
	$(CARGO) test --workspace --locked
	@$(MAKE) --no-print-directory python

# The package needs nothing, but its tests are about images and arrays: without a network those skip themselves.
python: ## run the tests of the Python package with the binary of this build
	@if ! $(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 9))' 2>/dev/null; then \
		echo "skipped: the tests of the Python package need Python 3.9 or newer"; exit 0; fi; \
	python=$(PYTHON); \
	if ! $(PYTHON) -c 'import PIL, numpy' 2>/dev/null; then \
		python=$(TARGET)/python-venv/bin/python; \
		$$python -c 'import PIL, numpy' 2>/dev/null || { $(PYTHON) -m venv $(TARGET)/python-venv \
			&& $$python -m pip install --quiet --disable-pip-version-check --retries 1 --timeout 10 pillow numpy; } >/dev/null 2>&1 \
			|| { echo "Pillow and numpy could not be installed: the tests that need them are skipped"; python=$(PYTHON); }; \
	fi; \
	$(CARGO) build --locked --quiet && MODEL_GARDEN_BINARY="$(TARGET)/debug/model-garden" $$python -m unittest discover -s python/tests

check: setup setup-browser ## what CI runs: format, lints, tests, documentation
	$(CARGO) fmt --all --check
	$(CARGO) clippy --workspace --all-targets --locked -- -D warnings
	$(CARGO) test --workspace --locked
	@$(MAKE) --no-print-directory python
	RUSTDOCFLAGS="-D warnings" $(CARGO) doc --workspace --no-deps --locked --quiet

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

bench: setup ## measure reading and judging of small and large traces
	$(CARGO) bench --locked -p model-garden

wheel: setup ## build the Python wheel with the binary in it: target/wheels
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 9))' || { echo "error: Python 3.9 or newer is needed"; echo "hint: make wheel PYTHON=python3.12"; exit 2; }
	test -x $(TARGET)/wheel-venv/bin/maturin || { $(PYTHON) -m venv $(TARGET)/wheel-venv && $(TARGET)/wheel-venv/bin/pip install --quiet 'maturin>=1.7,<2'; }
	cd python && $(TARGET)/wheel-venv/bin/maturin build --release --locked --out $(TARGET)/wheels

fmt: ## format the code
	$(CARGO) fmt --all
