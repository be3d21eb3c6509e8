// Request options, stored by the browser; the API key only for the lifetime of the tab.

const find = (id) => document.getElementById(id);
const KEPT = ["temperature", "max-tokens", "drafts", "logprobs", "markdown", "system", "tools"];
const PREFIX = "eagle3-jax ";
const number = (id) => (find(id).value === "" ? undefined : Number(find(id).value));

export const key = () => find("key").value;
export const markdown = () => find("markdown").checked;

// Restores the stored options, and stores changes.
export function keep() {
  for (const [id, store] of [...KEPT.map((id) => [id, "localStorage"]), ["key", "sessionStorage"]]) {
    const field = find(id);
    const name = field.type === "checkbox" ? "checked" : "value";
    const kept = guarded(() => window[store].getItem(PREFIX + id));
    if (kept != null) field[name] = name === "checked" ? kept === "true" : kept;
    field.addEventListener("input", () => guarded(() => window[store].setItem(PREFIX + id, field[name])));
  }
}

// Browsers with storage disabled throw an error.
function guarded(act) {
  try {
    return act();
  } catch {
    return undefined;
  }
}

// Fields of a request besides its messages; throws SyntaxError if the tools are not a JSON list.
export function options() {
  const k = number("drafts");
  return {
    temperature: number("temperature"),
    max_tokens: number("max-tokens"),
    speculative: k === undefined ? undefined : { num_tokens: k },
    logprobs: find("logprobs").checked || undefined,
    tools: tools(),
  };
}

export function instructions() {
  const content = find("system").value.trim();
  return content ? [{ role: "system", content }] : [];
}

function tools() {
  const text = find("tools").value.trim();
  const read = text ? JSON.parse(text) : undefined;
  if (read === undefined || Array.isArray(read)) return read;
  throw new SyntaxError("a list of tools was expected, [...]");
}
