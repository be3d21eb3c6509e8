import jax
import numpy as np
from tolerances import FLOAT32_ATOL

from eagle3_jax.full_pass import draft_forward, forward
from eagle3_jax.mesh import make_mesh
from eagle3_tools.bench.doctor.pair import heads_repeated, load_pair


def test_on_eight_devices_the_pair_has_each_head_twice_and_is_the_same_function():
    ids = np.random.default_rng(0).integers(0, 1024, (1, 12))
    results = []
    for mesh in (None, make_mesh(8)):
        target, draft = load_pair(mesh)
        out = forward(target, ids, aux_layer_ids=draft.config.aux_layer_ids)
        rows = draft_forward(draft, ids, np.asarray(out.aux_hidden))
        results.append(jax.device_get((out.logits, rows)))
        heads = target.config.num_attention_heads, draft.config.num_key_value_heads
        assert heads == (4 * heads_repeated(mesh.size if mesh else 1),) * 2
    for one, eight in zip(*map(jax.tree.leaves, results), strict=True):
        np.testing.assert_allclose(eight, one, atol=FLOAT32_ATOL * np.abs(one).max())
