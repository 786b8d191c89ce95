# The steps of CI by name. `make` or `make help` lists them.
SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.NOTPARALLEL:
.DELETE_ON_ERROR:

PYTHON ?= python3
VENV ?= .venv
VERSIONS ?= pinned
PORT ?= 8000
OUT ?= benchmarks/recorded
PAGES = tests/test_pages.py tests/test_solutions.py
LSTMS = lstm layer_norm_lstm handwriting reading fast_normalization
DATA ?= mnist fashion-mnist japanese-vowels omniglot-strokes babi
PDF_PACKAGES = latexmk texlive-latex-recommended texlive-latex-extra texlive-fonts-recommended texlive-xetex tex-gyre fonts-freefont-otf lmodern librsvg2-bin
export PYTHON VENV VERSIONS
BIN := $(VENV)/bin
ELSEWHERE = KERAS_BACKEND=jax TF_USE_LEGACY_KERAS=1 PYTHONPATH=src $(VENV)-elsewhere/bin/python
WILD = $(VENV)-wild/bin/python
TRITON = PYTHONPATH=src:tests/layers $(VENV)-triton/bin/python

.PHONY: help setup book test quick lint types check pages test-site cpus sabotage pretend mutants reliability data elsewhere in-the-wild fold-in-the-wild other-hand triton bare builds locked lock audit sbom dist pdf pdf-packages colab lab execute bench serve format coverage clean

help: ## list these steps
	@echo 'usage: make STEP, where STEP is one of'
	@sed -nE 's/^([a-z-]+):.*## (.*)/  \1\t\2/p' Makefile | expand -t 12
	@echo 'settings: PYTHON=python3.12  VENV=.venv  VERSIONS=pinned|newest|oldest  PORT=8000'

setup: ## make the environment .venv and install everything (the other steps do it too)
	@tools/setup.sh

book: setup ## build the site from nothing into _build/html and print where it is
	@tools/book.sh $(BIN)/python
	@$(BIN)/python -c 'import pathlib; print("The site:", pathlib.Path("_build/html/index.html").resolve().as_uri())'

# Side by side, so that no core waits for another step. Looked at are types, then pages,
# then the other tests; one that is red ends those behind it.
test: lint ## everything that CI checks
	@trap 'kill $$(jobs -p) 2>/dev/null || true' EXIT; \
	$(MAKE) --no-print-directory types & types=$$!; \
	$(MAKE) --no-print-directory pages & pages=$$!; \
	$(MAKE) --no-print-directory check TESTS='$(PAGES:%=--ignore=%)' & check=$$!; \
	wait $$types; wait $$pages; wait $$check

quick: setup ## what changed since main, within a minute: lint, types, nearest tests
	$(BIN)/python tools/quick.py

lint: setup ## style of code and notebooks
	$(BIN)/python -m ruff check .
	$(BIN)/python -m ruff format --check .

types: setup ## types
	$(BIN)/python -m mypy

# For two cores: the third computes while tests of the others wait.
check: setup ## unit tests, doctests, built pages, and every stored output recomputed
	$(BIN)/python -m pytest -q --nbval -n 3 --dist loadfile $(TESTS)

pages: book ## build the site and check its pages
	$(BIN)/python -m pytest -q $(PAGES)
	@tools/test_site.sh

test-site: book ## build the site and try every page in a browser (Chromium, and node with npm)
	@SITE_PAGES=all tools/test_site.sh

cpus: setup ## recompute stored outputs as other CPUs would; NOTEBOOK=book/x.ipynb, CPU=sse4 for one
	tools/cpus.sh $(BIN)/python $(if $(NOTEBOOK),"$(NOTEBOOK)",book)

sabotage: setup ## draw every figure wrongly: is it noticed? NOTEBOOK=book/x.ipynb for one
	$(BIN)/python tools/sabotage.py $(if $(NOTEBOOK),"$(NOTEBOOK)")

mutants: setup ## change the package in one place at a time: do its tests notice? MODULES=figures for one
	$(BIN)/python tools/mutants.py $(MODULES)

reliability: setup ## what shows each goal of reliability, and what it finds; 10 minutes, ALL=1: hours; GOAL=D3 for one
	$(BIN)/python tools/reliability.py $(if $(ALL),--all) $(GOAL)

pretend: setup ## notebooks and layers on a pretend GPU: is everything moved there? NOTEBOOK=book/x.ipynb for one
	tools/pretend.sh $(BIN)/python $(if $(NOTEBOOK),"$(NOTEBOOK)",book tests/pretend)

# The one server of CIFAR-10 can take an hour: DATA=all waits for it.
data: setup ## download data sets (51 MB; DATA=all: 230 MB) and run the tests that are skipped without
	for name in $(DATA); do $(BIN)/python -m normbook data fetch $$name; done
	NORMBOOK_REPLAY=all $(BIN)/python -m pytest -q -rs -n 2 --dist loadfile tests/data tests/experiments/test_records.py

