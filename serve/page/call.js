// A streamed tool call, and the result that the user enters for it.

import { make, View } from "./view.js";

export class Call {
  constructor(message) {
    this.box = make("details", "call");
    this.box.open = true;
    this.title = make("summary");
    this.box.append(this.title);
    this.text = new View(this.box, () => false);
    this.name = "";
    message.append(this.box);
  }

  take({ id, function: told = {} }, writer) {
    this.id ??= id;
    this.name += told.name ?? "";
    this.title.textContent = `calls ${this.name}`;
    if (told.arguments) writer.write(told.arguments, this.text);
  }

  finish() {
    this.text.draw();
    this.result = make("textarea", "result");
    this.result.rows = 1;
    this.result.placeholder = "result";
    this.result.setAttribute("aria-label", `Result of ${this.name}`);
    this.box.append(this.result);
  }

  get said() {
    return { id: this.id, type: "function", function: { name: this.name, arguments: this.text.text } };
  }

  // The tool's message, with its result.
  get answered() {
    return { role: "tool", tool_call_id: this.id, content: this.result.value };
  }
}
