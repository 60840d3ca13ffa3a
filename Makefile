# `make demo` and `make test` do everything on a fresh machine, each with its own set-up.
PYTHON ?= python3
TRITON ?= 3.9.0
# The other supported releases of Triton, asked in child processes.
OTHER_TRITONS ?= 3.8.0 3.7.1
VENV := .venv
BIN := $(VENV)/bin
PIP_INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check
TREE := build/tree

.PHONY: demo test setup lint tree types layers installed pytest oracle foreign docs plots benchmark gpu-test \
	first-light gpu-benchmark wheel hub-kernel lock clean
.DELETE_ON_ERROR:

demo: $(VENV)/.product
	@$(BIN)/triton-ext demo

test: $(VENV)/.ready
	@$(MAKE) --no-print-directory --jobs=3 --output-sync lint types layers setup installed
	$(PYTEST) $(PYTEST_ARGS)

setup: $(VENV)/.ready $(OTHER_TRITONS:%=.tritons/%/.ready)

# What the project needs, and what working on it needs besides. torch comes first: some builds of it
# insist on another Triton, which the next line then replaces. With LOCKED=1, as in CI, all but torch
# comes from files with known hashes.
LOCKED ?=
LOCKS := .github/locks
TOOLS := setuptools build ruff mypy import-linter check-jsonschema
$(VENV)/.product: constraints.txt pyproject.toml setup.py
	$(PYTHON) -m venv $(VENV)
	$(PIP_INSTALL) --constraint constraints.txt torch
ifdef LOCKED
	$(PIP_INSTALL) --require-hashes --requirement $(LOCKS)/test.txt
	$(PIP_INSTALL) --no-deps --no-build-isolation --editable .
else
	$(PIP_INSTALL) --constraint constraints.txt triton==$(TRITON) --editable .
endif
	touch $@

$(VENV)/.ready: $(VENV)/.product
ifndef LOCKED
	$(PIP_INSTALL) --constraint constraints.txt $(TOOLS) --editable '.[test]'
endif
	touch $@

.tritons/%/.ready: | $(VENV)/.ready
	$(PIP_INSTALL) --no-deps --upgrade --target $(@D) \
		$(if $(LOCKED),--require-hashes --requirement $(LOCKS)/triton-$*.txt,triton==$*)
	touch $@

# The files of LOCKED, for this machine's Python.
REPORT := $(PIP_INSTALL) --dry-run --ignore-installed --report -
lock: $(VENV)/.ready
	$(REPORT) --constraint constraints.txt torch triton==$(TRITON) $(TOOLS) '.[test]' \
		| $(BIN)/python $(LOCKS)/lock.py > $(LOCKS)/test.txt
	for release in $(OTHER_TRITONS); do $(REPORT) --no-deps triton==$$release \
		| $(BIN)/python $(LOCKS)/lock.py > $(LOCKS)/triton-$$release.txt; done

lint: $(VENV)/.ready
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/check-jsonschema --builtin-schema vendor.github-workflows .github/workflows/*.yml
	$(BIN)/check-jsonschema --builtin-schema vendor.github-actions .github/actions/*/action.yml
	$(BIN)/check-jsonschema --check-metaschema triton_ext/layouts/layout_dump.schema.json \
		passes/layout_report.schema.json

