import pytest

from pallas_kernels import all_cases as module
from pallas_kernels.all_cases import all_cases
from pallas_kernels.case import ARCHS


def test_names_are_unique_and_floors_are_positive():
    for case in all_cases():
        assert case.bytes_moved > 0 and case.flops >= 0 and case.kernels, case.name
        assert set(case.matrix) <= set(ARCHS), case.name


def test_two_cases_of_one_name_are_refused(monkeypatch: pytest.MonkeyPatch):
    cases = all_cases()
    monkeypatch.setattr(module, "import_module", lambda _: type("M", (), {"cases": lambda: cases}))
    with pytest.raises(ValueError, match="there twice"):
        all_cases()
