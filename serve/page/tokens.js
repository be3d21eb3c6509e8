// Tokens on the page, each in a span that shows its origin, and what follows from the origins.

export const MOST_SHADES = 8;

export function shade(origin) {
  return origin ? `draft d${Math.min(origin, MOST_SHADES)}` : "target";
}

// Writes text as it comes, next to the tokens it is made of. Text is what the server shows; a token
// that it does not show, such as the mark behind the reasoning, is passed over.
export class Writer {
  constructor() {
    this.waiting = [];
    this.count = 0;
  }

  push(origins, logprobs) {
    origins.forEach(({ text, origin }, i) => {
      this.count += 1;
      this.waiting.push({ text, origin, number: this.count, logprob: logprobs?.[i]?.logprob });
    });
  }

  write(text, into) {
    while (text) {
      const next = this.waiting.findIndex(
        (token) => token.text && (text.startsWith(token.text) || token.text.startsWith(text)),
      );
      if (next < 0) {
        into.append(text);
        return;
      }
      this.waiting.splice(0, next);
      const token = this.waiting[0];
      const shown = token.text.slice(0, text.length);
      into.append(span(token, shown));
      text = text.slice(shown.length);
      token.text = token.text.slice(shown.length);
      if (!token.text) this.waiting.shift();
    }
  }
}

function span(token, text) {
  const element = document.createElement("span");
  element.className = `token ${shade(token.origin)}`;
  element.textContent = text;
  element.dataset.hint = describe(token);
  return element;
}

function describe({ number, origin, logprob }) {
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
