"""What a call of a program costs between processes."""

from serve.bench.studies.hosts.study import add_flags as add_flags
from serve.bench.studies.hosts.study import run as run
