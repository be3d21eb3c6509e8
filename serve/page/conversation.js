// The turns of the conversation: their messages for the next request, and their elements.

import { copyButton, make } from "./view.js";

export class Conversation {
  constructor(log) {
    this.log = log;
    this.turns = []; // {messages, element}, oldest first
  }

  get messages() {
    return this.turns.flatMap((turn) => turn.messages);
  }

  // Adds an element to the log. Without a turn it is not part of the next request.
  show(role) {
    this.log.querySelector(".empty")?.remove();
    const element = make("article", role);
    element.setAttribute("aria-label", role);
    this.log.append(element);
    return element;
  }

  add(element, ...messages) {
    const turn = { messages, element };
    this.turns.push(turn);
    return turn;
  }

  // Removes a turn and everything after it. Returns its messages.
  cut(turn) {
    while (turn.element.nextSibling) turn.element.nextSibling.remove();
    turn.element.remove();
    this.turns = this.turns.slice(0, this.turns.indexOf(turn));
    return turn.messages;
  }

  // Keeps a turn without an answer on the screen, but not in the next request.
  forget(turn) {
    this.turns = this.turns.filter((one) => one !== turn);
    turn.element.querySelector(".actions")?.remove();
  }

  clear() {
    this.turns = [];
    this.log.replaceChildren();
  }
}

// Adds buttons below a message: [[label, handler], ...]. text: copied by Copy.
export function actions(element, buttons, text) {
  const row = make("p", "actions");
  for (const [label, act] of buttons) {
    const button = make("button", "small");
    button.type = "button";
    button.textContent = label;
    button.addEventListener("click", act);
    row.append(button);
  }
  row.append(...copyButton(text));
  element.append(row);
}
