import pytest
from hypothesis import given
from hypothesis import strategies as st

from eagle3_jax.cache import SCRATCH_PAGE
from eagle3_jax.engine.pages import PagePool


@given(st.integers(2, 12), st.lists(st.tuples(st.booleans(), st.integers(0, 5)), max_size=30))
def test_a_page_has_one_owner_and_scratch_has_none(
    num_pages: int, actions: list[tuple[bool, int]]
) -> None:
    pool, owned = PagePool(num_pages), []
    for take, count in actions:
        if take:
            free = pool.free
            pages = pool.take(count)
            assert (pages is None) == (count > free)
            owned.extend([pages] if pages else [])
        elif owned:
            pool.give_back(owned.pop(count % len(owned)))
        held = [page for pages in owned for page in pages]
        assert len(set(held)) == len(held)
        assert set(held) <= set(range(num_pages)) - {SCRATCH_PAGE}
        assert pool.free == pool.total - len(held)


def test_returning_a_page_twice_is_noticed() -> None:
    pool = PagePool(3)
    pages = pool.take(1)
    assert pages is not None
    pool.give_back(pages)
    with pytest.raises(AssertionError, match="twice"):
        pool.give_back(pages)
