// The AI SDK with @ai-sdk/openai, whose models are Responses.

import assert from "node:assert";
import { writeFileSync } from "node:fs";
import { createRequire } from "node:module";
import { pathToFileURL } from "node:url";

// Packages are looked up where they are installed, which is the first argument.
const [, , home, url, file] = process.argv;
const installed = createRequire(`${home}/`);
const { generateText, Output, stepCountIs, streamText, tool } = await import(pathToFileURL(installed.resolve("ai")));
const { createOpenAI } = await import(pathToFileURL(installed.resolve("@ai-sdk/openai")));
const { z } = await import(pathToFileURL(installed.resolve("zod")));

const model = createOpenAI({ baseURL: `${url}/v1`, apiKey: "none" })("eagle3-demo");
const multiply = tool({
  description: "Multiplies.",
  inputSchema: z.object({ a: z.number(), b: z.number() }),
  execute: async ({ a, b }) => `product=${a * b}`,
});
const QUESTION = "How much is 6 times 7? Multiply with the tool.";

const steps = {
  async chat() {
    assert.equal((await generateText({ model, prompt: "Say hello." })).text, "Hello there.");
  },
  async stream() {
    const pieces = [];
    for await (const piece of streamText({ model, prompt: "Say hello." }).textStream) pieces.push(piece);
    assert.equal(pieces.join(""), "Hello there.");
    assert(pieces.length > 1);
  },
  async tools() {
    const { toolCalls } = await generateText({ model, prompt: QUESTION, tools: { multiply } });
    assert.deepEqual(toolCalls[0].input, { a: 6, b: 7 });
  },
  async structured() {
    const output = Output.object({ schema: z.object({ product: z.number() }) });
    const prompt = "How much is 6 times 7? Answer as JSON.";
    assert.deepEqual((await generateText({ model, prompt, output })).output, { product: 42 });
  },
  async agent_loop() {
    const { text } = await generateText({ model, prompt: QUESTION, tools: { multiply }, stopWhen: stepCountIs(3) });
    assert.equal(text, "It says product=42.");
  },
};

const outcome = {};
for (const [name, step] of Object.entries(steps)) {
  outcome[name] = await step().then(() => "completed", (error) => `${error.name}: ${error.message}`);
}
writeFileSync(file, JSON.stringify(outcome, undefined, 1));
