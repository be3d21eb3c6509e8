// Parses inline Markdown (code, emphasis, links) to ranges of the text.

const KINDS = [
  { kind: "escape", mark: /\\(?=[\\`*_#+\-.!|~>])/y },
  { kind: "code", mark: /(`+)(?!`)([^]*?[^`])\1(?!`)/y, leaf: true },
  { kind: "strong", mark: /(\*\*)(?=\S)([^]*?\S)\*\*/y },
  { kind: "strong", mark: /(__)(?=\S)([^]*?\S)__(?!\w)/y, word: true },
  { kind: "del", mark: /(~~)(?=\S)([^]*?\S)~~/y },
  { kind: "em", mark: /(\*)(?=[^\s*])([^*\n]*?[^\s*])?\*/y },
  { kind: "em", mark: /(_)(?=[^\s_])([^_\n]*?[^\s_])?_(?!\w)/y, word: true },
  { kind: "link", mark: /(!?\[)([^\]\n]+)\]\((https?:\/\/[^\s()]+)\)/y },
  { kind: "link", mark: /()(https?:\/\/[^\s<>()[\]`*|]*[^\s<>()[\]`*|.,;:!?'"])/y, leaf: true },
];

// The parts of text[from, to) in order: {kind: "text" | "code" | "em" | ..., from, to, parts, address}.
export function inline(text, from, to) {
  const found = [];
  const line = text.slice(0, to);
  let plain = from;
  for (let at = from; at < to; ) {
    const part = match(line, at);
    if (!part) {
      at += 1;
      continue;
    }
    if (plain < at) found.push({ kind: "text", from: plain, to: at });
    if (part.kind !== "escape") found.push(part);
    plain = part.kind === "escape" ? at + 1 : part.end;
    at = part.kind === "escape" ? at + 2 : part.end;
  }
  if (plain < to) found.push({ kind: "text", from: plain, to });
  return found;
}

function match(line, at) {
  if (!/[\\`*_~[!h]/.test(line[at])) return undefined;
  for (const { kind, mark, leaf, word } of KINDS) {
    mark.lastIndex = at;
    const found = (!word || !/\w/.test(line[at - 1] ?? "")) && mark.exec(line);
    if (!found) continue;
    if (kind === "escape") return { kind };
    const [whole, open, inner = "", address = inner] = found;
    const room = kind === "code" && /^ .*\S.* $/s.test(inner) ? 1 : 0; // spaces around code that begins with `
    const from = at + open.length + room;
    const to = at + open.length + inner.length - room;
    const parts = leaf ? [{ kind: "text", from, to }] : inline(line, from, to);
    return { kind, from, to, end: at + whole.length, parts, ...(kind === "link" && { address }) };
  }
  return undefined;
}
