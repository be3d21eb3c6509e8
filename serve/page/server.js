// State of the server: readiness, model and metrics.

import { snapshot } from "./metrics.js";
import { showServer } from "./panel.js";
import { key } from "./settings.js";
import { Failure, headers, reach } from "./stream.js";

const POLL_MS = 1000;
const find = (id) => document.getElementById(id);

let name; // of the model once it is known
let asked; // the key with which the name was requested

let images = false; // true if the model accepts images

export const model = () => name;
export const sees = () => images;

// Polls readiness and metrics, and asks once for the model.
export async function watchServer() {
  try {
    const now = await snapshot(key());
    state(now.ready ? "ready" : "wait", now.ready ? "ready" : "not ready");
    showServer(now);
    if (now.ready && name === undefined && key() !== asked) await identify();
  } catch (error) {
    if (!(error instanceof Failure)) throw error;
    state("down", "not reachable");
  } finally {
    setTimeout(watchServer, document.hidden ? 5 * POLL_MS : POLL_MS);
  }
}

// Writes only changes, because a screen reader reads every write.
function state(kind, text) {
  find("state").dataset.state = kind;
  if (find("state").textContent !== text) find("state").textContent = text;
}

async function identify() {
  const response = await reach("v1/models", { headers: headers(key()) });
  asked = key();
  if (!response.ok) return;
  const [card] = (await response.json()).data;
  name = card.id;
  images = card.input_modalities?.includes("image") ?? false;
  find("attach").hidden = !images;
  find("model").textContent = `${card.id} · context ${card.max_model_len}`;
}
