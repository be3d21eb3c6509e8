// Sends a request to the server, parses its events, and converts errors to sentences.

export class Failure extends Error {}

export function headers(key) {
  return key ? { Authorization: `Bearer ${key}` } : {};
}

// Posts a chat and yields its chunks until [DONE]; throws Failure with a readable message.
export async function* chat(body, key, signal) {
  const response = await reach("v1/chat/completions", {
    method: "POST",
    headers: { "Content-Type": "application/json", ...headers(key) },
    body: JSON.stringify(body),
    signal,
  });
  if (!response.ok) throw new Failure(await sentence(response));
  for await (const data of events(response.body)) {
    if (data === "[DONE]") return;
    const chunk = JSON.parse(data);
    if (chunk.error) throw new Failure(chunk.error.message);
    yield chunk;
  }
  throw new Failure("The connection ended before the answer did.");
}

export async function reach(path, options) {
  try {
    return await fetch(path, options);
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Failure("The server can't be reached: is it still running?");
  }
}

async function* events(stream) {
  const reader = stream.pipeThrough(new TextDecoderStream()).getReader();
  let text = "";
  for (;;) {
    const { value, done } = await read(reader);
    if (done) return;
    const parts = (text + value).split("\n\n");
    text = parts.pop();
    for (const part of parts) if (part.startsWith("data: ")) yield part.slice(6);
  }
}

async function read(reader) {
  try {
    return await reader.read();
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Failure("The connection broke before the answer was complete.");
  }
}

const ADVICE = {
  401: "Put the server's key into “API key”.",
  429: "Too many requests are waiting.",
  503: "It takes no requests now.",
};

async function sentence(response) {
  let told = response.statusText;
  try {
    told = (await response.json()).error.message;
  } catch {
    // A proxy has its own error format. The status suffices.
  }
  const wait = response.headers.get("Retry-After");
  const again = wait ? ` Try again in ${wait} s.` : "";
  return `${response.status}: ${told}. ${ADVICE[response.status] ?? ""}${again}`.trim();
}
