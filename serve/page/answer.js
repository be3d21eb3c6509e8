// One answer as it streams: its text, its calls of tools, the origins of its tokens and its times.

import { Call } from "./call.js";
import { figures, Writer } from "./tokens.js";
import { make, View } from "./view.js";

const ENDS = { length: "cut at max tokens", abort: "given up by the server" };

export class Answer {
  // open: makes the element of the message once there is something to show.
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

  // Until the answer is whole a screen reader waits.
  begin() {
    const message = this.open();
    message.setAttribute("aria-busy", "true");
    return message;
  }

  // Servers name the reasoning in one of two ways, and some in both.
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

  // Says how it ended, unless by itself; without a reason somebody stopped it.
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

  // As the next request repeats it; undefined where nothing was answered.
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

function folded(message) {
  const details = make("details");
  const summary = make("summary");
  summary.textContent = "reasoning";
  details.append(summary);
  message.prepend(details);
  return details;
}
