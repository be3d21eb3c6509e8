import pytest

from pallas_kernels.dispatch import choose

IMPLEMENTATIONS = {"xla": len, "reference": sum, "pallas": "needs a GPU"}


def test_none_means_xla_and_a_name_means_itself():
    assert choose("f", None, IMPLEMENTATIONS) is len
    assert choose("f", "reference", IMPLEMENTATIONS) is sum


def test_an_unavailable_implementation_says_why_and_what_could_run():
    with pytest.raises(ValueError, match="'pallas': needs a GPU; available: xla, reference"):
        choose("f", "pallas", IMPLEMENTATIONS)


def test_an_unknown_implementation_is_refused():
    with pytest.raises(ValueError, match="'cuda': no such implementation"):
        choose("f", "cuda", IMPLEMENTATIONS)
