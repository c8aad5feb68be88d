// Asking the server: JSON, lines and events, with the token of whoever looks at the page.

import { parse } from "/client/exchange.js";
import { stored } from "/page/stored.js";

const TOKEN = "headrace.token";
const LINE_CHARS_MAX = 64 * 1024 * 1024;

/** What went wrong, with the next step. `status` is 0 where no answer came. */
export class Problem extends Error {
  constructor({ code = "", title = "", detail = "", hint = "", status = 0 }) {
    super(detail || title);
    this.name = "Problem";
    Object.assign(this, { code, title, detail, hint, status });
  }
}

let asking = null;
let ask = () => Promise.resolve(false);

/** The frame gives a function that asks for a token, and says whether one was given. */
export function onTokenWanted(wanted) {
  ask = wanted;
}

/** Whether somebody is being asked for a token right now. */
export const isAsking = () => asking !== null;

const session = stored(() => sessionStorage);

export const token = { get: () => session.get(TOKEN) ?? "", set: (text) => session.set(TOKEN, text || null) };

function address(path, params) {
  const query = new URLSearchParams();
  for (const [name, value] of Object.entries(params ?? {})) {
    if (value !== undefined && value !== null && value !== "") query.append(name, String(value));
  }
  const text = query.toString();
  return text ? `${path}?${text}` : path;
}

async function problemOf(answer) {
  let told = {};
  try {
    told = JSON.parse(await answer.text());
  } catch {
    // Something in between may have answered with anything.
  }
  return new Problem({
    status: answer.status,
    code: told.code ?? "",
    title: told.title ?? answer.statusText,
    detail: told.detail ?? `the server answered with ${answer.status}`,
    hint: told.next ?? "",
  });
}

async function request(path, options = {}) {
  for (;;) {
    const sent = token.get();
    const headers = { ...options.headers, ...(sent ? { Authorization: `Bearer ${sent}` } : {}) };
    let answer;
    try {
      answer = await fetch(path, { ...options, headers, cache: "no-store", credentials: "omit" });
    } catch (error) {
      if (error.name === "AbortError") throw error;
      const detail = "the server does not answer";
      throw new Problem({ code: "HR-PAGE-NO-ANSWER", title: "No answer", detail, hint: "see whether it runs; the page tries again" });
    }
    if (answer.ok) return answer;
    const problem = await problemOf(answer);
    if (problem.status !== 401) throw problem;
    if (token.get() !== sent) continue; // One was given meanwhile.
    // Requests that wait for a token wait for the same one, and are then repeated: none was carried out.
    asking ??= Promise.resolve(ask(sent !== "")).finally(() => (asking = null));
    if (!(await asking)) throw problem;
  }
}

const posted = (body, options) => ({
  ...options,
  method: "POST",
  headers: { "Content-Type": "application/json", ...options?.headers },
  body: typeof body === "string" ? body : JSON.stringify(body ?? {}),
});

async function json(answer, exact) {
  const text = await answer.text();
  return text === "" ? null : exact ? parse(text) : JSON.parse(text);
}

/** Calls `onLine` with each line of an answer; what is left without an end of line counts as one. */
async function readLines(answer, onLine) {
  const reader = answer.body.getReader();
  const decoder = new TextDecoder();
  let rest = "";
  try {
    for (;;) {
      const { value, done } = await reader.read();
      rest += done ? decoder.decode() : decoder.decode(value, { stream: true });
      const lines = rest.split("\n");
      rest = done ? "" : lines.pop();
      if (rest.length > LINE_CHARS_MAX) throw new Problem({ detail: `a line of more than ${LINE_CHARS_MAX} characters` });
      for (const line of lines) onLine(line.replace(/\r$/, ""));
      if (done) return;
    }
  } catch (error) {
    if (error.name === "AbortError" || error instanceof Problem) throw error;
    throw new Problem({ code: "HR-PAGE-CUT", title: "Cut off", detail: "the answer ended in its middle", hint: "ask again" });
  } finally {
    reader.cancel().catch(() => {});
  }
}

export const api = {
  /** `exact`: numbers that a double does not hold come as BigInt, or as their text. */
  get: async (path, params, { signal, exact = false } = {}) => json(await request(address(path, params), { signal }), exact),

  /** A body that is a text is JSON already. */
  post: async (path, body, { signal, headers, exact = false } = {}) => json(await request(path, posted(body, { signal, headers })), exact),

  /** NDJSON: `onLine` takes each line as it comes. With a body of null it is a GET. */
  lines: async (path, body, onLine, signal) => {
    const answer = await request(path, body === null ? { signal } : posted(body, { signal }));
    await readLines(answer, (line) => line && onLine(JSON.parse(line)));
  },

  /** Server-sent events: `onEvent` takes the data of each. EventSource cannot send a token. */
  events: async (path, params, onEvent, signal) => {
    const answer = await request(address(path, params), { signal, headers: { Accept: "text/event-stream" } });
    let data = [];
    await readLines(answer, (line) => {
      if (line.startsWith("data:")) data.push(line.slice(5).trimStart());
      else if (line === "" && data.length > 0) {
        const text = data.join("\n");
        data = [];
        onEvent(JSON.parse(text));
      }
    });
  },
};
