// Tokens of an answer beside the text they are made of, and what follows from their origins.

export const MOST_SHADES = 8;

export function shade(origin) {
  return origin ? `draft d${Math.min(origin, MOST_SHADES)}` : "target";
}

// A text as it grows, with the token of each of its pieces.
export class TokenText {
  constructor() {
    this.text = "";
    this.pieces = []; // {from, to, token}, in order and without gaps; token: undefined where none is known
  }

  add(text, token) {
    const from = this.text.length;
    this.text += text;
    this.pieces.push({ from, to: this.text.length, token });
  }

  // What of the pieces lies in [from, to): {text, token}.
  *cut(from, to) {
    for (let i = this.find(from); i < this.pieces.length && this.pieces[i].from < to; i += 1) {
      const piece = this.pieces[i];
      yield { text: this.text.slice(Math.max(from, piece.from), Math.min(to, piece.to)), token: piece.token };
    }
  }

  // The piece that a place is in.
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

// Lays text as it comes next to the tokens it is made of. Text is what the server shows; a token
// that it does not show, such as the mark behind the reasoning, is passed over.
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
  const from = origin ? `draft ${origin} of its round, accepted` : "chosen by the target";
  const chance = logprob === undefined ? "" : ` · log-prob ${logprob.toFixed(3)}`;
  return `token ${number} · ${from}${chance}`;
}

// The rounds behind the prefill's token: each ends with a token of the target, but for one that the
// end of the answer cut.
export function figures(origins) {
  const targets = origins.filter((origin) => origin === 0).length;
  const rounds = targets - 1 + (origins.at(-1) > 0 ? 1 : 0);
  const positions = [];
  for (const origin of origins) if (origin) positions[origin - 1] = (positions[origin - 1] ?? 0) + 1;
  return {
    length: rounds > 0 ? (origins.length - 1) / rounds : undefined,
    shares: rounds > 0 ? Array.from(positions, (count) => (count ?? 0) / rounds) : [],
  };
}
