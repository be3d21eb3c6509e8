"""How fast a checkpoint's files become arrays on devices."""

from serve.bench.studies.load.study import add_flags as add_flags
from serve.bench.studies.load.study import run as run
