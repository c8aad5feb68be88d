// What every part of the client needs: errors, JSON without loss, request ids, and waiting.

const PAUSE_MS_FIRST = 50;
const PAUSE_MS_MAX = 5_000;
const TOLD_MS_MAX = 60_000;
const TEXT_CHARS_MAX = 2_000;
const PROBLEM_BYTES_MAX = 64 * 1024;
const ANSWER_BYTES_MAX = 64 * 1024 * 1024;
const IN_VAIN = ["HR-BROWSER-UNFIT", "HR-BROWSER-CLOSED", "HR-BROWSER-COPY-SIZE", "HR-BROWSER-QUEUE-FULL"];

export class HeadraceError extends Error {
  constructor(message, { code = "HR-BROWSER", status = 0, hint = "", position = null, requestId = "", retryAfterMs = 0, cause } = {}) {
    super(message, { cause });
    this.name = "HeadraceError";
    Object.assign(this, { code, status, hint, position, requestId, retryAfterMs });
  }

  /** Whether the same may be asked again with hope. Only a server of ours says that something is in vain. */
  get retriable() {
    if ([0, 408, 429].includes(this.status) || this.status >= 500) return !IN_VAIN.includes(this.code);
    return !this.code.startsWith("HR-") || this.code === "HR-BROWSER";
  }
}

/** What an answer that is none says; something in between may have answered with anything. */
export async function refusal(answer) {
  let told = null;
  try {
    told = parse(await textOf(answer, PROBLEM_BYTES_MAX));
  } catch {
    // No problem of ours.
  }
  const said = (name) => (typeof told?.[name] === "string" ? told[name].slice(0, TEXT_CHARS_MAX) : "");
  const seconds = answer.headers.get("Retry-After") ?? "";
  return new HeadraceError(said("detail") || `the server answered with ${answer.status}`, {
    code: said("code"),
    status: answer.status,
    hint: said("next") || (said("code") ? "" : "what answered is no server of Headrace, or stands in front of one"),
    position: told?.position ?? null,
    requestId: answer.headers.get("Headrace-Request-Id") ?? "",
    retryAfterMs: /^\d{1,9}$/.test(seconds) ? Number(seconds) * 1_000 : 0,
  });
}

/** The text of an answer, if it is not too much. */
export async function textOf(answer, bytesMax = ANSWER_BYTES_MAX) {
  const reader = answer.body?.getReader();
  const decoder = new TextDecoder();
  let text = "";
  for (let bytes = 0; reader; ) {
    const { value, done } = await reader.read();
    if (done) break;
    bytes += value.length;
    if (bytes > bytesMax) {
      reader.cancel().catch(() => {});
      unfit(`an answer of more than ${bytesMax} bytes`);
    }
    text += decoder.decode(value, { stream: true });
  }
  return text + decoder.decode();
}

/** JSON without loss: a number that a double does not hold is a BigInt, or its text if it has a fraction. */
export function parse(text) {
  return JSON.parse(text, (_, value, context) =>
    typeof value === "number" && context ? exact(value, context.source) : value,
  );
}

function exact(value, source) {
  if (/^-?\d+$/.test(source)) return Number.isSafeInteger(value) ? value : BigInt(source);
  return digits(source) === digits(String(value)) ? value : source;
}

const digits = (text) => text.replace(/[eE].*$/, "").replace(/[-.]/g, "").replace(/^0+|0+$/g, "");

/** As the log writes it: nothing becomes null in silence. */
export function stringify(value) {
  return JSON.stringify(value, (_, one) => {
    if (typeof one === "bigint") return JSON.rawJSON ? JSON.rawJSON(String(one)) : unfit("this browser writes no BigInt");
    if (typeof one === "number" && !Number.isFinite(one)) return String(one);
    if (one instanceof Uint8Array) return btoa(Array.from(one, (byte) => String.fromCharCode(byte)).join(""));
    return one;
  });
}

export function unfit(message) {
  throw new HeadraceError(message, { code: "HR-BROWSER-UNFIT" });
}

export const newRequest = () =>
  Array.from(crypto.getRandomValues(new Uint8Array(16)), (byte) => byte.toString(16).padStart(2, "0")).join("");

/** A clock for time-outs, which nobody sets. */
export const steady = () => performance.now();

/** Until then, until the network is back, or until the signal says that it is over. */
export function pause(ms, signal) {
  return new Promise((resolve) => {
    const over = new AbortController();
    const end = () => (clearTimeout(timer), over.abort(), resolve());
    const timer = setTimeout(end, ms);
    globalThis.addEventListener?.("online", end, { signal: over.signal });
    signal?.addEventListener("abort", end, { signal: over.signal });
    if (signal?.aborted) end();
  });
}

/** How long to wait before the next try: longer each time, never all at once, and as long as the server asks for. */
export class Backoff {
  #ms = PAUSE_MS_FIRST;

  next(toldMs = 0) {
    const ms = this.#ms * (0.5 + Math.random() / 2);
    this.#ms = Math.min(this.#ms * 2, PAUSE_MS_MAX);
    return Math.max(ms, Math.min(toldMs, TOLD_MS_MAX));
  }

  reset() {
    this.#ms = PAUSE_MS_FIRST;
  }
}
