import inspect

import pallas_kernels
from eagle3_jax.engine.kernel_names import OPERATIONS


def test_the_names_are_those_of_all_operations_that_have_an_implementation_to_choose() -> None:
    public = {name: getattr(pallas_kernels, name) for name in dir(pallas_kernels)}
    chosen = {
        name
        for name, value in public.items()
        if inspect.isfunction(value) and "implementation" in inspect.signature(value).parameters
    }
    assert set(OPERATIONS) == chosen
