// One streamed answer: its text, tool calls, token origins and times.

import { Call } from "./call.js";
import { figures, Writer } from "./tokens.js";
import { make, View } from "./view.js";

const ENDS = { length: "cut at max tokens", abort: "given up by the server" };

export class Answer {
  // open: creates the message's element, called at the first chunk.
  constructor(open, markdown) {
    this.open = open;
    this.markdown = markdown;
    this.started = performance.now();
    this.writer = new Writer();
    this.origins = [];
    this.calls = [];
  }

  take({ choices: [choice] }) {
    if (!choice) return;
    this.message ??= this.begin();
    const told = choice.token_origins ?? [];
    this.writer.push(told, choice.logprobs?.content);
    this.origins.push(...told.map((token) => token.origin));
    this.last = performance.now();
    if (this.first === undefined && told.length) [this.first, this.early] = [this.last, told.length];
    this.write(choice.delta);
    this.reason = choice.finish_reason ?? this.reason;
  }

  // aria-busy makes screen readers wait for the complete answer.
  begin() {
    const message = this.open();
    message.setAttribute("aria-busy", "true");
    return message;
  }

  // Servers use one of two names for the reasoning, some use both.
  write({ reasoning, reasoning_content, content, tool_calls }) {
    const thought = reasoning ?? reasoning_content;
    if (thought) {
      this.reasoning ??= new View(folded(this.message), this.markdown);
      this.writer.write(thought, this.reasoning);
    }
    if (content) {
      this.text ??= new View(this.message, this.markdown);
      this.writer.write(content, this.text);
    }
    for (const { index, ...part } of tool_calls ?? []) {
      this.calls[index] ??= new Call(this.message);
      this.calls[index].take(part, this.writer);
    }
  }

  draw() {
    for (const view of [this.reasoning, this.text]) view?.draw();
  }

  // Shows the finish reason unless it is normal. An answer without one was stopped by the user.
  finish() {
    this.draw();
    this.calls.forEach((call) => call.finish());
    const told = this.reason === undefined ? "stopped" : ENDS[this.reason];
    this.message?.removeAttribute("aria-busy");
    if (!this.message || !told) return;
    const note = make("p", "note");
    note.textContent = told;
    this.message.append(note);
  }

  // The message for the next request; undefined for an empty answer.
  get said() {
    if (!this.text && !this.calls.length) return undefined;
    const calls = this.calls.map((call) => call.said);
    return {
      role: "assistant",
      content: this.text?.text ?? "",
      ...(this.reasoning && { reasoning_content: this.reasoning.text }),
      ...(calls.length && { tool_calls: calls }),
    };
  }

  // rate: tokens per second after the first chunk. wait: milliseconds until the first chunk.
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

function folded(message) {
  const details = make("details");
  const summary = make("summary");
  summary.textContent = "reasoning";
  details.append(summary);
  message.prepend(details);
  return details;
}
