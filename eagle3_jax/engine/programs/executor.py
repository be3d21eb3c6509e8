"""Device side of an engine: holds weights, state and compiled programs, and runs them.

It knows no requests. Processes that hold parts of one mesh have an executor each and run the same
calls in the same order.
"""

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from functools import cached_property, partial
from typing import Any

import jax
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

from eagle3_jax.config import default_aux_layer_ids
from eagle3_jax.engine.config import EngineConfig
from eagle3_jax.engine.images.layout import ImageLayout
from eagle3_jax.engine.kv.peaks import KVPeaks, pool_peaks
from eagle3_jax.engine.programs.compiled import (
    Leaves,
    PairStructure,
    compile_program,
    flatten_model,
    shapes_of,
)
from eagle3_jax.engine.programs.fingerprint import page_fingerprint
from eagle3_jax.engine.programs.initial_state import StateLayout
from eagle3_jax.engine.programs.inputs import input_shapes
from eagle3_jax.engine.programs.messages import ProgramCall
from eagle3_jax.engine.programs.page_copies import compile_copies
from eagle3_jax.engine.programs.page_store import PageStore
from eagle3_jax.engine.programs.program import PAGE_COPIES, Program, ProgramKind, all_programs
from eagle3_jax.mesh import DATA, mesh_of, replicas
from eagle3_jax.models.eagle3 import Eagle3Draft
from eagle3_jax.models.target import Target
from eagle3_jax.models.vision import VisionModel

Progress = Callable[[str, int, int], None]
"""Called with (program, done, total) as programs compile."""
MOST_COMPILERS = 8
"""Maximum programs that compile at the same time; each needs host memory."""


