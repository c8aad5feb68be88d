// A view's changes, as server-sent events: connections that break are made again, with no step lost and none twice.

import { Backoff, HeadraceError, parse, pause, stringify, unfit } from "./exchange.js";

const SILENCE_MS = 45_000;
const EVENT_CHARS_MAX = 32 * 1024 * 1024;

/** ``pathOf`` gives the path that goes on behind a cursor, ``now`` a signal that ends a pause; a step has at most
 * ``rowsMax`` rows. */
export async function* changes(headrace, pathOf, { cursor = null, signal, onstate = () => {}, now = () => signal, rowsMax = Infinity } = {}) {
  const backoff = new Backoff();
  const last = { cursor, position: null };
  while (!signal?.aborted) {
    const over = new AbortController();
    const stop = () => over.abort();
    signal?.addEventListener("abort", stop);
    // A connection over a network that is gone would be heard of much later.
    globalThis.addEventListener?.("offline", stop);
    const silence = new Silence(stop);
    let waitMs = null;
    try {
      const asked = { headers: { Accept: "text/event-stream" }, signal: over.signal };
      const answer = await headrace.fetch(pathOf(last.cursor), asked);
      if (!/^text\/event-stream\b/i.test(answer.headers.get("Content-Type") ?? ""))
        throw new HeadraceError("the answer is no stream of events");
      for await (const message of messages(answer.body, silence)) {
        if (message.type === "bye") {
          if (message.retry_ms === null) throw ended(message);
          waitMs = backoff.next(Number(message.retry_ms) || 0);
          break;
        }
        if (message.type === "hello") onstate("live");
        const change = step(message, last, rowsMax);
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
      signal?.removeEventListener("abort", stop);
      globalThis.removeEventListener?.("offline", stop);
      over.abort();
    }
    if (waitMs !== 0) await pause(waitMs ?? backoff.next(), AbortSignal.any([signal, now()].filter(Boolean)));
  }
}

function ended({ close, code, detail, next }) {
  const text = (one) => (typeof one === "string" ? one : "");
  return new HeadraceError(text(detail), { code: text(code), hint: text(next), status: close >= 4_400 && close < 4_600 ? close - 4_000 : 400 });
}

/** Ends a stream that says nothing, not even that it has nothing to say. */
class Silence {
  #timer;

  constructor(stop) {
    this.heard = () => (clearTimeout(this.#timer), (this.#timer = setTimeout(stop, SILENCE_MS)));
    this.heard();
  }

  end() {
    clearTimeout(this.#timer);
  }
}

/** Server-sent events, each when its empty line is there. */
async function* messages(body, silence) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  const rest = []; // Of a line, in pieces: a long one is not copied with every piece.
  const data = [];
  for (let chars = 0; ; ) {
    const { value, done } = await reader.read();
    if (done) throw new HeadraceError("the stream ended");
    silence.heard();
    chars += value.length;
    if (chars > EVENT_CHARS_MAX) unfit(`a message of more than ${EVENT_CHARS_MAX} characters`);
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

/** The text of a key, by which rows are told apart. */
export const keyOf = (key, row) => stringify(key.map((name) => (typeof row[name] === "bigint" ? String(row[name]) : row[name])));

/** A whole step, when its last message is there. ``last`` is where the one before ended. */
function step(message, last, rowsMax) {
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
    throw new HeadraceError(`there are more than ${rowsMax} rows`, { code: "HR-BROWSER-COPY-SIZE", hint: "ask for fewer: a filter, a prefix or a range" });
  if (!message.last) return null;
  const { key, whole, pending } = last;
  Object.assign(last, { whole: false, pending: new Map() });
  if (!whole && last.position && message.since && !follows(message.since, last.position)) {
    Object.assign(last, { cursor: null, position: null });
    throw new HeadraceError("a step does not begin where the one before ended");
  }
  const found = [...pending.values()];
  return {
    whole, key,
    rows: found.filter((one) => one.row).map((one) => one.row),
    gone: whole ? [] : found.filter((one) => one.gone).map((one) => one.gone),
    position: message.position,
    cursor: message.cursor,
  };
}

function follows(since, position) {
  const ends = Object.entries(since.offsets);
  const same = ends.length === Object.keys(position.offsets).length && ends.every(([at, end]) => position.offsets[at] === end);
  return same && since.batch === position.batch;
}
