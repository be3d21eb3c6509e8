"""The converted checkpoint: Orbax items (OCDBT) beside one manifest of ours."""

from convert.store.parameter import Parameter as Parameter
from convert.store.reader import Store as Store
from convert.store.reader import is_store as is_store
from convert.store.reader import open_store as open_store
