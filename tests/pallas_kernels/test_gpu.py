import jax.numpy as jnp
import pytest

from pallas_kernels import gpu


def test_a_cpu_interprets_unless_a_program_is_compiled_for_a_gpu():
    assert gpu.current().arch == "cpu" and gpu.interpreted()
    with gpu.assume("gfx942") as assumed:
        assert gpu.current() == assumed == gpu.MI325X and gpu.interpreted()
        with gpu.assume("gfx950", compiling=True):
            assert gpu.current() == gpu.MI355X and not gpu.interpreted()
        assert gpu.current() == gpu.MI325X and gpu.interpreted()
    assert gpu.current().arch == "cpu"


def test_each_gpu_multiplies_its_own_float8():
    assert {arch: known.fp8 for arch, known in gpu.KNOWN.items()} == {
        "gfx950": jnp.float8_e4m3fn,
        "gfx942": jnp.float8_e4m3fnuz,
        "sm_90": jnp.float8_e4m3fn,
    }


@pytest.mark.parametrize(
    ("capability", "arch"), [("9.0", "sm_90"), ("10.0", "sm_100"), ("gfx942:sramecc+", "gfx942")]
)
def test_the_architecture_is_named_alike_whether_jax_says_it_or_a_flag(
    monkeypatch: pytest.MonkeyPatch, capability: str, arch: str
):
    class Device:
        compute_capability = capability

    monkeypatch.setattr("jax.default_backend", lambda: "gpu")
    monkeypatch.setattr("jax.devices", lambda: [Device()])
    assert gpu.current().arch == arch
    assert gpu.current() == gpu.KNOWN.get(arch, gpu.current())


def test_an_unknown_gpu_is_refused():
    with pytest.raises(ValueError, match="expected one of gfx950, gfx942, sm_90; got 'gfx90a'"):
        with gpu.assume("gfx90a"):
            pass