# The type checker and the import linter know no package-dir, so they are shown the packages as they
# are installed.
tree:
	@rm -rf $(TREE) && mkdir -p $(TREE)/triton_ext
	@ln -s $(CURDIR)/triton_ext/* $(CURDIR)/passes $(CURDIR)/kernels $(TREE)/triton_ext/
	@ln -s $(CURDIR)/benchmarks $(CURDIR)/triton_layouts.py $(TREE)/

types: $(VENV)/.ready tree
	cd $(TREE) && $(CURDIR)/$(BIN)/mypy --config-file $(CURDIR)/pyproject.toml \
		--cache-dir $(CURDIR)/build/mypy -p triton_ext -p benchmarks -m triton_layouts

# Who may import whom: the contracts are in pyproject.toml.
layers: $(VENV)/.ready tree
	cd $(TREE) && PYTHONPATH=. $(CURDIR)/$(BIN)/lint-imports --config $(CURDIR)/pyproject.toml

# The tests run against what is shipped: the wheel, in an environment that sees the packages of .venv,
# but not the checkout; they and what they read are linked into a folder without the sources. (A .pth
# file adds to the path what it names; the editable install's own .pth file does nothing there.)
# build/bare has the wheel without Triton and torch. WHEEL is the one to test, if it is built already.
WHEEL ?=
INSTALLED := build/installed
BARE := build/bare
SUITE := build/suite
# What Triton and Inductor keep of what they compiled: the run's own, so that no earlier one decides a
# test's result.
CACHE := build/kernels
OWN := TRITON_CACHE_DIR=$(CURDIR)/$(CACHE)/triton TORCHINDUCTOR_CACHE_DIR=$(CURDIR)/$(CACHE)/inductor
SITE := import sysconfig; print(sysconfig.get_path("purelib"))
installed: $(VENV)/.ready $(if $(WHEEL),,wheel)
	@$(BIN)/python -m venv --clear --without-pip $(INSTALLED)
	@$(BIN)/python -c '$(SITE)' > $$($(INSTALLED)/bin/python -c '$(SITE)')/venv.pth
	$(BIN)/python -m pip --python $(INSTALLED) install --quiet --no-deps $(or $(WHEEL),dist/*.whl)
	@$(BIN)/python -m venv --clear --without-pip $(BARE)
	$(BIN)/python -m pip --python $(BARE) install --quiet --constraint constraints.txt \
		$(or $(WHEEL),dist/*.whl)
	@rm -rf $(CACHE) $(SUITE) && mkdir -p $(SUITE)
	@ln -s $(addprefix $(CURDIR)/,$(filter-out triton_ext triton_layouts.py passes kernels build dist \
		.git .venv,$(notdir $(wildcard $(CURDIR)/* $(CURDIR)/.[a-z]*)))) $(SUITE)/

# The tests start hundreds of processes, each of which would compile all of the packages' sources.
unexport PYTHONDONTWRITEBYTECODE
RUN := cd $(SUITE) && $(OWN) $(CURDIR)/$(INSTALLED)/bin/python
PYTEST := $(RUN) -m pytest -n auto --dist worksteal
pytest: setup installed
	$(PYTEST) $(PYTEST_ARGS)

# The comparisons with NVIDIA's CuTe DSL, and the kernels of other packages on the emulated GPUs,
# which `make test` skips; the passes on every kernel of their corpus, and on faults in them that are
# made from a new seed; Triton's own tests on the emulated GPUs, where its repository can be had (or
# by UPSTREAM_ARGS="--triton FOLDER"; the Gluon ones are those of Triton 3.8).
oracle: setup installed
	$(PIP_INSTALL) --constraint constraints.txt --editable '.[oracle]'
	$(PYTEST) tests/layouts/test_atoms.py tests/layouts/test_cute.py \
		tests/hardware/test_cute_descriptors.py tests/hardware/test_tensor_map.py \
		tests/docs/test_seeds.py tests/emulator/test_cute.py tests/emulator/test_third_party.py \
		tests/test_hub.py tests/docs/test_examples.py \
		$(PYTEST_ARGS)
	export CORPUS_TIER=3 TRITON_EXT_FUZZ=5; $(PYTEST) tests/passes tests/kernels tests/hardware \
		tests/layouts tests/ptx tests/mlir tests/test_integers.py tests/emulator/test_kernels.py \
		tests/emulator/test_matrix.py \
		tests/docs/test_layouts_page.py tests/docs/test_upstream.py $(PYTEST_ARGS)
	export CORPUS_TIER=3; $(PYTEST) tests/ops tests/distributed $(PYTEST_ARGS)
	export FUZZ=2000; $(RUN) -m pytest tests/emulator/test_limits.py -k only_typed_errors $(PYTEST_ARGS)
	$(RUN) tests/support/ptx_faults.py --kernels 40 --seed $$(date +%s)
	$(RUN) tests/support/sync_faults.py --each 2
	for path in . $(OTHER_TRITONS:%=.tritons/%); do \
		(export PYTHONPATH=$$path; $(RUN) tests/support/view_chains.py --seed $$(date +%s) \
			--count 500) || exit 1; done
	$(RUN) tests/support/upstream_suites.py --suite tl $(UPSTREAM_ARGS)
	$(RUN) tests/support/upstream_suites.py --suite kernels --sample 60 $(UPSTREAM_ARGS)
	$(RUN) tests/support/upstream_suites.py --suite consan --sample 0 $(UPSTREAM_ARGS)
	$(RUN) tests/support/cute_examples.py
	$(RUN) tests/support/upstream_suites.py --suite gluon --path .tritons/3.8.0 $(UPSTREAM_ARGS)

# The kernels of other projects, as their packages have them, on the emulated GPUs, with the passes on,
# and CUDA C++ of other projects, which git fetches, and JAX's; `make test` skips them. It writes
# docs/reference/foreign.md. Stopped, or after FOREIGN_ARGS="--minutes 10" for each of the three parts, it
# goes on the next time; what our sources have not changed since is not run again (--again).
# FOREIGN_ARGS="--projects vllm" for some. FOREIGN_PYTHON is a Python 3.12 for JAX.
foreign: setup
	@status=0; for part in foreign foreign_cuda foreign_jax; do \
		$(BIN)/python tests/support/$$part.py --write $(FOREIGN_ARGS) || status=1; done; exit $$status

# The site in build/site, with search: guide, reference, commands and API. A link within it that leads
# nowhere is an error. Before it, what is generated of docs/ (tests compare it with what is
# committed).
docs: $(VENV)/.ready
	$(PIP_INSTALL) --constraint constraints.txt --editable '.[docs]'
	$(BIN)/python docs/generate.py
	$(BIN)/python -m sphinx --fail-on-warning --keep-going --quiet docs build/site

# The plots of benchmarks/results; a test compares the numbers in them with what is committed.
plots: $(VENV)/.ready
	$(PIP_INSTALL) --constraint constraints.txt matplotlib
	$(BIN)/python -m benchmarks.plots

benchmark: $(VENV)/.ready
	$(BIN)/python -m benchmarks.conversion --json build/benchmarks/conversion.json
	$(BIN)/python -m benchmarks.emulator --json build/benchmarks/emulator.json

# On a machine with a GPU: ARCH=90 (Hopper) or 100 (Blackwell).
gpu-test: $(VENV)/.ready
	$(BIN)/python -c "import torch; found = torch.cuda.get_device_capability(); \
		assert found[0] * 10 == $(ARCH), f'this GPU is sm_{found[0]}{found[1]}, not sm_$(ARCH)'"
	$(BIN)/pytest -m sm$(ARCH) $(PYTEST_ARGS)

# What is claimed of a GPU, tried on it: resumable, a verdict at the end.
first-light: $(VENV)/.ready
	@mkdir -p build
	$(BIN)/python -m benchmarks.first_light --json build/first-light.json $(FIRST_LIGHT_ARGS)

gpu-benchmark: $(VENV)/.ready
	$(BIN)/python -m benchmarks.conversion --json build/benchmarks/conversion.json
	$(BIN)/python -m benchmarks.matmul --json build/benchmarks/matmul.json

# What `pip install dist/*.whl` installs; .github/workflows/release.yml builds the same.
# The source distribution comes first, and the wheel is built from it. What setuptools says (a line a
# file) is shown where it fails.
wheel: $(VENV)/.ready
	@rm -rf dist/*.whl dist/*.tar.gz && mkdir -p build
	$(BIN)/python -m build --no-isolation --outdir dist > build/wheel.log 2>&1 \
		|| { cat build/wheel.log; exit 1; }

# The kernels alone, as a package of the kernel hub: what `kernels.get_local_kernel` loads.
hub-kernel: $(VENV)/.ready
	$(BIN)/python hub/build.py dist/hub-kernel

clean:
	rm -rf $(VENV) .tritons build dist *.egg-info
