"""Agents whose prompts grow, through a cache with and without host memory below it."""

from serve.bench.studies.agents.study import add_flags as add_flags
from serve.bench.studies.agents.study import run as run
