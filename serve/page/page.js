// The page: a conversation with the model, and the server's state.

import { Answer } from "./answer.js";
import { actions, Conversation } from "./conversation.js";
import { watchTokens } from "./hints.js";
import { content, images, picture, said, setImages, watchImages } from "./images.js";
import { showAnswer } from "./panel.js";
import { model, watchServer } from "./server.js";
import { instructions, keep, key, markdown, options } from "./settings.js";
import { chat, Failure } from "./stream.js";

const find = (id) => document.getElementById(id);
const log = find("messages");

const conversation = new Conversation(log);
let answers = []; // answers on the screen
let running; // AbortController of the answer in flight
let editing; // the turn that the next message replaces

function send() {
  const text = find("prompt").value.trim();
  const urls = images();
  if (!(text || urls.length) || running) return;
  const request = prepare();
  if (!request) return;
  if (editing) conversation.cut(editing);
  edit(undefined);
  compose("", []);
  const element = conversation.show("user");
  element.append(...urls.map(picture), text);
  const turn = conversation.add(element, { role: "user", content: content(text, urls) });
  actions(element, [["Edit", () => edit(turn)]], () => text);
  scroll();
  answer(request, turn);
}

// Fields of the next request besides its messages; undefined for an invalid option.
function prepare() {
  try {
    return { model: model(), ...options(), token_origins: true, stream: true };
  } catch (error) {
    fail(`The tools can't be read: ${error.message}`);
    return undefined;
  }
}

// question: the new turn. Without an answer, its text returns to the input field.
async function answer(request, question) {
  const messages = [...instructions(), ...conversation.messages];
  const current = new Answer(() => conversation.show("assistant"), markdown);
  const ours = new AbortController();
  answers.push(current);
  busy(ours);
  try {
    for await (const chunk of chat({ ...request, messages }, key(), ours.signal)) show(current, chunk);
  } catch (error) {
    if (error.name !== "AbortError") fail(error instanceof Failure ? error.message : `${error}`);
  }
  if (running === ours) busy(undefined);
  current.finish();
  if (!conversation.turns.includes(question)) return;
  if (current.said) close(current);
  else if (question.element.className === "user") takeBack(question);
  scroll();
  find("prompt").focus();
}

// Adds the answer to the conversation.
function close(current) {
  const turn = conversation.add(current.message, current.said);
  const more = current.calls.length ? [["Send results", () => giveResults(turn, current)]] : [];
  actions(current.message, [...more, ["Retry", () => retry(turn)]], () => current.said.content);
}

function retry(turn) {
  const request = !running && prepare();
  if (!request) return;
  conversation.cut(turn);
  answer(request, conversation.turns.at(-1));
}

// Sends the tool results that the user entered. Turns after the calls are dropped.
function giveResults(turn, { calls }) {
  const request = !running && prepare();
  if (!request) return;
  const next = conversation.turns[conversation.turns.indexOf(turn) + 1];
  if (next) conversation.cut(next);
  const element = conversation.show("tool");
  element.textContent = calls.map((call) => `${call.name}: ${call.result.value}`).join("\n");
  answer(request, conversation.add(element, ...calls.map((call) => call.answered)));
}

function takeBack(question) {
  const { text, urls } = said(question.messages[0].content);
  conversation.forget(question);
  if (!find("prompt").value && !images().length) compose(text, urls);
}

// Fills the input field for the next message.
function compose(text, urls) {
  find("prompt").value = text;
  setImages(urls);
}

// Lets the next message replace this turn and all after it; undefined: none.
function edit(turn) {
  editing?.element.classList.remove("editing");
  const { text, urls } = said(turn ? turn.messages[0].content : "");
  compose(text, urls);
  editing = turn;
  editing?.element.classList.add("editing");
  find("cancel").hidden = !editing;
  find("prompt").focus();
}

function fail(text) {
  const message = conversation.show("error");
  message.setAttribute("role", "alert");
  message.textContent = text;
  scroll();
}

function scroll() {
  log.scrollTop = log.scrollHeight;
}

function show(current, chunk) {
  const atEnd = log.scrollHeight - log.scrollTop - log.clientHeight < 80;
  current.take(chunk);
  showAnswer(current.figures);
  if (atEnd) requestAnimationFrame(scroll);
}

function busy(controller) {
  running = controller;
  find("send").hidden = Boolean(controller);
  find("stop").hidden = !controller;
}

function clear() {
  running?.abort();
  answers = [];
  edit(undefined);
  conversation.clear();
}

function typed(event) {
  const last = conversation.turns.findLast((turn) => turn.element.className === "user");
  if (event.key === "ArrowUp" && !event.target.value && last && !running) {
    event.preventDefault();
    edit(last);
  }
  if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
  event.preventDefault();
  send();
}

find("composer").addEventListener("submit", (event) => {
  event.preventDefault();
  send();
});
find("options").addEventListener("submit", (event) => event.preventDefault());
find("prompt").addEventListener("keydown", typed);
find("stop").addEventListener("click", () => running?.abort());
find("cancel").addEventListener("click", () => edit(undefined));
find("clear").addEventListener("click", clear);
find("markdown").addEventListener("input", () => answers.forEach((one) => one.draw()));
document.addEventListener("keydown", (event) => {
  if (event.key !== "Escape") return;
  if (running) running.abort();
  else if (editing) edit(undefined);
});
keep();
watchTokens(log);
watchImages(fail);
watchServer();