# A framework that cannot be imported is an error; the tests alone would be skipped.
elsewhere: ## compare the converters with Keras, TensorFlow, Flax, ONNX and language models, in an environment of their own
	$(PYTHON) -m venv $(VENV)-elsewhere
	$(VENV)-elsewhere/bin/python -m pip --disable-pip-version-check install -q -r tests/elsewhere.txt
	$(ELSEWHERE) -c 'import flax.linen, flax.nnx, jax, keras, onnx.reference, onnxruntime, tensorflow, tf_keras, torch, transformers'
	$(ELSEWHERE) -m pytest -q -rs --noconftest -c /dev/null -p no:cacheprovider tests/test_conventions_elsewhere.py

in-the-wild: ## check the norm layers of 18 public libraries, in an environment of their own (OUT=folder for the record)
	$(PYTHON) -m venv $(VENV)-wild
	$(WILD) -m pip --disable-pip-version-check install -q -r benchmarks/in_the_wild/requirements.txt
	$(WILD) -m pip --disable-pip-version-check install -q --no-deps -r benchmarks/in_the_wild/alone.txt
	PYTHONPATH=src $(WILD) benchmarks/in_the_wild/run.py --out $(OUT)/in_the_wild.json
	PYTHONPATH=src $(WILD) benchmarks/in_the_wild/run.py --table unseen.txt --out $(OUT)/in_the_wild_unseen.json
	PYTHONPATH=src $(WILD) benchmarks/in_the_wild/run.py --table second_unseen.txt --out $(OUT)/in_the_wild_second_unseen.json
	PYTHONPATH=src $(WILD) benchmarks/in_the_wild/run.py --table third_unseen.txt --out $(OUT)/in_the_wild_third_unseen.json
	PYTHONPATH=src $(WILD) benchmarks/in_the_wild/run.py --table fourth_unseen.txt --out $(OUT)/in_the_wild_fourth_unseen.json
	PYTHONPATH=src $(WILD) benchmarks/in_the_wild/run.py --table fifth_unseen.txt --out $(OUT)/in_the_wild_fifth_unseen.json
	PYTHONPATH=src $(WILD) benchmarks/in_the_wild/run.py --table sixth_unseen.txt --out $(OUT)/in_the_wild_sixth_unseen.json

other-hand: setup ## check layers and models of other hands with a slip each (OUT=folder for the record)
	$(BIN)/python benchmarks/other_hand/run.py --out $(OUT)/other_hand.json
	$(BIN)/python benchmarks/other_hand/run.py --table second.txt --out $(OUT)/other_hand_second.json
	$(BIN)/python benchmarks/other_hand/run.py --table third.txt --out $(OUT)/other_hand_third.json
	$(BIN)/python benchmarks/second_hand/demonstrations.py
	for hand in second third fourth fifth sixth seventh eighth ninth tenth eleventh twelfth thirteenth; do \
	  $(BIN)/python benchmarks/hands.py $${hand}_hand || exit 1; done

fold-in-the-wild: ## fold the models of public libraries and compare outputs, in an environment of their own; hours (OUT=folder for the record)
	$(PYTHON) -m venv $(VENV)-fold
	$(VENV)-fold/bin/python -m pip --disable-pip-version-check install -q -r benchmarks/in_the_wild/fold_requirements.txt
	$(VENV)-fold/bin/python -m pip --disable-pip-version-check install -q --no-deps -r benchmarks/in_the_wild/fold_alone.txt
	OMP_NUM_THREADS=1 $(VENV)-fold/bin/python benchmarks/in_the_wild/fold.py --rows $(OUT)/fold_rows.txt --out $(OUT)/in_the_wild_folding.json

# Interpreted, then compiled: a kernel is one or the other from its import on.
triton: ## test the kernels for a GPU without one: interpreted, and compiled; in an environment of its own
	$(PYTHON) -m venv $(VENV)-triton
	$(VENV)-triton/bin/python -m pip --disable-pip-version-check install -q -r tests/triton.txt
	$(TRITON) -c 'import torch, triton'
	TRITON_INTERPRET=1 $(TRITON) -m pytest -q -rs --noconftest -c /dev/null --rootdir=. -p no:cacheprovider tests/layers/test_triton_norms.py tests/layers/test_triton_lstm.py tests/layers/test_triton_benchmark.py
	$(TRITON) -m pytest -q -rs --noconftest -c /dev/null --rootdir=. -p no:cacheprovider tests/layers/test_triton_compiled.py
	TRITON_INTERPRET=1 $(TRITON) benchmarks/gpu.py --check-only

# A numba that can still be imported is an error.
bare: ## test the LSTM layers and their chapters without numba, in an environment of its own
	$(MAKE) --no-print-directory setup VENV=$(VENV)-bare
	$(VENV)-bare/bin/python -m pip --disable-pip-version-check uninstall -q -y numba llvmlite
	! $(VENV)-bare/bin/python -c 'import numba' 2>/dev/null
	$(VENV)-bare/bin/python -m pytest -q --nbval -n 3 --dist loadfile tests/layers tests/test_package.py tests/experiments/test_handwriting.py tests/experiments/test_reading.py src/normbook/layers $(LSTMS:%=book/%.ipynb)

