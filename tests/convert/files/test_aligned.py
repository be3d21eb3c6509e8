"""Memory that a CPU device takes as its own."""

import jax
import ml_dtypes
import numpy as np
import pytest

from convert.published.read_parameter import aligned_empty


@pytest.mark.parametrize("dtype", [np.float32, ml_dtypes.bfloat16, np.uint8])
def test_a_cpu_device_takes_it_without_a_copy(dtype: type) -> None:
    memory = aligned_empty((257, 129), dtype)
    memory[...] = 1
    taken = jax.device_put(memory, jax.devices("cpu")[0])
    assert taken.unsafe_buffer_pointer() == memory.ctypes.data
    assert (memory.shape, memory.dtype) == ((257, 129), dtype)


def test_there_may_be_nothing_in_it() -> None:
    assert aligned_empty((0, 3), np.float32).shape == (0, 3)
