// One answer as it streams: its text, the origins of its tokens and its times.

import { figures, Writer } from "./tokens.js";

const ENDS = { length: "cut at max tokens", abort: "given up by the server" };

export class Answer {
  // element: makes the element of the message once there is something to show.
  constructor(element) {
    this.element = element;
    this.started = performance.now();
    this.writer = new Writer();
    this.origins = [];
    this.content = "";
  }

  take({ choices: [choice] }) {
    if (!choice) return;
    this.message ??= this.open();
    const told = choice.token_origins ?? [];
    this.writer.push(told, choice.logprobs?.content);
    this.origins.push(...told.map((token) => token.origin));
    this.last = performance.now();
    if (this.first === undefined && told.length) [this.first, this.early] = [this.last, told.length];
    this.write(choice.delta);
    this.reason = choice.finish_reason ?? this.reason;
  }

  // Until the answer is whole a screen reader waits.
  open() {
    const message = this.element();
    message.setAttribute("aria-busy", "true");
    return message;
  }

  // Servers name the reasoning in one of two ways, and some in both.
  write({ reasoning, reasoning_content, content }) {
    const thought = reasoning ?? reasoning_content;
    if (thought) {
      this.reasoning ??= folded(this.message);
      this.writer.write(thought, this.reasoning);
    }
    if (content) {
      this.text ??= block(this.message);
      this.writer.write(content, this.text);
      this.content += content;
    }
  }

  // Says how it ended, unless by itself; without a reason somebody stopped it.
  finish() {
    const told = this.reason === undefined ? "stopped" : ENDS[this.reason];
    this.message?.removeAttribute("aria-busy");
    if (!this.message || !told) return;
    const note = document.createElement("p");
    note.className = "note";
    note.textContent = told;
    this.message.append(note);
  }

  // Of these the rate counts tokens behind the first chunk, and the wait is until that.
  get figures() {
    const seconds = (this.last - this.first) / 1000;
    return {
      tokens: this.origins.length,
      rate: seconds > 0 ? (this.origins.length - this.early) / seconds : undefined,
      wait: this.first === undefined ? undefined : this.first - this.started,
      ...figures(this.origins),
    };
  }
}

function block(parent) {
  const element = document.createElement("div");
  element.className = "text";
  element.tabIndex = 0;
  parent.append(element);
  return element;
}

function folded(message) {
  const details = document.createElement("details");
  const summary = document.createElement("summary");
  summary.textContent = "reasoning";
  details.append(summary);
  message.prepend(details);
  return block(details);
}