builds: setup ## build twice, kill builds, fill the disk: is the site the same? KILLS=20
	$(BIN)/python tools/builds.py --kills $(or $(KILLS),20)

# Versions are those of constraints.txt; each file is known by its hash. torch is the one
# for CPUs: its index is told to pip as in README.md.
locked: ## install what requirements.lock lists, each file by its hash, and test with it
	$(PYTHON) -m venv --clear $(VENV)-locked
	$(VENV)-locked/bin/python -m pip --disable-pip-version-check install -q --only-binary :all: --require-hashes --no-deps -r requirements.lock
	$(VENV)-locked/bin/python -m pip --disable-pip-version-check install -q --no-deps --no-build-isolation -e .
	$(VENV)-locked/bin/python -m pip --disable-pip-version-check check
	$(VENV)-locked/bin/python -m pytest -q tests/test_formulas.py tests/layers/test_base.py

$(VENV)-supply: tools/supply.txt
	$(PYTHON) -m venv --clear $@
	$@/bin/python -m pip --disable-pip-version-check install -q -r tools/supply.txt

lock: $(VENV)-supply ## write requirements.lock anew, from constraints.txt
	{ grep -v '^-e' requirements.txt; grep -oE 'setuptools==[0-9.]+' pyproject.toml; } > _lock.in
	$(VENV)-supply/bin/uv pip compile _lock.in --python-version 3.11.7 --python-platform x86_64-manylinux_2_28 --generate-hashes --no-header --no-annotate -q -o requirements.lock $(addprefix -f ,$(FIND_LINKS))
	rm _lock.in

audit: $(VENV)-supply ## known faults of what is installed, and of the workflows
	$(VENV)-supply/bin/zizmor --offline --no-progress .github
	$(VENV)-supply/bin/pip-audit --strict --disable-pip --no-deps --progress-spinner off -r <(sed 's/+cpu//' requirements.lock)

sbom: $(VENV)-supply ## write what the locked environment is made of into _sbom/normbook.cdx.json
	mkdir -p _sbom
	$(VENV)-supply/bin/cyclonedx-py requirements requirements.lock --of JSON -o _sbom/normbook.cdx.json

dist: ## build wheel and source archive, check them, and try them in an empty environment
	@tools/dist.sh

pdf: setup ## typeset the book into _pdf/normbook.pdf (make pdf-packages first)
	@tools/pdf.sh $(BIN)/python

pdf-packages: ## install what make pdf needs, 94 MB (Debian and Ubuntu, with sudo)
	sudo apt-get install -y --no-install-recommends $(PDF_PACKAGES)

colab: setup ## write the notebooks for Colab, which fetch the book, into _build/colab (SEND=1: to the branch colab)
	$(BIN)/python tools/colab.py $(if $(SEND),--send)

lab: setup ## open the notebooks in JupyterLab (ARGS=--allow-root in a container)
	$(BIN)/python -m jupyter lab --notebook-dir=book $(ARGS)

execute: setup ## re-run notebooks and store their outputs; NOTEBOOK=book/x.ipynb for one
	$(BIN)/python tools/execute.py $(if $(NOTEBOOK),"$(NOTEBOOK)")

bench: setup ## time LSTMs and layers, on a machine that does nothing else (OUT=folder for the records)
	$(BIN)/python benchmarks/lstm.py --out $(OUT)/lstm.json
	$(BIN)/python benchmarks/lstm.py --threads 2 --sizes s1 s2 s3 s4 --out $(OUT)/lstm_2_threads.json
	$(BIN)/python benchmarks/first_call.py --out $(OUT)/first_call.json
	$(BIN)/python benchmarks/small_inputs.py --out $(OUT)/small_inputs.json
	$(BIN)/python benchmarks/norms.py --out $(OUT)/norms.json
	$(BIN)/python benchmarks/folding.py --out $(OUT)/folding.json

serve: ## show the built site on http://127.0.0.1:8000 (PORT=8000)
	@test -f _build/html/index.html || { echo 'serve: no site in _build/html; run make book first' >&2; exit 1; }
	$(PYTHON) -m http.server $(PORT) --bind 127.0.0.1 --directory _build/html

format: setup ## rewrite code and notebooks in the project's style
	$(BIN)/python -m ruff check --fix .
	$(BIN)/python -m ruff format .

coverage: setup ## lines and branches of the package that the tests reach
	$(BIN)/python -m pytest -q --cov=normbook --cov-branch --cov-report=term-missing tests src

clean: ## remove what was built (the environment stays)
	rm -rf _build _pdf _sbom .pytest_cache .mypy_cache .ruff_cache .hypothesis .coverage
	find src tests tools book -name __pycache__ -type d -prune -exec rm -rf {} +
