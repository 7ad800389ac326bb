PYTHON ?= python3
BIN := .venv/bin
INSTALLED := .venv/.installed
DEVELOPS := .venv/.develops
export RESERVOIR_CACHE ?= $(CURDIR)/demo

.PHONY: demo headline test slow gpu test-oldest docs faults bench results results-check reproductions lint clean

demo: $(INSTALLED)  ## the main job on embedded defaults: an untrained small GPT-2 on bit-xor, and the pretrained one on digits
	$(BIN)/reservoir extract bit-xor --init random --param held_out=True --layers embed,block03,final --pool last
	$(BIN)/reservoir fit bit-xor
	$(BIN)/reservoir extract digits
	$(BIN)/reservoir fit digits
	$(BIN)/reservoir report

headline: $(INSTALLED)  ## the README's first table from all training rows: DATA=DIR, SEEDS=3 WORKERS=1; a run that was stopped goes on
	$(BIN)/reservoir reproduce headline --scale full --seeds $(or $(SEEDS),1) --workers $(or $(WORKERS),2) $(if $(DATA),--data $(DATA))

test: $(DEVELOPS)  ## every test but the slow ones, two at a time
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist worksteal

slow: $(DEVELOPS)  ## the slow tests: every model type of transformers, further exports, the site and guides, pyright on calls
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -m slow

gpu: $(DEVELOPS)  ## the tests that need a GPU, in at most ten minutes; prints rows per second and memory
	$(BIN)/python benchmarks/gpu_evidence.py --out $(RESERVOIR_CACHE)/gpu-evidence --only ceilings,tests,fit --again

test-oldest:  ## the tests with the lowest versions that pyproject.toml allows; needs uv
	.ci/oldest

docs: $(DEVELOPS)  ## the site, in docs/build/html; needs no network, and fails on a broken link or reference
	OMP_NUM_THREADS=1 HF_HUB_OFFLINE=1 $(BIN)/python -m sphinx -b html -W --keep-going docs docs/build/html

faults: $(DEVELOPS)  ## the long campaign: kills, flipped bits, bad disks, fuzzed inputs, long work; hours on two busy cores
	$(BIN)/python -m tests.faults --out benchmarks/FAULTS.md

bench: $(DEVELOPS)  ## start-up, store, extract, readouts, workers and plan beside peers and floors, in some minutes
	$(BIN)/python benchmarks/commands.py startup --repeats 3
	$(BIN)/python benchmarks/store.py
	$(BIN)/python benchmarks/extract.py --tokens 64,256 --work 4096
	OMP_NUM_THREADS=1 $(BIN)/python benchmarks/extract.py --profile --tokens 64,512 --work 1024
	OMP_NUM_THREADS=1 $(BIN)/python benchmarks/readouts.py --rows 4000 --width 128 --columns 2 --penalties 10 --logistic-rows 2000
	$(BIN)/python benchmarks/commands.py workers --rows 600 --backbone mini --workers 2 --pairs 1
	$(BIN)/python benchmarks/commands.py plan --case 0 --processor

PLACES = $(foreach name,DATA TEXT VIT ANTIBERTY PEER STORIES MINILM MPNET SMOLLM2,$(if $($(name)),$(name)=$($(name))))

results: $(DEVELOPS)  ## every table of benchmarks/RESULTS.md, made again (says what it costs): DATA=DIR, TEXT= VIT= ANTIBERTY= PEER=
	$(BIN)/python benchmarks/results.py --write $(PLACES)

results-check: $(DEVELOPS)  ## those of accuracies, compared with what is written, in about 20 minutes: DATA=DIR, and the same
	$(BIN)/python benchmarks/results.py --check $(PLACES)

reproductions: $(DEVELOPS)  ## benchmarks/REPRODUCTION.md and the numbers of other pages, made again from benchmarks/results
	$(BIN)/python benchmarks/reproductions.py

lint: $(DEVELOPS)  ## style and types
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/pyright

$(BIN)/python:
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --upgrade pip

$(INSTALLED): pyproject.toml | $(BIN)/python
	$(BIN)/python -m pip install --quiet --editable .
	touch $@

$(DEVELOPS): pyproject.toml | $(BIN)/python  # one installation of everything, so that versions are searched once
	$(BIN)/python -m pip install --quiet --editable . --group dev
	touch $(INSTALLED) $@

clean:  ## everything that make has made
	rm -rf .venv .venv-oldest demo docs/build docs/examples docs/made docs/project
