# make tune      measure this machine's GPU (or replay the shipped recording), fit, write heuristics.py
# make quick     format, lint, types and the fast tests, about 2 minutes on two cores: for the inner loop
# make test      every kind of check that needs no GPU, at most 5 minutes on two cores, the first time too
# make test-all  these, the slow ones, those of benchmarks and documents, those of `make oldest` and, where there is a
#                GPU, those that need one
# make oldest    the tests with the oldest Python and packages that pyproject.toml admits
# make bench     this GPU: normtune beside its peers, kernels and host, and the tables of others; resumes
# make bench-strategies HUB=FOLDER   searches, and those of others, on recorded times, T4 files of benchmark_hub and
#                made-up operators; no GPU, an hour; resumes
# make docs      the documents and the reference of Python and of all options as a site, in .cache/site
# make format    rewrite the sources as `make test` wants them
# make clean     remove what these targets made, measurements excepted
#
# PYTHON is the interpreter that the environment VENV is made from. A torch that it has already is used as it is.

PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
# Each worker imports and collects everything, 20 seconds of CPU, and tests hardly wait.
JOBS ?= 2

# Without it `python -m` would find kernels/, results/ and cli.py as top-level modules.
export PYTHONSAFEPATH := 1
# The tests start Python 200 times: compiled modules are kept whatever the environment says.
unexport PYTHONDONTWRITEBYTECODE

# These take 10 seconds to some minutes to fit again, longer than the others together: `make test` leaves that out.
LONG := portable portable_rms_norm_gated nvidia_h100_80gb_hbm3 nvidia_h200 nvidia_h200_qk_norm nvidia_h200_rms_norm_gated nvidia_h200_rms_norm_quantize_fp8 nvidia_h200_rms_norm_quantize_fp8_tensor
LONG_FITS := $(LONG:%=heuristics/tables/%.py)
TABLES := $(filter-out $(LONG_FITS),$(wildcard heuristics/tables/[a-z]*.py))

DEVICE ?= $(shell nvidia-smi -L >/dev/null 2>&1 && echo cuda:0 || echo replay:nvidia-h200)
STORE ?= sqlite:///normtune-$(subst :,-,$(DEVICE)).db
REPLAYS := no GPU is measured, this replays the recording of $(DEVICE:replay:%=%)
MEASURES := this measures the GPU $(DEVICE)

# The oldest Python, and the environment of the oldest packages.
OLDEST_PYTHON ?= python3.11
OLDEST := $(VENV)/oldest

.PHONY: tune quick test test-all oldest docs bench bench-strategies format clean

tune:
	@echo "make tune: $(if $(filter replay:%,$(DEVICE)),$(REPLAYS),$(MEASURES))"
	@$(MAKE) --silent $(VENV)/.ready
	$(BIN)/normtune sweep --device $(DEVICE) --store $(STORE)
	$(BIN)/normtune fit --store $(STORE) --out heuristics.py

# Workers of pytest with two threads each take a fifth longer than with one.
test test-all: export OMP_NUM_THREADS := 1
test: QUICK := and not slow
test-all: RANDOM := --hypothesis-profile random -rs
test-all: $(VENV)/.exact $(VENV)/.browser $(VENV)/.ray
test test-all: $(VENV)/.ready
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/normtune check $(TABLES)
	$(BIN)/normtune check $(if $(QUICK),--quick) $(LONG_FITS)
	TRITON_INTERPRET=1 $(BIN)/pytest -q -n $(JOBS) $(RANDOM) -m "interpreter $(QUICK)" $$(grep -rl --include='*.py' mark.interpreter tests)
	$(BIN)/pytest -q -n $(JOBS) --dist worksteal $(RANDOM) -m "not gpu and not interpreter $(QUICK)"
	$(if $(filter test-all,$@),$(if $(filter cuda:%,$(DEVICE)),$(BIN)/pytest -q -m gpu))
	$(if $(filter test-all,$@),$(MAKE) docs oldest)

# What judges the sources or runs the tests stays as in constraints.txt; types are not checked again.
oldest: export OMP_NUM_THREADS := 1
oldest: $(OLDEST)/.ready
	TRITON_INTERPRET=1 $(OLDEST)/bin/pytest -q -n $(JOBS) -m "interpreter and not slow" $$(grep -rl --include='*.py' mark.interpreter tests)
	$(OLDEST)/bin/pytest -q -n $(JOBS) --dist worksteal -m "not gpu and not interpreter and not slow" --ignore tests/packaging/test_types.py

# A broken link, and a public name that cannot be read, is an error.
docs: $(VENV)/.docs
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

quick: export OMP_NUM_THREADS := 1
quick: $(VENV)/.ready
	$(BIN)/ruff format --check -q .
	$(BIN)/ruff check -q .
	$(BIN)/pytest -q -n 2 --dist worksteal -m "not gpu and not interpreter and not slow and not long"

