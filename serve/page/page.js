// The page: a conversation with the model, and the server's state.

import { Answer } from "./answer.js";
import { watchTokens } from "./hints.js";
import { snapshot } from "./metrics.js";
import { showAnswer, showServer } from "./panel.js";
import { chat, Failure, headers, reach } from "./stream.js";

const POLL_MS = 1000;
const find = (id) => document.getElementById(id);
const number = (id) => (find(id).value === "" ? undefined : Number(find(id).value));
const key = () => find("key").value;

let conversation = []; // what the next request sends
let running; // the AbortController of the answer under way
let model;
let asked; // the key with which the server was asked for its model

function add(role) {
  find("messages").querySelector(".empty")?.remove();
  const message = document.createElement("article");
  message.className = role;
  message.setAttribute("aria-label", role);
  find("messages").append(message);
  scroll();
  return message;
}

function fail(text) {
  const message = add("error");
  message.setAttribute("role", "alert");
  message.textContent = text;
  scroll();
}

function scroll() {
  find("messages").scrollTop = find("messages").scrollHeight;
}

function request() {
  const k = number("drafts");
  return {
    model,
    messages: conversation,
    temperature: number("temperature"),
    max_tokens: number("max-tokens"),
    speculative: k === undefined ? undefined : { num_tokens: k },
    logprobs: find("logprobs").checked || undefined,
    token_origins: true,
    stream: true,
  };
}

async function send() {
  const text = find("prompt").value.trim();
  if (!text || running) return;
  find("prompt").value = "";
  add("user").textContent = text;
  const ours = conversation;
  ours.push({ role: "user", content: text });
  const answer = new Answer(() => add("assistant"));
  busy(new AbortController());
  try {
    for await (const chunk of chat(request(), key(), running.signal)) show(answer, chunk);
  } catch (error) {
    if (error.name !== "AbortError") fail(error instanceof Failure ? error.message : `${error}`);
  }
  busy(undefined);
  answer.finish();
  if (answer.content) ours.push({ role: "assistant", content: answer.content });
  else forget(ours);
  find("prompt").focus();
}

// A message without an answer is not part of the conversation: it can be sent again.
function forget(ours) {
  const { content } = ours.pop();
  if (ours === conversation && !find("prompt").value) find("prompt").value = content;
}

function show(answer, chunk) {
  const box = find("messages");
  const atEnd = box.scrollHeight - box.scrollTop - box.clientHeight < 80;
  answer.take(chunk);
  showAnswer(answer.figures);
  if (atEnd) scroll();
}

function busy(controller) {
  running = controller;
  find("send").hidden = Boolean(controller);
  find("stop").hidden = !controller;
}

async function poll() {
  try {
    const now = await snapshot(key());
    state(now.ready ? "ready" : "wait", now.ready ? "ready" : "not ready");
    showServer(now);
    if (now.ready && model === undefined && key() !== asked) await identify();
  } catch (error) {
    if (!(error instanceof Failure)) throw error;
    state("down", "not reachable");
  } finally {
    setTimeout(poll, document.hidden ? 5 * POLL_MS : POLL_MS);
  }
}

// Only a change is written, because a screen reader reads what is.
function state(name, text) {
  find("state").dataset.state = name;
  if (find("state").textContent !== text) find("state").textContent = text;
}

async function identify() {
  const response = await reach("v1/models", { headers: headers(key()) });
  asked = key();
  if (!response.ok) return;
  const [card] = (await response.json()).data;
  model = card.id;
  find("model").textContent = `${card.id} · context ${card.max_model_len}`;
}

function clear() {
  running?.abort();
  conversation = [];
  find("messages").replaceChildren();
  find("prompt").focus();
}

find("composer").addEventListener("submit", (event) => {
  event.preventDefault();
  send();
});
find("options").addEventListener("submit", (event) => event.preventDefault());
find("prompt").addEventListener("keydown", (event) => {
  if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
  event.preventDefault();
  send();
});
find("stop").addEventListener("click", () => running?.abort());
find("clear").addEventListener("click", clear);
document.addEventListener("keydown", (event) => {
  if (event.key === "Escape") running?.abort();
});
watchTokens(find("messages"));
poll();
