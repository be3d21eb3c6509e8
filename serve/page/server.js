// What is known of the server: whether it is ready, its model and its figures.

import { snapshot } from "./metrics.js";
import { showServer } from "./panel.js";
import { key } from "./settings.js";
import { Failure, headers, reach } from "./stream.js";

const POLL_MS = 1000;
const find = (id) => document.getElementById(id);

let name; // of the model, once known
let asked; // the key with which the server was asked for it

let images = false; // whether it takes them

export const model = () => name;
export const sees = () => images;

// Asks again and again whether it is ready, for its figures, and once for its model.
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

// Only a change is written, because a screen reader reads what is.
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
