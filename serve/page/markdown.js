// Parses the Markdown that models write to blocks: ranges of the text, which keep token positions.
//
// A block is {kind, from, to, ...}; lines are [from, to) without their markers. Text that is
// appended changes only the blocks at the end.

const FENCE = /^ {0,3}(`{3,}|~{3,})[ \t]*([\w+#.-]*)[^`]*$/;
const HEADING = /^ {0,3}(#{1,6})[ \t]+/;
const RULE = /^ {0,3}([-*_])([ \t]*\1){2,}[ \t]*$/;
const QUOTE = /^ {0,3}> ?/;
const ITEM = /^([ \t]*)(?:[-*+]|(\d{1,9})[.)])[ \t]+/;
const ROW = /^ {0,3}\|.*\|[ \t]*$/;
const BETWEEN = /^ {0,3}\|([ \t]*:?-+:?[ \t]*\|)+[ \t]*$/;

export function blocks(text) {
  const lines = split(text);
  const found = [];
  for (let at = 0; at < lines.length; ) {
    const [block, next] = blank(lines[at]) ? [undefined, at + 1] : read(lines, at);
    if (block) found.push({ ...block, from: lines[at].from, to: lines[next - 1].to });
    at = next;
  }
  return found;
}

function split(text) {
  let from = 0;
  return text.split("\n").map((line) => {
    const to = from + line.length;
    const found = { line, from, to };
    from = to + 1;
    return found;
  });
}

const blank = ({ line }) => !line.trim();
const starts = ({ line }) => [FENCE, HEADING, RULE, QUOTE, ITEM].some((mark) => mark.test(line));

// Returns the block that begins at this line, and the index of the line after it.
function read(lines, at) {
  const { line, from, to } = lines[at];
  const fence = FENCE.exec(line);
  if (fence) return code(lines, at, fence);
  const heading = HEADING.exec(line);
  if (heading) {
    return [{ kind: "heading", level: heading[1].length, lines: [[from + heading[0].length, to]] }, at + 1];
  }
  if (RULE.test(line)) return [{ kind: "rule" }, at + 1];
  if (QUOTE.test(line)) return quote(lines, at);
  if (ITEM.test(line)) return list(lines, at);
  if (ROW.test(line) && at + 1 < lines.length && BETWEEN.test(lines[at + 1].line)) return table(lines, at);
  const end = until(lines, at + 1, (next) => blank(next) || starts(next));
  return [{ kind: "paragraph", lines: [[from, lines[end - 1].to]] }, end];
}

function until(lines, at, stop) {
  while (at < lines.length && !stop(lines[at])) at += 1;
  return at;
}

// Code ends at the closing fence, or at the end of an incomplete text.
function code(lines, at, [, mark, language]) {
  const closes = ({ line }) => line.trim().length >= mark.length && !line.trim().replaceAll(mark[0], "");
  const end = until(lines, at + 1, closes);
  const body = end > at + 1 ? [[lines[at + 1].from, lines[end - 1].to]] : [];
  return [{ kind: "code", language, lines: body }, Math.min(end + 1, lines.length)];
}

function quote(lines, at) {
  const end = until(lines, at, ({ line }) => !QUOTE.test(line));
  const inside = lines.slice(at, end).map(({ line, from, to }) => [from + QUOTE.exec(line)[0].length, to]);
  return [{ kind: "quote", lines: inside }, end];
}

// Items have a depth. Indented lines belong to the item above them.
function list(lines, at) {
  const items = [];
  let end = at;
  for (let next = at; next < lines.length; next += 1) {
    const { line, from, to } = lines[next];
    const mark = ITEM.exec(line);
    if (mark && !RULE.test(line)) {
      const depth = mark[1].replaceAll("\t", "    ").length;
      if (items.length && depth <= items[0].depth && !mark[2] !== !items[0].number) break;
      items.push({ depth, number: mark[2], lines: [[from + mark[0].length, to]] });
    } else if (/^[ \t]+\S/.test(line) && !FENCE.test(line)) {
      items.at(-1).lines.push([from + line.search(/\S/), to]);
    } else if (!blank(lines[next])) break;
    if (!blank(lines[next])) end = next + 1;
  }
  return [{ kind: "list", items }, end];
}

function table(lines, at) {
  const end = until(lines, at + 2, ({ line }) => !ROW.test(line));
  const rows = [lines[at], ...lines.slice(at + 2, end)].map(cells);
  return [{ kind: "table", rows }, end];
}

// Cells are between bars, without surrounding spaces. A bar after a backslash is text.
function cells({ line, from }) {
  const bars = [...line.matchAll(/(?<!\\)\|/g)].map((bar) => bar.index);
  return bars.slice(1).map((bar, i) => {
    const cell = line.slice(bars[i] + 1, bar);
    const begin = from + bars[i] + 1 + (cell.length - cell.trimStart().length);
    return [begin, Math.max(begin, from + bar - (cell.length - cell.trimEnd().length))];
  });
}
