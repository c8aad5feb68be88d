// Helpers for all modules of the client: errors, exact JSON, request ids, and pauses.

const PAUSE_MS_FIRST = 50;
const PAUSE_MS_MAX = 5_000;
const SERVER_PAUSE_MS_MAX = 60_000;
const TEXT_CHARS_MAX = 2_000;
const PROBLEM_BYTES_MAX = 64 * 1024;
const RESPONSE_BYTES_MAX = 64 * 1024 * 1024;
const PERMANENT = ["HR-BROWSER-UNFIT", "HR-BROWSER-CLOSED", "HR-BROWSER-COPY-SIZE", "HR-BROWSER-QUEUE-FULL"];

export class HeadraceError extends Error {
  constructor(message, { code = "HR-BROWSER", status = 0, hint = "", position = null, requestId = "", retryAfterMs = 0, cause } = {}) {
    super(message, { cause });
    this.name = "HeadraceError";
    Object.assign(this, { code, status, hint, position, requestId, retryAfterMs });
  }

  /** True if a retry can succeed. Only a Headrace server can refuse permanently; a proxy cannot. */
  get retriable() {
    if ([0, 408, 429].includes(this.status) || this.status >= 500) return !PERMANENT.includes(this.code);
    return !this.code.startsWith("HR-") || this.code === "HR-BROWSER";
  }
}

/** Convert a failed response to an error. A proxy can have sent it, with any body. */
export async function errorOf(response) {
  let problem = null;
  try {
    problem = parse(await textOf(response, PROBLEM_BYTES_MAX));
  } catch {
    // The body is not an error document of Headrace.
  }
  const textField = (name) => (typeof problem?.[name] === "string" ? problem[name].slice(0, TEXT_CHARS_MAX) : "");
  const seconds = response.headers.get("Retry-After") ?? "";
  return new HeadraceError(textField("detail") || `the server responded with ${response.status}`, {
    code: textField("code"),
    status: response.status,
    hint: textField("next") || (textField("code") ? "" : "the response is not from a Headrace server: check for a proxy"),
    position: problem?.position ?? null,
    requestId: response.headers.get("Headrace-Request-Id") ?? "",
    retryAfterMs: /^\d{1,9}$/.test(seconds) ? Number(seconds) * 1_000 : 0,
  });
}

/** Read the text of a response, up to a maximum size. */
export async function textOf(response, bytesMax = RESPONSE_BYTES_MAX) {
  const reader = response.body?.getReader();
  const decoder = new TextDecoder();
  let text = "";
  for (let bytes = 0; reader; ) {
    const { value, done } = await reader.read();
    if (done) break;
    bytes += value.length;
    if (bytes > bytesMax) {
      reader.cancel().catch(() => {});
      unfit(`the response exceeds ${bytesMax} bytes`);
    }
    text += decoder.decode(value, { stream: true });
  }
  return text + decoder.decode();
}

/** Parse JSON exactly: a number that a double cannot represent becomes a BigInt, or its text if it has a fraction. */
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

/** Encode JSON as in the log: NaN and infinities become text, not null. */
export function stringify(value) {
  return JSON.stringify(value, (_, field) => {
    if (typeof field === "bigint") return JSON.rawJSON ? JSON.rawJSON(String(field)) : unfit("this browser cannot encode BigInt");
    if (typeof field === "number" && !Number.isFinite(field)) return String(field);
    if (field instanceof Uint8Array) return btoa(Array.from(field, (byte) => String.fromCharCode(byte)).join(""));
    return field;
  });
}

export function unfit(message) {
  throw new HeadraceError(message, { code: "HR-BROWSER-UNFIT" });
}

export const newRequest = () =>
  Array.from(crypto.getRandomValues(new Uint8Array(16)), (byte) => byte.toString(16).padStart(2, "0")).join("");

/** A monotonic clock in milliseconds. */
export const steady = () => performance.now();

/** Wait until the time has passed, the browser is online again, or the signal aborts. */
export function pause(ms, signal) {
  return new Promise((resolve) => {
    const controller = new AbortController();
    const end = () => (clearTimeout(timer), controller.abort(), resolve());
    const timer = setTimeout(end, ms);
    globalThis.addEventListener?.("online", end, { signal: controller.signal });
    signal?.addEventListener("abort", end, { signal: controller.signal });
    if (signal?.aborted) end();
  });
}

/** Exponential backoff with jitter. A pause is at least the server's Retry-After, up to a limit. */
export class Backoff {
  #ms = PAUSE_MS_FIRST;

  next(serverMs = 0) {
    const ms = this.#ms * (0.5 + Math.random() / 2);
    this.#ms = Math.min(this.#ms * 2, PAUSE_MS_MAX);
    return Math.max(ms, Math.min(serverMs, SERVER_PAUSE_MS_MAX));
  }

  reset() {
    this.#ms = PAUSE_MS_FIRST;
  }
}
