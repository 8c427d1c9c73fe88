# Two commands do all the set-up on a fresh machine: `make demo` and `make test`.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
MODELS_STAMP := $(VENV)/.installed-models
WORKERS ?= 2
export OMP_NUM_THREADS ?= 1

.PHONY: venv models-venv stacks demo test test-quick test-versions test-thorough test-indices test-cuda lint format graphs records gallery exactness bench fuzz fuzz-proofs planted fuzz-wrap docs notebooks site site-check site-pictures clean

venv: $(STAMP)

# torch first and alone: an unpinned torch, or another tool, pulls several GB of CUDA packages.
$(STAMP): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet --constraint constraints.txt torch
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[dev]'
	$(BIN)/python -m pip install --quiet --no-deps --editable tests/plugin
	touch $(STAMP)

models-venv: $(MODELS_STAMP)

# torchvision alone: its wheels are built against CUDA, and its dependencies are there already.
$(MODELS_STAMP): $(STAMP)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --no-deps torchvision
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[models]'
	touch $(MODELS_STAMP)

demo: venv
	$(BIN)/remat demo

test: venv
	$(BIN)/python -m pytest -n $(WORKERS) --dist loadfile

# Without pins on the quality of plans and without what takes long: for work in progress.
test-quick: venv
	$(BIN)/python -m pytest -n $(WORKERS) --dist loadfile -m "not slow and not quality"

# Other versions of Python and torch, one environment each; prints what was tested and what is not to be had here.
# TORCH_INDEX=https://download.pytorch.org/whl/cpu has wheels without CUDA for all of them.
TORCH_INDEX ?=
test-versions:
	$(PYTHON) -m tests.versions --index "$(TORCH_INDEX)" --workers $(WORKERS) $(FLAGS)

test-thorough: venv
	HYPOTHESIS_PROFILE=thorough $(BIN)/python -m pytest -n $(WORKERS) --dist loadfile property_tests

# The solvers with every index of their kernels checked: outside an array they would read and write what is not theirs.
test-indices: venv
	NUMBA_BOUNDSCHECK=1 NUMBA_CACHE_DIR=$(CURDIR)/build/checked-kernels $(BIN)/python -m pytest -n $(WORKERS) --dist loadfile tests/algorithms property_tests/test_planner_laws.py property_tests/test_solver_laws.py

# On a CUDA device: the trials, those of copies once more under torch's sanitizer of streams, then a table of peaks and times.
test-cuda: venv
	$(BIN)/python -m pytest tests/cuda
	TORCH_CUDA_SANITIZER=1 $(BIN)/python -m pytest tests/cuda/test_copies_on_cuda.py -k "not five_hundred"
	$(BIN)/python -m tests.cuda

lint: venv
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: venv
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# make bench-NAME for each tests/benchmarks/bench_NAME.py: a table, JSON in build/bench, exit 1 on a missed bar.
bench-%: venv
	@mkdir -p build/bench
	$(BIN)/python -m tests.benchmarks.bench_$* $(FLAGS)

# Every model of tests/models, one process each; goes on where it stopped (FLAGS="--fresh": from the start; --only NAME: one).
bench-models: models-venv

# Other ways to make a step smaller beside ours, on nine models; one process a model.
bench-peers: models-venv

# Estimates against steps that run, on 22 models; goes on where it stopped.
bench-estimates: models-venv

# Training stacks, bare and within a budget: a table, exit 1 where a row is not planned once, exact and within the budget.
INTEGRATIONS_STAMP := $(VENV)/.installed-integrations
stacks: $(INTEGRATIONS_STAMP)
	$(BIN)/python -m tests.stacks $(FLAGS)

$(INTEGRATIONS_STAMP): $(MODELS_STAMP)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[integrations]'
	touch $(INTEGRATIONS_STAMP)

# 20,000 random legal graphs, every solver judged by a second oracle; at most 2 h on two cores; goes on where it was stopped.
GRAPHS ?= 0:20000
fuzz: venv
	@mkdir -p build/bench
	$(BIN)/python -m tests.soundness --seeds $(GRAPHS) --processes $(WORKERS)

# Proofs of 2,000 random legal graphs, pushed as far as trees go, against an exhaustive search; a few minutes.
PROOFS ?= 0:2000
fuzz-proofs: venv
	$(BIN)/python -m tests.proof --seeds $(PROOFS)

# Every planted bug in the default run of its check: killed by which law, in how many seconds.
planted: venv
	$(BIN)/python -m tests.testing.planted $(BUGS)

# 500 random modules, wrapped and judged; goes on where it was stopped. SEEDS=500:600 asks for others.
SEEDS ?= 0:500
fuzz-wrap: venv
	@mkdir -p build/bench
	$(BIN)/python -m tests.fuzz --seeds $(SEEDS)

# Writes docs/benchmarks/exactness.md: gradients bit for bit, predicted against measured peaks.
exactness: venv
	$(BIN)/python -m tests.benchmarks.exactness_table

# Captures the large models of the zoo without their weights, for make bench-plan.
graphs: venv
	$(BIN)/python -m tests.benchmarks.capture_graphs

# Plans the wide zoo's graphs and enters what is better into the library of instances; goes on where it was stopped.
# FLAGS="--again --within 60 --leaves 1000" looks for better plans and proofs.
records: graphs
	$(BIN)/python -m tests.benchmarks.fill_records $(FLAGS)
	$(BIN)/remat records verify

# Two more of the same form: bench-dtr_online (steps under DTR while they run), bench-dtr_figures (figures 2, 3 and 12 of its paper).
bench: bench-ir bench-plan bench-exec bench-chains bench-ilp

docs: venv
	$(BIN)/python -m pytest tests/test_docs.py

# Runs the notebooks of docs/notebooks anew and stores them with their outputs, which the site shows.
notebooks: venv
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[notebooks]'
	$(BIN)/python -m tests.site.notebooks

# The documentation site, strict, in build/site; in an environment of its own, which needs neither torch nor a browser.
SITE_VENV := build/site-venv
SITE_STAMP := $(SITE_VENV)/.installed
site: $(SITE_STAMP)
	NO_MKDOCS_2_WARNING=1 $(SITE_VENV)/bin/python -m mkdocs build --quiet

$(SITE_STAMP): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(SITE_VENV)
	$(SITE_VENV)/bin/python -m pip install --quiet --constraint constraints.txt '.[site]'
	touch $(SITE_STAMP)

# Looks at the site and at the page of `remat show --html` in Debian's chromium (its absence is an error): links, alternative texts,
# contrast, width, search without a server; screenshots in build/site-check.
site-check: site venv
	$(BIN)/python -m tests.site

# Draws the pictures of docs/how-to/look-at-a-plan.md, and writes docs/reference/solvers.md, again.
site-pictures: venv
	$(BIN)/python -m tests.site.pictures
	$(BIN)/python -m tests.site.solvers

# Draws the curves of docs/gallery and writes its pages, from the library of instances; goes on where it was stopped.
gallery: venv
	$(BIN)/python -m tests.site.gallery $(FLAGS)

clean:
	rm -rf build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
