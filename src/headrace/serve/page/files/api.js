// Sends requests to the server with the token of this tab, and reads JSON, lines or events.

import { parse } from "/client/exchange.js";
import { safeStorage } from "/page/storage.js";

const TOKEN = "headrace.token";
const LINE_CHARS_MAX = 64 * 1024 * 1024;

/** An error with a hint. `status` is 0 if no response arrived. */
export class Problem extends Error {
  constructor({ code = "", title = "", detail = "", hint = "", status = 0 }) {
    super(detail || title);
    this.name = "Problem";
    Object.assign(this, { code, title, detail, hint, status });
  }
}

let pendingPrompt = null;
let promptForToken = () => Promise.resolve(false);

/** Set the function that prompts for a token and resolves to true if the user entered one. */
export function onTokenNeeded(prompt) {
  promptForToken = prompt;
}

export const isPromptingForToken = () => pendingPrompt !== null;

const session = safeStorage(() => sessionStorage);

export const token = { get: () => session.get(TOKEN) ?? "", set: (text) => session.set(TOKEN, text || null) };

function address(path, params) {
  const query = new URLSearchParams();
  for (const [name, value] of Object.entries(params ?? {})) {
    if (value !== undefined && value !== null && value !== "") query.append(name, String(value));
  }
  const text = query.toString();
  return text ? `${path}?${text}` : path;
}

async function problemOf(response) {
  let body = {};
  try {
    body = JSON.parse(await response.text());
  } catch {
    // A proxy can respond with any body.
  }
  return new Problem({
    status: response.status,
    code: body.code ?? "",
    title: body.title ?? response.statusText,
    detail: body.detail ?? `the server responded with ${response.status}`,
    hint: body.next ?? "",
  });
}

async function request(path, options = {}) {
  for (;;) {
    const sentToken = token.get();
    const headers = { ...options.headers, ...(sentToken ? { Authorization: `Bearer ${sentToken}` } : {}) };
    let response;
    try {
      response = await fetch(path, { ...options, headers, cache: "no-store", credentials: "omit" });
    } catch (error) {
      if (error.name === "AbortError") throw error;
      const detail = "the server does not respond";
      throw new Problem({ code: "HR-PAGE-NO-ANSWER", title: "No response", detail, hint: "check that the server runs; the page retries" });
    }
    if (response.ok) return response;
    const problem = await problemOf(response);
    if (problem.status !== 401) throw problem;
    if (token.get() !== sentToken) continue; // The user entered a token for another request meanwhile.
    // All waiting requests share one prompt. They can then be repeated, because the server executed none of them.
    pendingPrompt ??= Promise.resolve(promptForToken(sentToken !== "")).finally(() => (pendingPrompt = null));
    if (!(await pendingPrompt)) throw problem;
  }
}

const postOptions = (body, options) => ({
  ...options,
  method: "POST",
  headers: { "Content-Type": "application/json", ...options?.headers },
  body: typeof body === "string" ? body : JSON.stringify(body ?? {}),
});

async function json(response, exact) {
  const text = await response.text();
  return text === "" ? null : exact ? parse(text) : JSON.parse(text);
}

/** Call `onLine` with each line of a response. The last line needs no line break. */
async function readLines(response, onLine) {
  const reader = response.body.getReader();
  const decoder = new TextDecoder();
  let rest = "";
  try {
    for (;;) {
      const { value, done } = await reader.read();
      rest += done ? decoder.decode() : decoder.decode(value, { stream: true });
      const lines = rest.split("\n");
      rest = done ? "" : lines.pop();
      if (rest.length > LINE_CHARS_MAX) throw new Problem({ detail: `a line of the response has more than ${LINE_CHARS_MAX} characters` });
      for (const line of lines) onLine(line.replace(/\r$/, ""));
      if (done) return;
    }
  } catch (error) {
    if (error.name === "AbortError" || error instanceof Problem) throw error;
    throw new Problem({ code: "HR-PAGE-CUT", title: "Connection lost", detail: "the connection was lost before the end of the response", hint: "retry" });
  } finally {
    reader.cancel().catch(() => {});
  }
}

export const api = {
  /** With `exact`, a number that a double cannot represent becomes a BigInt or a text. */
  get: async (path, params, { signal, exact = false } = {}) => json(await request(address(path, params), { signal }), exact),

  /** A string body must be JSON text. It is sent unchanged. */
  post: async (path, body, { signal, headers, exact = false } = {}) => json(await request(path, postOptions(body, { signal, headers })), exact),

  /** Read NDJSON, and call `onLine` with each line as it arrives. With a null body, send a GET request. */
  lines: async (path, body, onLine, signal) => {
    const response = await request(path, body === null ? { signal } : postOptions(body, { signal }));
    await readLines(response, (line) => line && onLine(JSON.parse(line)));
  },

  /** Read server-sent events, and call `onEvent` with the data of each. The browser's EventSource cannot send a token. */
  events: async (path, params, onEvent, signal) => {
    const response = await request(address(path, params), { signal, headers: { Accept: "text/event-stream" } });
    let data = [];
    await readLines(response, (line) => {
      if (line.startsWith("data:")) data.push(line.slice(5).trimStart());
      else if (line === "" && data.length > 0) {
        const text = data.join("\n");
        data = [];
        onEvent(JSON.parse(text));
      }
    });
  },
};
