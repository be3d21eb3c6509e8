// The side panel with figures of one answer and of the server.

import { History, tierTexts } from "./metrics.js";
import { MOST_SHADES, shade } from "./tokens.js";

const find = (id) => document.getElementById(id);
const history = new History();
let drafts; // the server's k once it is known

export function showAnswer({ tokens, rate, wait, length, shares }) {
  put("answer-tokens", tokens);
  put("answer-rate", rate?.toFixed(1));
  put("answer-ttft", wait === undefined ? undefined : `${wait.toFixed(0)} ms`);
  put("answer-length", length?.toFixed(2));
  bars("answer-positions", shares);
}

export function showServer(snapshot) {
  const value = (name) => snapshot.values.get(`vllm:${name}`);
  const told = history.add(snapshot);
  const usage = value("kv_cache_usage_perc")?.sum;
  put("server-running", value("num_requests_running")?.sum);
  put("server-waiting", value("num_requests_waiting")?.sum);
  put("server-kv", usage === undefined ? undefined : `${(100 * usage).toFixed(1)}%`);
  showTiers(tierTexts(snapshot.values));
  put("server-rate", told.rate?.toFixed(1));
  put("server-length", told.length?.toFixed(2));
  find("window").textContent = told.window;
  learn(value("spec_decode_num_accepted_tokens_per_pos_total")?.positions.length ?? 0);
  bars("server-positions", told.shares);
  find("synthetic").hidden = !snapshot.values.has("eagle3:synthetic_acceptance_length");
}

function showTiers(told) {
  for (const id of ["tiers", "hits"]) find(id).hidden = told === undefined;
  put("server-tiers", told?.used);
  put("server-hits", told?.hits);
}

function learn(k) {
  if (k === drafts) return;
  drafts = k;
  find("drafts").max = k;
  const count = Math.min(k, MOST_SHADES);
  const names = Array.from({ length: count }, (_, i) => [shade(i + 1), `draft ${i + 1}`]);
  find("legend").replaceChildren(...[...names, ["lookup", "looked up"], ["target", "target"]].map(legendItem));
  bars("answer-positions", []);
}

function legendItem([className, name]) {
  const item = document.createElement("li");
  item.className = `token ${className}`;
  item.textContent = name;
  return item;
}

function put(id, value) {
  find(id).textContent = value ?? "–";
}

// One row for each draft position of the server, or of accepted tokens.
function bars(id, shares) {
  const count = Math.max(drafts ?? 0, shares.length);
  const none = shares.length ? 0 : undefined;
  const rows = Array.from({ length: count }, (_, i) => bar(i + 1, shares[i] ?? none));
  find(id).replaceChildren(...rows);
}

function bar(position, share) {
  const row = document.createElement("tr");
  const [name, track, value] = ["th", "td", "td"].map((tag) => document.createElement(tag));
  const fill = document.createElement("div");
  name.scope = "row";
  name.textContent = `draft ${position}`;
  fill.className = shade(position);
  fill.style.width = `${100 * (share ?? 0)}%`;
  value.textContent = share === undefined ? "–" : `${(100 * share).toFixed(0)}%`;
  track.append(fill);
  row.append(name, track, value);
  return row;
}
