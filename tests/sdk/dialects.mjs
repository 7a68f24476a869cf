// The anthropic and openai packages, unchanged, through the proxy in the dialects after chat: one line of JSON a step.
import Anthropic from "@anthropic-ai/sdk";
import OpenAI from "openai";

const model = "gpt-4o";
const anthropic = new Anthropic({ maxRetries: 0 });
const openai = new OpenAI({ maxRetries: 0 });

const speakers = {
  async messages(items, stream) {
    const system = items.filter((item) => item.role === "system").map((item) => item.content).join("");
    const messages = items.filter((item) => item.role !== "system");
    const request = { model, max_tokens: 256, messages, ...(system && { system }) };
    const answer = stream
      ? await anthropic.messages.stream(request).finalMessage()
      : await anthropic.messages.create(request);
    return answer.content[0].text;
  },
  async responses(input, stream) {
    const answer = stream
      ? await openai.responses.stream({ model, input }).finalResponse()
      : await openai.responses.create({ model, input });
    return answer.output_text;
  },
};

async function longSession(says) {
  const items = [{ role: "user", content: "The task is: never delete src/main.py." }];
  for (let round = 0; round < 40; round++) {
    items.push({ role: "assistant", content: await says(items, round % 2 === 1) });
    items.push({ role: "user", content: `line ${round} of the file that was read, and so on. `.repeat(25) });
  }
  items.push({ role: "assistant", content: "Done." }, { role: "user", content: "What is the task?" });
  return { text: await says(items, false) };
}

async function failing(says, items, stream) {
  try {
    return { name: "no error", text: await says(items, stream) };
  } catch (error) {
    return { name: error.constructor.name, status: error.status ?? null, message: error.message };
  }
}

for (const [dialect, says] of Object.entries(speakers)) {
  const hello = [{ role: "user", content: "hello" }];
  const tooLong = [{ role: "system", content: "too long ".repeat(20_000) }, ...hello];
  const steps = {
    whole: async () => ({ text: await says(hello, false) }),
    stream: async () => ({ text: await says(hello, true) }),
    long: () => longSession(says),
    overflow: () => failing(says, tooLong, false),
    overflowStreaming: () => failing(says, tooLong, true),
    overloaded: () => failing(says, [{ role: "user", content: "answer 529" }], false),
    large: () => failing(says, [{ role: "user", content: "large ".repeat(100_000) }], false),
  };
  for (const [step, take] of Object.entries(steps)) {
    console.log(JSON.stringify({ dialect, step, ...(await take()) }));
  }
}
