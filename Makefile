# Needs Python 3.11 or newer and make; everything else goes into .venv. rocm-check also needs gcc and
# binutils, no GPU and no ROCm; XLA's ROCm plugin speaks up in every process that finds it, so it has
# an environment of its own. So has the one for CUDA, and one more for the newest JAX.
PYTHON ?= python3
# The newest JAX needs Python 3.12 or newer. pyenv has names that fail when they are called, so each is
# tried, and its own versions last.
NEWEST_PYTHON ?= $(shell for python in python3.12 python3.13 python3.14 $(PYTHON) "$$(pyenv root 2> /dev/null)"/versions/*/bin/python3; do \
	"$$python" -c 'import sys; sys.exit(sys.version_info < (3, 12))' 2> /dev/null && echo "$$python" && break; done)
PORT ?= 8000
BIN := .venv/bin
# The environment of AMD's checks: make rocm-check-short ROCM=.venv-rocm10-newest
ROCM := .venv-rocm
CUDA := .venv-cuda/bin
# Whole checks also run on the newest JAX where there is a Python for it.
AND_ON_NEWEST = @if [ -n "$(NEWEST_PYTHON)" ]; then $(MAKE) $@-newest; else \
	echo "NOT CHECKED on the newest JAX: no Python 3.12 or newer was found (make NEWEST_PYTHON=...)" >&2; fi
# Exact versions; which build of torch fits is the machine's affair.
LOCKED ?= --constraint constraints.txt
INSTALL = pip install --disable-pip-version-check --no-compile $(LOCKED) --editable
# Python keeps compiled modules: a process imports JAX in 0.8 s, and in 3.0 s where it must compile it.
export PYTHONDONTWRITEBYTECODE :=
# The last line of a proof: it passed on this commit.
PASSED := $(PYTHON) tests/proof_record.py passed

.PHONY: serve test docs page-check prove prove-images prove-long-contexts prove-contexts prove-sharding prove-kernels \
	prove-checkpoints prove-tiers \
	prove-server prove-training prove-hosts prove-guide prove-deploy prove-dashboards prove-status soak dist dist-check mutants rehearse-gpu \
	rocm-check rocm-check-short rocm-check-newest \
	rocm-emulate rocm-emulate-short rocm-twin rocm-twin-short rocm-twin-faults rocm-twin-record \
	cuda-check cuda-check-short cuda-check-newest cuda-tests clients ray-test peer-goldens peer-kernels peer-speed lint lock clean

serve: .venv/installed
	$(BIN)/eagle3-serve --demo --port $(PORT)

# Each process imports all files that it is given. PyTorch and what comes with it take 200 MB of each
# process, Anthropic's client has 3,000 modules.
OPTIMISED = tests/worlds $$(grep -rl --include='test_*.py' mark.optimised tests)
HEAVY = tests/serve/anthropic $$(grep -rlE --include='test_*.py' \
	'^(import|from) (torch|transformers|datasets|safetensors.torch|convert.equivalence.torch|anthropic)' tests)

# Compiling takes most of the time, so it is quick, and as for users where two programs must have equal
# bits, or where running takes longer: the tests marked `optimised`. One that hangs fails, and says where.
# Three processes on two cores: tests wait for servers and disks a third of their time.
test: .venv/installed-test
	$(BIN)/python -m pytest -n 3 --dist loadgroup --no-loadscope-reorder --timeout 600 -m "not optimised" \
		$$(printf -- '--ignore %s ' $(HEAVY))
	$(BIN)/python -m pytest -n 2 --dist loadgroup --timeout 600 -m "not optimised" $(HEAVY)
	$(BIN)/python -m pytest -n 2 --dist loadgroup --timeout 600 -m optimised --optimise $(OPTIMISED)

# The page at / in headless Chromium, which must be installed; keeps the picture in docs.
page-check: .venv/installed-page-check
	$(BIN)/python -m pytest --browser --screenshot docs/images/page.png tests/serve/test_page_in_browser.py

# The documentation as a site, in .cache/site; a link that leads nowhere fails. SERVE=1 serves it on port 8001.
docs: .venv/installed-docs
	$(BIN)/mkdocs $(if $(SERVE),serve --dev-addr 127.0.0.1:8001,build)

# Wheels and sdists of product and workshop, in dist; built twice from the commit's time, byte for byte equal.
dist: .venv/installed-dist
	rm -rf dist .cache/dist-again
	for folder in dist .cache/dist-again; do for project in . tools; do \
		(export SOURCE_DATE_EPOCH=$$(git log -1 --format=%ct); cd $$project && \
			$(CURDIR)/$(BIN)/hatchling build --directory $(CURDIR)/$$folder) || exit 1; done; done
	diff -r dist .cache/dist-again
	$(BIN)/twine check --strict dist/*
	$(BIN)/check-wheel-contents dist/*.whl

# The wheels in empty environments, with the oldest and the newest JAX: every command, from another folder.
# DIST_CHECK="PYTHON ..." names other Pythons than 3.11, 3.12 and 3.13.
dist-check: dist
	$(PYTHON) tests/dist_check.py $(DIST_CHECK)
	$(if $(DIST_CHECK),,@$(PASSED) $@)

# The proofs and the worlds at full length; `make test` runs their short form.
prove: .venv/installed-test
	$(BIN)/python -m pytest -n 2 --dist loadgroup --long tests/worlds -k "not devices by"
	$(BIN)/python -m pytest -n 2 --dist loadfile tests/proofs tests/equivalence/test_transcripts.py \
		$(addprefix tests/tools/bench/,test_acceptance_of_rounds.py doctor/test_served.py) \
		$(addprefix tests/eagle3_jax/engine/test_,argmax_rounds.py logprobs.py remote_devices.py host_tier.py) --long
	@$(PASSED) $@

# The last run of each proof, and how much of what it covers has changed since.
prove-status:
	@$(PYTHON) tests/proof_record.py status

# Images: every draft and shape of rounds on the golden prompts, 2,000 malformed images and parts, and
# lm_eval's multimodal path; `make test` runs some prompts, 100 images and no client. Random requests
# with images are in `make prove`.
prove-images: .venv/installed-test
	$(BIN)/python -m pytest -n 2 --dist loadfile -rP --long tests/proofs/test_golden_images.py \
		tests/serve/images/test_malformed_images.py tests/clients/test_seeing_clients.py \
		tests/eagle3_jax/engine/images/test_image_answers.py \
		tests/tools/make_demo/test_sighted_pair.py
	@$(PASSED) $@

# Prompts of 16,384 and 262,143 tokens beside transformers', and a pool of 2.2 GB; `make test` runs
# short ones.
prove-long-contexts: .venv/installed-test
	$(BIN)/python -m pytest tests/equivalence/test_long_context.py tests/eagle3_jax/test_cache.py \
		tests/eagle3_jax/engine/test_long_contexts.py --long
	@$(PASSED) $@

# Contexts that devices divide: the collectives of their rounds, and the tests of rounds, batches,
# prefixes, ends and bits on 2 and on 4 devices; `make test` has a cover.
CONTEXT_TESTS := $(addprefix tests/eagle3_jax/,speculative/test_prefill.py speculative/test_round.py \
	engine/test_prefix_cache.py) tests/proofs/test_exact_bits.py
prove-contexts: .venv/installed-test
	$(BIN)/python -m pytest -rP --long tests/eagle3_jax/sharded/test_round_collectives.py
	$(BIN)/python -m pytest -n 2 --dist loadfile --optimise --context-parts 2 $(CONTEXT_TESTS)
	$(BIN)/python -m pytest -n 2 --dist loadfile --optimise --context-parts 4 $(CONTEXT_TESTS)
	@$(PASSED) $@

# Every way a pair lies on 8 devices, 100 requests each; `make test` runs a cover of them. And each
# published command line: its server on as many devices.
prove-sharding: .venv/installed-test
	$(BIN)/python -m pytest -n 2 --dist loadgroup --long tests/worlds -k "devices by"
	$(BIN)/python -m pytest -n 2 tests/eagle3_jax/sharded tests/serve/test_published_commands.py --long
	@$(PASSED) $@

# Every kernel in every format and size, interpreted, and the engine's tests on the GPU's kernels;
# `make test` runs a case of each kernel and of each branch of it, and one test of the engine.
prove-kernels: .venv/installed-test
	$(BIN)/python -m pytest -n 2 --dist loadfile tests/pallas_kernels --long
	$(BIN)/python -m pytest -n 2 --dist loadfile tests/eagle3_jax/engine --kernels pallas --optimise
	$(BIN)/python -m pytest -n 2 --dist loadfile $(EMULATED) --long
	@$(PASSED) $@

# Checkpoints in every form, released and damaged, beside what transformers makes of them; `make test`
# runs one of each kind.
prove-checkpoints: .venv/installed-test
	$(BIN)/python -m pytest -n 2 --dist loadfile tests/convert tests/equivalence --long \
		--ignore tests/equivalence/test_long_context.py
	@$(PASSED) $@

# Pages below the devices and between servers: writers and servers on both ends of transfers killed with
# -9 at random points, five origins of a prompt with every draft; ten minutes of random traffic with a
# directory below host memory.
prove-tiers: .venv/installed-test
	$(BIN)/python -m pytest -rP --long tests/eagle3_jax/engine/test_disk_tier.py \
		$(addprefix tests/serve/kv_transfer/test_,killed_servers.py five_origins.py prefill_apart.py)
	$(BIN)/eagle3-bench soak
	@$(PASSED) $@

# Two hours of random traffic on two demo servers with every feature on; keeps the record.
soak: .venv/installed-test
	$(BIN)/eagle3-bench soak --seconds 7200 --json docs/benchmarks/soak.json

# The files of docs/deploy through kubectl, systemd and pip, and the probes at servers in trouble.
prove-deploy: .venv/installed-deploy-check
	@for tool in kubectl systemd-analyze; do command -v $$tool > /dev/null || \
		{ echo "make prove-deploy needs $$tool: install kubectl and systemd" >&2; exit 1; }; done
	$(BIN)/python -m pytest -rP --long tests/serve/deploy --ignore tests/serve/deploy/test_prometheus.py
	@$(PASSED) $@

# Dashboards and alerts over a Prometheus that scrapes demo servers: VLLM=CHECKOUT adds vLLM's dashboards.
prove-dashboards: .venv/installed-test
	@command -v promtool > /dev/null || \
		{ echo "make prove-dashboards needs prometheus and promtool: install the package prometheus" >&2; exit 1; }
	VLLM=$(VLLM) $(BIN)/python -m pytest -rP --long tests/serve/deploy/test_prometheus.py
	@$(PASSED) $@

# The nearest tests against each deliberate fault of tests/mutants: 95 % of the faults must fail one.
# MUTANTS="kv: slot" takes the rows with these words, MUTANTS=--resume keeps results of unchanged rows.
mutants: .venv/installed-test
	PYTHONPATH=.:tests $(BIN)/python -m mutants --record $(MUTANTS)

# 10,000 requests that no client should send, at the embedded pair, and bodies made to hold others
# up; `make test` sends 250 and 6.
prove-server: .venv/installed-fuzz
	$(BIN)/python tests/serve/fuzz_server.py
	$(BIN)/python tests/serve/hostile_bodies.py
	@$(PASSED) $@

# What is run when a GPU is lent for half an hour, on this CPU: with a crash, and killed at a random second.
rehearse-gpu: .venv/installed-test
	$(BIN)/python -m pytest tests/tools/bench/test_gpu_study.py tests/tools/kernel_bench/test_short_lease.py --long

# Drafts of each loss from scratch, and of MiniMax's architecture, then their accept length in service,
# all in one run: an hour and a half of two cores; it may be stopped and goes on.
prove-training: .venv/installed-test
	$(BIN)/python -m pytest -n 2 --dist loadfile --long tests/eagle3_jax/training tests/serve/train/test_train_cli.py \
		tests/tools/plan/test_training_step.py tests/tools/make_demo/test_make_demo.py \
		$(addprefix tests/serve/train/test_,features_command.py images.py several_processes.py)
	$(BIN)/python tests/serve/train/prove_training.py .cache/prove-training --json docs/benchmarks/training.json
	@$(PASSED) $@

# docs/guide, word for word: every line that needs no published checkpoint, GPU or network.
prove-guide: .venv/installed-test
	$(BIN)/python -m pytest --long tests/test_guide.py
	@$(PASSED) $@

# What needs XLA's ROCm compiler or AMD's tables; the emulator's cases are in `make test`.
EMULATED := $(addprefix tests/tools/amdgpu/test_,cases.py rounding.py small_pair.py)
ROCM_TESTS := tests/tools/aot tests/tools/amdgpu $(addprefix --ignore=,$(EMULATED))

# A target that takes images.
SEEING := tests/oracles/published/kimi-k2.5-mxfp4.config.json

# Every kernel, the whole round, at full size too, and the vision tower through XLA's ROCm compiler,
# for MI355X and MI325X, and the kernels again on the newest JAX where there is a Python for it.
rocm-check: $(ROCM)/installed
	JAX_PLATFORMS=cpu $(ROCM)/bin/python -m pytest --rocm $(ROCM_TESTS)
	$(ROCM)/bin/python -m eagle3_tools.aot
	$(ROCM)/bin/python -m eagle3_tools.plan --list
	$(ROCM)/bin/python -m eagle3_tools.plan.compile.full_size_pairs tests/oracles/published
	$(ROCM)/bin/python -m eagle3_tools.plan.compile.prefill tests/oracles/published
	$(ROCM)/bin/python -m eagle3_tools.plan.compile.tower $(SEEING)
	$(ROCM)/bin/python -m eagle3_tools.plan.compile.training_step tests/oracles/published
	$(ROCM)/bin/python -m eagle3_tools.plan.compile.replicas tests/oracles/published
	$(AND_ON_NEWEST)
	@$(PASSED) $@

# ROCm 7 and ROCm 10, and the way out of Pallas (docs/decisions/kernel-language.md).
rocm-check-newest: .venv-rocm-newest/installed .venv-rocm10-newest/installed
	JAX_PLATFORMS=cpu .venv-rocm-newest/bin/python -m pytest --rocm tests/tools/aot/test_exit.py
	.venv-rocm-newest/bin/python -m eagle3_tools.aot
	.venv-rocm10-newest/bin/python -m eagle3_tools.aot

# One case of each operation.
rocm-check-short: $(ROCM)/installed
	$(ROCM)/bin/python -m eagle3_tools.aot --short

# What the compiler made, executed on this CPU by the emulator of tools/eagle3_tools/amdgpu.
rocm-emulate: $(ROCM)/installed
	$(ROCM)/bin/python -m eagle3_tools.amdgpu $(EMULATE)
	$(if $(EMULATE),,@$(PASSED) $@)

rocm-emulate-short: $(ROCM)/installed
	$(ROCM)/bin/python -m eagle3_tools.amdgpu --short

# The server and the commands through XLA's ROCm client on emulated MI355X, against what a CPU answered: docs/rocm-twin.md.
# TWIN="chat image" runs these parts.
WALKED := tools/eagle3_tools/walk/cpu.jsonl
ON_TWIN = $(ROCM)/bin/python -m eagle3_tools.twin -n $(1) -- $(ROCM)/bin/python -m eagle3_tools.walk \
	--devices $(1) --limit 3600 --expect $(WALKED) --record .cache/rocm-twin/twin.jsonl
rocm-twin: $(ROCM)/installed
	$(call ON_TWIN,4) $(if $(TWIN),--only $(TWIN))
	$(if $(TWIN),,@$(PASSED) $@)

# Pages of the cache to pinned host memory and back, on one device.
rocm-twin-short: $(ROCM)/installed
	$(call ON_TWIN,1) --only 'host memory'

# Deliberate faults in our GPU path, each of which the twin must show. FAULTS="page" runs those with a word.
rocm-twin-faults: $(ROCM)/installed
	PYTHONPATH=.:tests $(ROCM)/bin/python -m mutants.twin $(FAULTS)
	$(if $(FAULTS),,@$(PASSED) $@)

# What a CPU answers, after a change of the embedded pair or of the walk.
rocm-twin-record: $(ROCM)/installed
	JAX_PLATFORMS=cpu XLA_FLAGS=--xla_force_host_platform_device_count=4 \
		$(ROCM)/bin/python -m eagle3_tools.walk --devices 4 --record $(WALKED)

# Every kernel and the vision tower through XLA's CUDA compiler and NVIDIA's assembler, for H200, and again on the newest
# JAX where there is a Python for it.
cuda-check: cuda-tests
	$(CUDA)/python -m eagle3_tools.aot
	$(CUDA)/python -m eagle3_tools.plan.compile.tower $(SEEING)
	$(AND_ON_NEWEST)
	@$(PASSED) $@

cuda-check-newest: .venv-cuda-newest/installed
	.venv-cuda-newest/bin/python -m eagle3_tools.aot

# One case of each operation.
cuda-check-short: .venv-cuda/installed
	$(CUDA)/python -m eagle3_tools.aot --short

cuda-tests: .venv-cuda/installed
	JAX_PLATFORMS=cpu $(CUDA)/python -m pytest --cuda tests/tools/aot

# The clients people use, unmodified, against the demo server, from .venv-clients (about 17 GB).
clients: .venv/installed-test
	PYTHONPATH=tests:tests/serve $(BIN)/python -m clients $(CLIENTS)
	$(if $(CLIENTS),,@$(PASSED) $@)

# Several processes at length: 200 requests by four of them, every end of either of two, and of Ray's
# actors; `make test` and `make ray-test` have a cover.
prove-hosts: .venv/installed-test .venv-ray/installed
	$(BIN)/python -m pytest -rP --long tests/serve/hosts
	JAX_PLATFORMS=cpu .venv-ray/bin/python -m pytest -rP --long --timeout 900 tests/replicas
	@$(PASSED) $@

# Two replicas behind Ray Serve, on this machine.
ray-test: .venv-ray/installed
	JAX_PLATFORMS=cpu .venv-ray/bin/python -m pytest --timeout 900 tests/replicas/test_ray_serve.py -k one_answer

# Loss and gradients of another trainer (speculators, PyTorch), which the tests hold ours to.
peer-goldens: .venv-peer/installed
	PYTHONPATH=tests .venv-peer/bin/python -m peers.training_goldens

# AITER's Triton kernels, compiled for gfx950 from its checkout, beside ours in the kernel model:
# make peer-kernels AITER=CHECKOUT
PEER_KERNELS := .cache/peer-kernels
peer-kernels: .venv-peer-kernels/installed $(ROCM)/installed
	@[ -d "$(AITER)/aiter/ops/triton" ] || { echo "make peer-kernels needs AITER=CHECKOUT, a clone of ROCm/aiter; found '$(AITER)'" >&2; exit 1; }
	rm -rf $(PEER_KERNELS)
	.venv-peer-kernels/bin/python tools/eagle3_tools/peer_kernels/compile.py $(AITER) $(PEER_KERNELS)
	JAX_PLATFORMS=cpu $(ROCM)/bin/python -m eagle3_tools.peer_kernels $(PEER_KERNELS)

# Tokens a second of a draft's update, ours and speculators', on one core in one run.
peer-speed: .venv-peer/installed
	PYTHONPATH=.:tests:tests/eagle3_jax:tests/eagle3_jax/training .venv-peer/bin/python -m peers.throughput --json docs/benchmarks/training_speed.json

lint: .venv/installed-test
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/hadolint docs/deploy/Dockerfile.*
	$(BIN)/shellcheck .ci/run docs/deploy/slurm.sbatch $$(git ls-files '*.sh')
	$(BIN)/pyright --pythonpath $(BIN)/python

# Writes down the versions that are installed (CUDA's runtime is the build of torch's affair too); `make clean lock LOCKED=` takes the newest there are.
lock: .venv/installed-test .venv-rocm/installed .venv-cuda/installed .venv-ray/installed
	for bin in $(BIN) .venv-rocm/bin $(CUDA) .venv-ray/bin; do $$bin/pip freeze --exclude-editable; done \
		| sed 's/^\(torch==[^+]*\)+.*/\1/; /^nvidia-cuda-runtime==/d' | LC_ALL=C sort --ignore-case --unique > constraints.txt

clean:
	rm -rf .venv .venv-rocm .venv-cuda .venv-*-newest .venv-clients .venv-ray .venv-peer .venv-peer-kernels

.venv/bin/pip:
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or newer is needed: make PYTHON=...")'
	$(PYTHON) -m venv .venv

.venv/installed: pyproject.toml tools/pyproject.toml constraints.txt | .venv/bin/pip
	$(BIN)/$(INSTALL) . --editable tools
	touch $@

.venv/installed-test: pyproject.toml tools/pyproject.toml constraints.txt | .venv/bin/pip
	$(BIN)/$(INSTALL) '.[test]' --editable tools
	touch .venv/installed $@

.venv/installed-page-check: .venv/installed-test
	$(BIN)/$(INSTALL) '.[page-check]' --editable tools
	touch $@

.venv/installed-docs: .venv/installed
	$(BIN)/$(INSTALL) '.[docs]' --editable tools
	touch $@

.venv/installed-dist: .venv/installed-test
	$(BIN)/$(INSTALL) '.[dist]' --editable tools
	touch $@

.venv/installed-fuzz: .venv/installed-test
	$(BIN)/$(INSTALL) '.[fuzz]' --editable tools
	touch $@

.venv/installed-deploy-check: .venv/installed-test
	$(BIN)/$(INSTALL) '.[deploy-check]' --editable tools
	touch $@

.venv-rocm/installed: pyproject.toml tools/pyproject.toml constraints.txt
	@for tool in gcc nm readelf; do command -v $$tool > /dev/null || \
		{ echo "make rocm-check needs $$tool: install gcc and binutils" >&2; exit 1; }; done
	$(PYTHON) -m venv .venv-rocm
	.venv-rocm/bin/$(INSTALL) '.[rocm-check]' --editable tools
	touch $@

.venv-cuda/installed: pyproject.toml tools/pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv-cuda
	$(CUDA)/$(INSTALL) '.[cuda-check]' --editable tools
	touch $@

.venv-ray/installed: pyproject.toml tools/pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv-ray
	.venv-ray/bin/$(INSTALL) '.[ray-test]' --editable tools
	touch $@

.venv-peer-kernels/installed:
	$(PYTHON) -m venv .venv-peer-kernels
	.venv-peer-kernels/bin/pip install --disable-pip-version-check triton==3.6.0 numpy
	touch $@

# Without its torchvision and torchaudio, which nothing here imports.
.venv-peer/installed: pyproject.toml tools/pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv-peer
	.venv-peer/bin/$(INSTALL) '.[test]' --editable tools
	.venv-peer/bin/pip install --disable-pip-version-check --no-deps speculators==0.9.0 hs-connectors==0.9.0 loguru pydantic-settings python-dotenv
	touch $@

# Packages other than JAX's have their exact versions.
.venv-%-newest/installed: LOCKED = --constraint .venv-$*-newest/constraints.txt
.venv-%-newest/installed: pyproject.toml tools/pyproject.toml constraints.txt
	@[ -n "$(NEWEST_PYTHON)" ] || \
		{ echo "the newest JAX needs Python 3.12 or newer, and none was found: make NEWEST_PYTHON=..." >&2; exit 1; }
	$(NEWEST_PYTHON) -m venv .venv-$*-newest
	grep -Ev '^(jax|flax)' constraints.txt > .venv-$*-newest/constraints.txt
	.venv-$*-newest/bin/$(INSTALL) '.[$*-check]' --editable tools
	touch $@
