// Renders a growing text as Markdown or plain; each token is a span that shows its origin.

import { inline } from "./inline.js";
import { blocks } from "./markdown.js";
import { shade, TokenText } from "./tokens.js";

export class View extends TokenText {
  // markdown: called at each drawing; returns whether to parse the text as Markdown.
  constructor(parent, markdown) {
    super();
    this.element = make("div", "text");
    this.element.tabIndex = 0;
    this.markdown = markdown;
    this.drawn = [];
    parent.append(this.element);
  }

  add(text, token) {
    super.add(text, token);
    this.frame ??= requestAnimationFrame(() => this.draw());
  }

  // Redraws only blocks that have changed: while a text grows, the last ones.
  draw() {
    this.frame = undefined;
    const found = this.markdown() ? blocks(this.text) : this.lines();
    const same = found.findIndex((block, i) => !alike(block, this.drawn[i]));
    const kept = same < 0 ? found.length : same;
    while (this.element.children.length > kept) this.element.lastChild.remove();
    for (const block of found.slice(kept)) this.element.append(this.block(block));
    this.drawn = found;
  }

  lines() {
    const ends = [...this.text.matchAll(/\n|$/g)].map((end) => end.index + end[0].length);
    return [...new Set(ends)].map((to, i, all) => ({ kind: "plain", from: all[i - 1] ?? 0, to }));
  }

  block(block) {
    switch (block.kind) {
      case "plain": return this.fill(make("span"), block.from, block.to);
      case "rule": return make("hr");
      case "heading": return this.written(make(`h${Math.min(6, block.level + 2)}`), block.lines);
      case "code": return this.code(block);
      case "quote": return this.written(make("blockquote"), block.lines);
      case "list": return this.list([...block.items]);
      case "table": return this.table(block.rows);
      default: return this.written(make("p"), block.lines);
    }
  }

  code({ language, lines }) {
    const box = make("figure", "code");
    const caption = make("figcaption");
    const pre = make("pre");
    const [from, to] = lines[0] ?? [0, 0];
    pre.tabIndex = 0;
    caption.append(language || "code", ...copyButton(() => this.text.slice(from, to)));
    pre.append(this.fill(make("code"), from, to));
    box.append(caption, pre);
    return box;
  }

  // Consumes the items of this depth, and puts deeper ones into nested lists.
  list(items) {
    const [{ depth, number }] = items;
    const box = make(number === undefined ? "ul" : "ol");
    if (number !== undefined) box.start = Number(number);
    while (items.length && items[0].depth >= depth) {
      if (items[0].depth > depth + 1) box.lastChild.append(this.list(items));
      else box.append(this.written(make("li"), items.shift().lines));
    }
    return box;
  }

  table([head, ...rows]) {
    const box = make("div", "table");
    const table = make("table");
    const row = (cells, tag) => {
      const line = make("tr");
      line.append(...cells.map((cell) => this.written(make(tag), [cell])));
      return line;
    };
    table.append(row(head, "th"), ...rows.map((cells) => row(cells, "td")));
    box.append(table);
    box.tabIndex = 0;
    return box;
  }

  written(into, lines) {
    lines.forEach(([from, to], i) => {
      if (i) into.append("\n");
      into.append(...inline(this.text, from, to).map((part) => this.part(part)));
    });
    return into;
  }

  part({ kind, from, to, parts, address }) {
    if (kind === "text") return this.fill(document.createDocumentFragment(), from, to);
    const element = make(kind === "link" ? "a" : kind);
    if (kind === "link") {
      Object.assign(element, { href: address, target: "_blank", rel: "noopener noreferrer", title: address });
    }
    element.append(...parts.map((part) => this.part(part)));
    return element;
  }

  fill(into, from, to) {
    for (const { text, token } of this.cut(from, to)) into.append(token ? span(text, token) : text);
    return into;
  }
}

export function make(tag, className = "") {
  const element = document.createElement(tag);
  if (className) element.className = className;
  return element;
}

// Returns a Copy button, or none if the browser does not allow pages to copy.
export function copyButton(text) {
  if (!navigator.clipboard) return [];
  const button = make("button", "small");
  button.type = "button";
  button.textContent = "Copy";
  button.addEventListener("click", async () => {
    await navigator.clipboard.writeText(text());
    button.textContent = "Copied";
    setTimeout(() => (button.textContent = "Copy"), 1500);
  });
  return [button];
}

function span(text, { origin, hint }) {
  const element = make("span", `token ${shade(origin)}`);
  element.textContent = text;
  element.dataset.hint = hint;
  return element;
}

function alike(one, other) {
  return other && one.kind === other.kind && one.from === other.from && one.to === other.to;
}
