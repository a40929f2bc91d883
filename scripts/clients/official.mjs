// OpenAI's client for Node.js, called by official.py with a base URL, a key and a model.
import assert from "node:assert";
import OpenAI from "openai";

const [baseURL, apiKey, model] = process.argv.slice(2);
const client = new OpenAI({ baseURL, apiKey, maxRetries: 0 });
const messages = [{ role: "user", content: "What is the weather in Paris?" }];

const whole = await client.chat.completions.create({ model, messages, max_tokens: 12, temperature: 0 });
const stream = await client.chat.completions.create({ model, messages, max_tokens: 12, temperature: 0, stream: true });
let text = "";
for await (const event of stream) text += event.choices[0]?.delta?.content ?? "";
assert.strictEqual(text, whole.choices[0].message.content);

const parameters = { type: "object", properties: { city: { type: "string", maxLength: 20 } }, required: ["city"], additionalProperties: false };
const called = await client.chat.completions.create({
  model, messages, max_tokens: 100, tool_choice: "required",
  tools: [{ type: "function", function: { name: "weather", parameters } }],
});
assert.deepStrictEqual(Object.keys(JSON.parse(called.choices[0].message.tool_calls[0].function.arguments)), ["city"]);

await assert.rejects(client.chat.completions.create({ model: "none", messages }), OpenAI.NotFoundError);
