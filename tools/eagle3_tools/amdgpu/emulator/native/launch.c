/* Run the workgroups of a kernel, which is the function `run`. */
static int64_t run(struct wave *w); /* until a barrier (the place to go on at) or the end (-1) */

/* Run workgroups one after another. `vectors` [waves, registers, 64], `scalars` [waves, 128],
   `flags` [waves, 2] and `local` are what the waves and the local memory of each have at the start;
   scalar registers from `first_id` on get `ids` [groups, id_count]. If `ids` is NULL, what the last
   workgroup has at its end replaces what is at the start. Return 0, or 1 with a fault. */
int launch(struct launch *g, uint32_t *vectors, uint32_t *scalars, uint32_t *flags, uint64_t waves, uint64_t registers, const uint32_t *ids,
           uint64_t first_id, uint64_t id_count, const int32_t *identity, uint64_t groups, uint8_t *local, uint64_t lds_size) {
  uint64_t units = lds_size / g->granule;
  uint64_t v_size = registers * LANES * waves * 4, s_size = 128 * waves * 4;
  struct wave *all = calloc(waves, sizeof *all);
  uint32_t *v = aligned_alloc(64, (v_size + 63) / 64 * 64), *s = malloc(s_size), *lds = malloc(lds_size);
  g->last = g->regions, g->epoch = 0;
  if (g->writers) g->lds_readers = calloc(2 * units, 4), g->lds_writers = g->lds_readers + units;
  jmp_buf escape;
  g->escape = &escape;
  int failed = setjmp(escape);
  for (uint64_t group = 0; !failed && group < groups; group++) {
    memcpy(v, vectors, v_size);
    memcpy(s, scalars, s_size);
    memcpy(lds, local, lds_size);
    g->group = identity[group];
    g->epoch++;
    for (uint64_t k = 0; k < waves; k++) {
      struct wave *w = all + k;
      w->v = v + registers * LANES * k, w->s = s + 128 * k, w->lds = (uint8_t *)lds, w->launch = g;
      w->number = k, w->next = g->start, w->scc = flags[2 * k], w->saturates = flags[2 * k + 1];
      for (uint64_t id = 0; id < id_count; id++) w->s[first_id + id] = ids[group * id_count + id];
      expand(w->s[126], w->s[127], w->active);
    }
    for (int running = 1; running; g->epoch++) {
      running = 0;
      for (uint64_t k = 0; k < waves; k++) {
        if (all[k].next >= 0) all[k].next = run(all + k);
        running |= all[k].next >= 0;
      }
    }
  }
  if (!ids) {
    memcpy(vectors, v, v_size);
    memcpy(scalars, s, s_size);
    memcpy(local, lds, lds_size);
    for (uint64_t k = 0; k < waves; k++) flags[2 * k] = all[k].scc, flags[2 * k + 1] = all[k].saturates;
  }
  free(all), free(v), free(s), free(lds);
  if (g->writers) free(g->lds_readers);
  return failed;
}