bench:
	@$(if $(filter cuda:%,$(DEVICE)),,echo "make bench: no GPU to measure here; benchmarks/results/ holds an H200's" >&2; exit 1)
	@$(MAKE) --silent $(VENV)/.ready
	$(BIN)/python benchmarks/peers.py
	$(BIN)/python benchmarks/relatives.py
	$(BIN)/python benchmarks/host.py
	$(BIN)/python benchmarks/liger_table.py
	$(BIN)/python benchmarks/tilegym_table.py

format: $(VENV)/.ready
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

bench-strategies: export OMP_NUM_THREADS := 1
bench-strategies:
	@test -d "$(HUB)" || { echo "make bench-strategies: HUB is '$(HUB)', expected a folder with T4 files of benchmark_hub" >&2; exit 1; }
	@$(MAKE) --silent $(VENV)/.strategies
	$(BIN)/python benchmarks/racing.py
	$(BIN)/python benchmarks/strategies.py $(HUB)
	$(BIN)/python benchmarks/landscapes.py
	$(BIN)/python benchmarks/plane.py
	$(BIN)/python benchmarks/table_after.py
	$(BIN)/python benchmarks/portfolio.py $(HUB)
	$(BIN)/python benchmarks/large_spaces.py

clean:
	rm -rf $(VENV) .cache .hypothesis .mypy_cache .pytest_cache .ruff_cache build dist *.egg-info
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# The environment sees the packages beside a torch that $(PYTHON) has, after its own; nothing there is changed. Modules
# are compiled when they are first imported: of ten thousand few ever are.
$(VENV)/.ready: pyproject.toml setup.py constraints.txt
	@echo "installing what normtune needs into $(VENV), a minute or so"
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@cp constraints.txt $(VENV)/constraints.txt
	@torch=$$($(PYTHON) -c 'import importlib.util as u; t = u.find_spec("torch"); print(t.origin if t and t.origin else "")'); \
	if [ -n "$$torch" ]; then \
		site=$$(dirname "$$(dirname "$$torch")"); \
		echo "using the torch in $$site"; \
		echo "$$site" > "$$($(BIN)/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/torch-outside.pth"; \
		{ grep -vE '^(torch|triton)==' constraints.txt; $(BIN)/python -m pip list --format=freeze | grep -E '^(torch|triton)=='; } > $(VENV)/constraints.txt; \
	fi
	$(BIN)/python -m pip install -q --no-compile -c $(VENV)/constraints.txt -e '.[dev]'
	@touch $@

# Of each requirement the least version, with its corrections: `numpy>=2.0` becomes `numpy==2.0.*`.
$(OLDEST)/.ready: $(VENV)/.ready
	@echo "installing the oldest packages into $(OLDEST), some gigabytes"
	@test -x $(OLDEST)/bin/python || $(OLDEST_PYTHON) -m venv $(OLDEST)
	@sed -n '/^dependencies/,/^]/s/^ *"\([a-z-]*\)>=\([0-9.]*\).*/\1==\2.*/p' pyproject.toml > $(OLDEST)/constraints.txt
	@grep -E '^(black|build|expecttest|hypothesis|mypy|pytest|pytest-xdist|ruff)==' constraints.txt >> $(OLDEST)/constraints.txt
	$(OLDEST)/bin/python -m pip install -q --no-compile -c $(OLDEST)/constraints.txt -e '.[dev]'
	@touch $@

$(VENV)/.docs: $(VENV)/.ready
	@$(BIN)/python -m pip install -q -c $(VENV)/constraints.txt -e '.[docs]'
	@touch $@

$(VENV)/.strategies: $(VENV)/.ready
	@$(BIN)/python -m pip install -q -c $(VENV)/constraints.txt -e '.[strategies]'
	@touch $@

# Half a minute for one test of the exact program, which is skipped without it.
$(VENV)/.exact: $(VENV)/.ready
	@$(BIN)/python -m pip install -q --only-binary :all: -c $(VENV)/constraints.txt -e '.[exact]' \
		|| echo "no wheel of pystreed for this Python: the exact program is tested without it"
	@touch $@

# Drives the browser of the system, which a test of the page skips aloud without: `apt-get install chromium`.
$(VENV)/.browser: $(VENV)/.ready
	@$(BIN)/python -m pip install -q -c $(VENV)/constraints.txt -e '.[browser]' \
		|| echo "no Playwright for this Python: the page is not tested in a browser"
	@touch $@

# A cluster of several nodes of this machine, for the tests of `--ray`.
$(VENV)/.ray: $(VENV)/.ready
	@$(BIN)/python -m pip install -q -c $(VENV)/constraints.txt -e '.[ray]' \
		|| echo "no wheel of Ray for this Python: sweeps on a cluster are not tested"
	@touch $@