class Executor:
    """Runs one program at a time on the arrays that it holds.

    `state` is that after the last program. `compiled` maps names to compiled programs. `programs`
    lists all programs that may run, in an order that depends only on configuration and pair.
    """

    def __init__(
        self,
        target: Target,
        draft: Eagle3Draft | None,
        config: EngineConfig,
        *,
        has_grammars: bool = False,
        vision: VisionModel | None = None,
        images: ImageLayout | None = None,
    ):
        """`vision` encodes images, whose layout is `images`."""
        self._config, self._images = config, images
        self.input_shapes = partial(input_shapes, config, target.config.vocab_size, images)
        self._models = target.config, draft and draft.config
        # Plain exact decoding captures aux states too, to share the speculative program.
        capture = draft.config.aux_layer_ids if draft else ()
        if config.exact and draft is None:
            capture = default_aux_layer_ids(target.config.num_hidden_layers)
        mesh = mesh_of(target)
        self._replicas = replicas(mesh)
        # Host inputs go to every device of the mesh, or to one replica each.
        spec = PartitionSpec(DATA) if self._replicas > 1 else PartitionSpec()
        self._sending = None if mesh is None else NamedSharding(mesh, spec)
        self._target, target_structure = flatten_model(target, mesh)
        self._draft, draft_structure = flatten_model(draft, mesh) if draft else ((), None)
        self._vision, vision_structure = flatten_model(vision, mesh) if vision else ((), None)
        self._pair = PairStructure(
            target_structure,
            draft_structure,
            capture,
            config.method,
            config.kernels,
            config.xla_kernels,
            config.exact,
            vision_structure,
            vision is not None and config.mm_draft_embedding == "target",
            config.xla_autotune,
        )
        self._uploaded: dict[tuple[int, ...], tuple[np.ndarray, np.ndarray, list[jax.Array]]] = {}
        rows = images.rows if images else 0
        self.state = StateLayout(target, draft, config, len(capture), mesh, rows).initial()
        self.compiled: dict[Program, Callable[..., tuple[Any, ...]]] = {}
        self._pages: PageStore | None = None
        parts = {"has_draft": draft is not None, "has_grammars": has_grammars}
        self.programs = all_programs(config, **parts, image_sizes=images.sizes if images else ())

    def compile(self, progress: Progress | None = None) -> None:
        """Compile every program, as many at once as there are cores; else each at its first run."""
        pool = ThreadPoolExecutor(min(MOST_COMPILERS, os.cpu_count() or 1))
        try:
            # Threads start without the caller's context, which chooses kernels.
            compiling = {
                program: pool.submit(copy_context().run, self._compile, program)
                for program in self.programs
                if program.kind not in PAGE_COPIES
            }
            for done, program in enumerate(self.programs):
                if progress:
                    progress(str(program), done, len(self.programs))
                if program in compiling:
                    self.compiled[program] = compiling[program].result()
                else:
                    _ = self.pages
        finally:
            pool.shutdown(cancel_futures=True)
        if progress:
            progress("ready", len(self.programs), len(self.programs))

    @property
    def pages(self) -> PageStore:
        """Host memory for pages; its copy programs compile on first access."""
        if self._pages is None:
            self._pages = PageStore(compile_copies(shapes_of(self.state)))
        return self._pages

    @cached_property
    def page_fingerprint(self) -> bytes:
        """Hash of everything that cached KV values depend on; reads all weights."""
        weights, size = self._target + self._draft + self._vision, self.pages.page_bytes
        vision = self._images and self._images.vision
        return page_fingerprint(*self._models, weights, self._config, size, vision)

    def run(self, call: ProgramCall) -> tuple[Any, ...]:
        """Dispatch a program and return its outputs besides the new state."""
        program, inputs = call
        if program.kind in PAGE_COPIES:
            self._copy_pages(program.kind, *inputs)
            return ()
        if program not in self.compiled:
            self.compiled[program] = self._compile(program)
        execute = self.compiled[program]
        sent = self._put_batch(*inputs) if program.is_round else self._put(inputs)
        self.state, *outputs = execute(*self._weights(program), self.state, *sent)
        return tuple(outputs)

    def _weights(self, program: Program) -> tuple[Leaves, Leaves]:
        """Return the program's weights: the pair's, the vision model's, or none."""
        if program.kind is ProgramKind.HISTORY:
            return (), ()
        if program.kind is ProgramKind.ENCODE:
            return self._vision, ()
        return self._target, self._draft

    def _copy_pages(self, kind: ProgramKind, *inputs: np.ndarray) -> None:
        *ids, slots = inputs
        if kind is ProgramKind.STAGE_PAGES:
            self.pages.stage(slots)
        elif kind is ProgramKind.SAVE_PAGES:
            self.pages.save(self.state, self._put(ids[0]), slots)
        else:
            self.state = self.pages.load(self.state, self._put(ids[0]), slots)

    def kv_peaks(self) -> KVPeaks:
        """Measure the KV pools after all programs; raise ValueError if others hold parts."""
        pools = self.state.target_pools, self.state.draft_pools
        if not self._sees_all:
            raise ValueError(
                "KV scales are measured by an engine of one process; this one has several"
            )
        if self._replicas > 1:
            raise ValueError(
                "KV scales are measured without replicas: leave data_parallel_size out"
            )
        target, draft = (tuple(map(float, jax.device_get(pool_peaks(p)))) for p in pools)
        return KVPeaks(target, draft)

    @property
    def _sees_all(self) -> bool:
        """True if all devices belong to this process."""
        return self._sending is None or self._sending.is_fully_addressable

    def _put_batch(self, slots: np.ndarray, table: np.ndarray, *rest: Any) -> list[Any]:
        """Send a round's inputs; reuse the bucket's last slots and page table if they are equal."""
        known = self._uploaded.get(slots.shape)
        if known and np.array_equal(known[0], slots) and np.array_equal(known[1], table):
            arrays = known[2]
        else:
            arrays = self._put([slots, table])
            self._uploaded[slots.shape] = (slots, table, arrays)
        return [*arrays, *(self._put(rest) if rest else ())]

    def _put(self, sent: Any) -> Any:
        if self._sees_all:
            return jax.device_put(sent, self._sending)
        return jax.tree.map(self._put_here, sent)

    def _put_here(self, sent: np.ndarray) -> jax.Array:
        """Put one array on this process's devices; device_put would compare it across processes."""
        assert self._sending is not None, "several processes have a mesh"
        return jax.make_array_from_callback(sent.shape, self._sending, sent.__getitem__)

    def _compile(self, program: Program) -> Callable[..., tuple[Any, ...]]:
        held = shapes_of((*self._weights(program), self.state))
        inputs = self.input_shapes(program)
        return compile_program(program.kind, self._pair, *held, *inputs, widths=program.widths)
