// Aligns the tokens of an answer with its text, and computes figures from their origins.

export const MOST_SHADES = 8;

export function shade(origin) {
  if (origin < 0) return "lookup";
  return origin ? `draft d${Math.min(origin, MOST_SHADES)}` : "target";
}

// A growing text, with the token of each of its pieces.
export class TokenText {
  constructor() {
    this.text = "";
    this.pieces = []; // {from, to, token}, in order without gaps; token is undefined if unknown
  }

  add(text, token) {
    const from = this.text.length;
    this.text += text;
    this.pieces.push({ from, to: this.text.length, token });
  }

  // Yields the parts of the pieces within [from, to): {text, token}.
  *cut(from, to) {
    for (let i = this.find(from); i < this.pieces.length && this.pieces[i].from < to; i += 1) {
      const piece = this.pieces[i];
      yield { text: this.text.slice(Math.max(from, piece.from), Math.min(to, piece.to)), token: piece.token };
    }
  }

  // Returns the index of the piece at an offset.
  find(place) {
    let [low, high] = [0, this.pieces.length];
    while (low < high) {
      const middle = (low + high) >> 1;
      if (this.pieces[middle].to <= place) low = middle + 1;
      else high = middle;
    }
    return low;
  }
}

// Aligns arriving text with its tokens. Tokens that the server does not show as text, such as the
// mark after the reasoning, are skipped.
export class Writer {
  constructor() {
    this.waiting = [];
    this.count = 0;
  }

  push(origins, logprobs) {
    origins.forEach(({ text, origin }, i) => {
      this.count += 1;
      const token = { origin, hint: describe(this.count, origin, logprobs?.[i]?.logprob) };
      this.waiting.push({ text, token });
    });
  }

  write(text, into) {
    while (text) {
      const next = this.waiting.findIndex(
        (entry) => entry.text && (text.startsWith(entry.text) || entry.text.startsWith(text)),
      );
      if (next < 0) {
        into.add(text);
        return;
      }
      this.waiting.splice(0, next);
      const entry = this.waiting[0];
      const shown = entry.text.slice(0, text.length);
      into.add(shown, entry.token);
      text = text.slice(shown.length);
      entry.text = entry.text.slice(shown.length);
      if (!entry.text) this.waiting.shift();
    }
  }
}

function describe(number, origin, logprob) {
  const source = origin < 0 ? "looked-up draft" : "draft";
  const from = origin ? `${source} ${Math.abs(origin)} of its round, accepted` : "chosen by the target";
  const chance = logprob === undefined ? "" : ` · log-prob ${logprob.toFixed(3)}`;
  return `token ${number} · ${from}${chance}`;
}

// Accept length and acceptance by position of the rounds after the prefill's token. Every round
// ends with a token of the target, except one that is cut off by the end of the answer.
export function figures(origins) {
  const targets = origins.filter((origin) => origin === 0).length;
  const rounds = targets - 1 + (origins.at(-1) ? 1 : 0);
  const positions = [];
  for (const origin of origins.map(Math.abs)) {
    if (origin) positions[origin - 1] = (positions[origin - 1] ?? 0) + 1;
  }
  return {
    length: rounds > 0 ? (origins.length - 1) / rounds : undefined,
    shares: rounds > 0 ? Array.from(positions, (count) => (count ?? 0) / rounds) : [],
  };
}
