// The server's metrics, polled from /metrics and parsed from Prometheus text (docs/metrics.md).

import { headers, reach } from "./stream.js";

const WINDOW = 30; // polls, one per second
const SERIES = /^([a-z0-9_:]+)(?:\{(.*)\})? (\S+)$/i;

// Returns name -> {sum, positions, tiers}, summed over all series of a name.
export function parse(text) {
  const found = new Map();
  for (const line of text.split("\n")) {
    const [, name, labels = "", value] = SERIES.exec(line) ?? [];
    if (!name) continue;
    const entry = found.get(name) ?? { sum: 0, positions: [], tiers: {} };
    const position = /position="(\d+)"/.exec(labels)?.[1];
    const tier = /tier="(\w+)"/.exec(labels)?.[1];
    entry.sum += Number(value);
    if (tier !== undefined) entry.tiers[tier] = Number(value);
    if (position !== undefined) entry.positions[position] = (entry.positions[position] ?? 0) + Number(value);
    found.set(name, entry);
  }
  return found;
}

export async function snapshot(key) {
  const options = { headers: headers(key), cache: "no-store" };
  const health = await reach("health", options);
  const metrics = await reach("metrics", options);
  const values = metrics.ok ? parse(await metrics.text()) : new Map();
  return { ready: health.ok, time: performance.now() / 1000, values };
}

// Differences between two snapshots, or since the server started.
export function compare(before, now) {
  const total = (name, from = before) =>
    (now.values.get(name)?.sum ?? 0) - (from?.values.get(name)?.sum ?? 0);
  const drafts = total("vllm:spec_decode_num_drafts_total");
  const accepted = "vllm:spec_decode_num_accepted_tokens_per_pos_total";
  const then = before?.values.get(accepted)?.positions ?? [];
  const counts = (now.values.get(accepted)?.positions ?? []).map((n, i) => n - (then[i] ?? 0));
  const length = 1 + total("vllm:spec_decode_num_accepted_tokens_total") / drafts;
  return {
    drafts,
    tokens: total("vllm:generation_tokens_total"),
    seconds: before ? now.time - before.time : undefined,
    length: drafts ? length : undefined,
    shares: drafts ? counts.map((n) => n / drafts) : [],
  };
}

// Usage of each memory tier below the devices, and the tiers of cached tokens.
export function tierTexts(values) {
  const usage = values.get("eagle3:kv_tier_usage_perc")?.tiers;
  if (usage === undefined) return undefined;
  const hits = values.get("eagle3:prompt_tokens_cached_by_tier_total")?.tiers ?? {};
  const used = Object.entries(usage).map(([tier, share]) => `${tier} ${(100 * share).toFixed(1)}%`);
  const shown = Object.entries(hits).filter(([tier, count]) => count || tier === "device" || tier in usage);
  return { used: used.join(", "), hits: shown.map(([tier, count]) => `${tier} ${count}`).join(", ") };
}

export class History {
  constructor() {
    this.snapshots = [];
  }

  // Covers the last half minute if a token was drafted in it, else the time since the start.
  add(now) {
    const last = this.snapshots.at(-1);
    const name = "vllm:generation_tokens_total";
    const restarted = last && (last.values.get(name)?.sum ?? 0) > (now.values.get(name)?.sum ?? 0);
    this.snapshots = restarted ? [now] : [...this.snapshots, now].slice(-WINDOW);
    const recent = compare(this.snapshots[0], now);
    const short = compare(this.snapshots.at(-4) ?? this.snapshots[0], now);
    const shown = recent.drafts ? recent : compare(undefined, now);
    const rate = short.seconds > 0 ? short.tokens / short.seconds : undefined;
    return { ...shown, rate, window: recent.drafts ? "last 30 s" : "since its start" };
  }
}
