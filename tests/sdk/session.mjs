// The openai package, unchanged, through the proxy: every step's result as one line of JSON.
import OpenAI from "openai";

const model = "gpt-4o";
const tools = [
  {
    type: "function",
    function: {
      name: "read_file",
      parameters: { type: "object", properties: { path: { type: "string" } }, required: ["path"] },
    },
  },
];
const client = new OpenAI({ maxRetries: 0 });

async function chat() {
  const answer = await client.chat.completions.create({ model, messages: [{ role: "user", content: "hello" }] });
  return { text: answer.choices[0].message.content, tokens: answer.usage.prompt_tokens };
}

async function stream() {
  const chunks = await client.chat.completions.create({
    model,
    messages: [{ role: "user", content: "hello" }],
    stream: true,
    stream_options: { include_usage: true },
  });
  let text = "";
  let tokens = 0;
  for await (const chunk of chunks) {
    text += chunk.choices[0]?.delta.content ?? "";
    tokens = chunk.usage?.prompt_tokens ?? tokens;
  }
  return { text, tokens };
}

async function useTools() {
  const messages = [{ role: "user", content: "Use the tool." }];
  const asked = await client.chat.completions.create({ model, messages, tools });
  const call = asked.choices[0].message.tool_calls[0];
  messages.push(asked.choices[0].message, { role: "tool", tool_call_id: call.id, content: "42 lines" });
  const answer = await client.chat.completions.create({ model, messages, tools });
  return { name: call.function.name, arguments: call.function.arguments, finish: answer.choices[0].finish_reason };
}

async function longSession() {
  const messages = [{ role: "user", content: "The task is: never delete src/main.py." }];
  const compactions = new Set();
  for (let round = 0; round < 40; round++) {
    const { data, response } = await client.chat.completions.create({ model, messages, tools }).withResponse();
    compactions.add(response.headers.get("x-compaction"));
    const call = { id: `call_${round}`, type: "function", function: { name: "read_file", arguments: "{}" } };
    messages.push(
      { role: "assistant", content: data.choices[0].message.content, tool_calls: [call] },
      { role: "tool", tool_call_id: call.id, content: `line ${round} of the file that was read, and so on. `.repeat(25) },
    );
  }
  messages.push({ role: "user", content: "What is the task?" });
  const answer = await client.chat.completions.create({ model, messages, tools });
  return { compactions: [...compactions].sort(), text: answer.choices[0].message.content };
}

const failing = (content, role = "user") => async () => {
  const messages = [{ role, content }, { role: "user", content: "hello" }];
  try {
    await client.chat.completions.create({ model, messages });
    return { name: "no error" };
  } catch (error) {
    return {
      name: error.constructor.name,
      status: error.status,
      code: error.code,
      message: error.message,
      retryAfter: error.headers?.get("retry-after") ?? null,
    };
  }
};

const steps = {
  chat,
  stream,
  tools: useTools,
  long: longSession,
  overflow: failing("too long ".repeat(20_000), "system"),
  unauthorized: failing("answer 401"),
  limited: failing("answer 429"),
};
for (const [name, step] of Object.entries(steps)) {
  console.log(JSON.stringify({ step: name, ...(await step()) }));
}
