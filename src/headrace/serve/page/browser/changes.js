// Reads the changes of a view from server-sent events, in steps. A step has all changes between two positions of the view.
// The generator reconnects after an error, without losing or repeating a step.

import { Backoff, HeadraceError, parse, pause, stringify, unfit } from "./exchange.js";

const SILENCE_MS = 45_000;
const EVENT_CHARS_MAX = 32 * 1024 * 1024;

/** ``pathOf`` returns the path for a cursor. ``retrySignal`` returns a signal that ends a pause. A step with more than ``rowsMax`` rows is an error. */
export async function* changes(headrace, pathOf, { cursor = null, signal, onstate = () => {}, retrySignal = () => signal, rowsMax = Infinity } = {}) {
  const backoff = new Backoff();
  const last = { cursor, position: null };
  while (!signal?.aborted) {
    const controller = new AbortController();
    const abort = () => controller.abort();
    signal?.addEventListener("abort", abort);
    // Without this listener, a lost network would be detected much later.
    globalThis.addEventListener?.("offline", abort);
    const silence = new SilenceTimer(abort);
    let waitMs = null;
    try {
      const request = { headers: { Accept: "text/event-stream" }, signal: controller.signal };
      const response = await headrace.fetch(pathOf(last.cursor), request);
      if (!/^text\/event-stream\b/i.test(response.headers.get("Content-Type") ?? ""))
        throw new HeadraceError("the response is not an event stream");
      for await (const message of readMessages(response.body, silence)) {
        if (message.type === "bye") {
          if (message.retry_ms === null) throw closeError(message);
          waitMs = backoff.next(Number(message.retry_ms) || 0);
          break;
        }
        if (message.type === "hello") onstate("live");
        const change = completeStep(message, last, rowsMax);
        if (!change) continue;
        backoff.reset();
        yield change;
        Object.assign(last, { cursor: change.cursor, position: change.position });
      }
    } catch (error) {
      if (signal?.aborted) return;
      if (error?.code === "HR-SERVE-CURSOR-OLD" && last.cursor) {
        Object.assign(last, { cursor: null, position: null });
        waitMs = 0;
      } else if (error instanceof HeadraceError && !error.retriable) throw error;
      else {
        waitMs = backoff.next(error?.retryAfterMs);
        onstate("offline", error);
      }
    } finally {
      silence.end();
      signal?.removeEventListener("abort", abort);
      globalThis.removeEventListener?.("offline", abort);
      controller.abort();
    }
    if (waitMs !== 0) await pause(waitMs ?? backoff.next(), AbortSignal.any([signal, retrySignal()].filter(Boolean)));
  }
}

function closeError({ close, code, detail, next }) {
  const text = (entry) => (typeof entry === "string" ? entry : "");
  return new HeadraceError(text(detail), { code: text(code), hint: text(next), status: close >= 4_400 && close < 4_600 ? close - 4_000 : 400 });
}

/** Aborts a stream that receives no bytes for too long, not even heartbeats. */
class SilenceTimer {
  #timer;

  constructor(abort) {
    this.restart = () => (clearTimeout(this.#timer), (this.#timer = setTimeout(abort, SILENCE_MS)));
    this.restart();
  }

  end() {
    clearTimeout(this.#timer);
  }
}

/** Parse server-sent events. An empty line ends an event. */
async function* readMessages(body, silence) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  const rest = []; // Chunks of the current line, joined only once, so that a long line is not copied repeatedly.
  const data = [];
  for (let chars = 0; ; ) {
    const { value, done } = await reader.read();
    if (done) throw new HeadraceError("the stream ended");
    silence.restart();
    chars += value.length;
    if (chars > EVENT_CHARS_MAX) unfit(`an event has more than ${EVENT_CHARS_MAX} characters`);
    if (!value.includes("\n")) {
      rest.push(value);
      continue;
    }
    const lines = (rest.splice(0).join("") + value).split("\n");
    rest.push(lines.pop());
    for (const raw of lines) {
      const line = raw.endsWith("\r") ? raw.slice(0, -1) : raw;
      if (line.startsWith("data:")) data.push(line.slice(line[5] === " " ? 6 : 5));
      if (line !== "") continue;
      chars = rest[0].length;
      if (data.length) yield parse(data.splice(0).join("\n"));
    }
  }
}

/** Return the text of a row's key, which identifies the row. */
export const keyOf = (key, row) => stringify(key.map((name) => (typeof row[name] === "bigint" ? String(row[name]) : row[name])));

/** Return the step if this message completes it, otherwise null. ``last`` has the end of the previous step. */
function completeStep(message, last, rowsMax) {
  switch (message.type) {
    case "hello":
      Object.assign(last, { key: message.key, whole: !message.resumed, pending: new Map() });
      return null;
    case "reset":
      Object.assign(last, { cursor: null, position: null, whole: true, pending: new Map() });
      return null;
    case "snapshot":
    case "changes":
      break;
    default:
      return null;
  }
  for (const row of message.rows) last.pending.set(keyOf(last.key, row), { row });
  for (const gone of message.gone) last.pending.set(keyOf(last.key, gone), { gone });
  if (last.pending.size > rowsMax)
    throw new HeadraceError(`the step has more than ${rowsMax} rows`, { code: "HR-BROWSER-COPY-SIZE", hint: "select fewer rows with a filter, a prefix or a range" });
  if (!message.last) return null;
  const { key, whole, pending } = last;
  Object.assign(last, { whole: false, pending: new Map() });
  if (!whole && last.position && message.since && !follows(message.since, last.position)) {
    Object.assign(last, { cursor: null, position: null });
    throw new HeadraceError("a step does not start where the previous step ended");
  }
  const changed = [...pending.values()];
  return {
    whole, key,
    rows: changed.filter((entry) => entry.row).map((entry) => entry.row),
    gone: whole ? [] : changed.filter((entry) => entry.gone).map((entry) => entry.gone),
    position: message.position,
    cursor: message.cursor,
  };
}

function follows(since, position) {
  const ends = Object.entries(since.offsets);
  const isSame = ends.length === Object.keys(position.offsets).length && ends.every(([at, end]) => position.offsets[at] === end);
  return isSame && since.batch === position.batch;
}
