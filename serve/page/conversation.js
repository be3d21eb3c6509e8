// What was said, as the next request repeats it, beside the elements that show it.

import { copyButton, make } from "./view.js";

export class Conversation {
  constructor(log) {
    this.log = log;
    this.turns = []; // {messages, element}, the oldest first
  }

  get messages() {
    return this.turns.flatMap((turn) => turn.messages);
  }

  // An element of the log; without a turn it is only shown.
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

  // Takes a turn and all that is shown from it on away, and says what it was.
  cut(turn) {
    while (turn.element.nextSibling) turn.element.nextSibling.remove();
    turn.element.remove();
    this.turns = this.turns.slice(0, this.turns.indexOf(turn));
    return turn.messages;
  }

  // A turn that got no answer stays on the screen, and is not said again.
  forget(turn) {
    this.turns = this.turns.filter((one) => one !== turn);
    turn.element.querySelector(".actions")?.remove();
  }

  clear() {
    this.turns = [];
    this.log.replaceChildren();
  }
}

// Buttons below a message: [[label, what it does], ...]; text: what Copy copies.
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
