"""Every row of the table of faults still applies to the code and names tests that exist."""

from mutants.rows import problems, read_rows
from mutants.twin.faults import PROBES, faults

AT_LEAST = 150


def test_every_fault_has_its_text_once_and_tests_that_exist() -> None:
    found = [problem for row in read_rows() for problem in problems(row)]
    assert not found, "\n".join(found)


def test_the_table_is_large_and_has_no_fault_twice() -> None:
    rows = read_rows()
    assert len({(row.file, row.old, row.new) for row in rows}) == len(rows) >= AT_LEAST


def test_every_fault_of_the_twin_has_its_text_once_and_a_probe() -> None:
    rows = faults()
    assert len(rows) >= 10 and {probe for row in rows for probe in row.tests} == PROBES.keys()
    for row in rows:
        compile(row.faulty_source(), row.file, "exec")
