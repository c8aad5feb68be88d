// The JavaScript client: reads rows, subscribes to changes, and writes records exactly once. It needs no build step and no
// dependencies. The types are in headrace.d.ts. Copies and writes that work offline are in offline.js.

import { changes } from "./changes.js";
import { Backoff, HeadraceError, newRequest, parse, pause, errorOf, steady, stringify, textOf, unfit } from "./exchange.js";

export { HeadraceError, newRequest, parse, stringify };

const RESPONSE_MS = 35_000;
const WAIT_MS_MAX = 25_000;
const ATTEMPTS_MAX = 5;
const UNRELATED_CODES = ["HR-SERVE-AFTER", "HR-SERVE-AFTER-OUTDATED"];

export class Headrace {
  #base;
  #token;
  #isLocal;
  #tokens = new Map(); // topic -> partition -> token of the newest write
  #unrelated = new Set();

  constructor(url = globalThis.location?.origin, { token, waitMs = 10_000, patienceMs = 30_000, plainText = false } = {}) {
    const address = new URL(url);
    if (!["http:", "https:"].includes(address.protocol)) unfit("the address must start with http or https");
    if (address.username || address.password || address.search || address.hash) unfit("the address must not have a user, query or fragment");
    const isLocal = address.hostname === "localhost" || address.hostname === "[::1]" || address.hostname.startsWith("127.");
    if (token && address.protocol === "http:" && !isLocal && !plainText) unfit("the token would be sent unencrypted: use https");
    this.#base = address.origin + address.pathname.replace(/\/+$/, "");
    this.#token = token;
    this.#isLocal = isLocal;
    this.waitMs = waitMs;
    this.patienceMs = patienceMs;
  }

  get base() {
    return this.#base;
  }

  /** False if the browser is offline and the server is not on this machine. */
  get mayReach() {
    return this.#isLocal || globalThis.navigator?.onLine !== false;
  }

  view(name) {
    return new View(this, name);
  }

  topic(name) {
    return new Topic(this, name);
  }

  async views() {
    return (await this.get("/v1/views")).views;
  }

  /** Return the response of a successful request. The token is sent only in a header, and only to this server. */
  async fetch(path, { method = "GET", headers = {}, body, signal } = {}) {
    if (!path.startsWith("/v1/")) unfit("a path must start with /v1/");
    const token = typeof this.#token === "function" ? await this.#token() : this.#token;
    if (token) headers = { ...headers, Authorization: `Bearer ${token}` };
    let response;
    try {
      response = await fetch(this.#base + path, {
        method, headers, body, signal,
        credentials: "omit", redirect: "error", referrerPolicy: "no-referrer", cache: "no-store",
      });
    } catch (cause) {
      throw new HeadraceError("the server does not respond", { code: "HR-BROWSER-UNREACHABLE", hint: "check the network connection", cause });
    }
    if (response.ok) return response;
    throw await errorOf(response);
  }

  async json(path, { timeoutMs = RESPONSE_MS, signal, ...more } = {}) {
    const timeoutSignal = AbortSignal.timeout(timeoutMs);
    try {
      const response = await this.fetch(path, { ...more, signal: signal ? AbortSignal.any([timeoutSignal, signal]) : timeoutSignal });
      return parse(await textOf(response));
    } catch (cause) {
      if (signal?.aborted) throw signal.reason;
      if (cause instanceof HeadraceError) throw cause;
      throw new HeadraceError("the response is incomplete, or not from a Headrace server", { cause });
    }
  }

  /** Send a GET request, and retry until a response arrives or ``patienceMs`` have passed. */
  async get(path, { signal, ...more } = {}) {
    const deadlineMs = steady() + this.patienceMs;
    for (const backoff = new Backoff(); ; ) {
      try {
        return await this.json(path, { signal, ...more });
      } catch (error) {
        const ms = backoff.next(error?.retryAfterMs);
        if (!error?.retriable || error.status === 504 || signal?.aborted || steady() + ms > deadlineMs) throw error;
        await pause(ms, signal);
      }
    }
  }

  /** Read a view. The result reflects the position token ``after`` and all earlier writes of this client. If ``after`` is null, read without waiting. */
  async read(view, path, { after = "", waitMs = this.waitMs, signal } = {}) {
    const deadlineMs = steady() + waitMs;
    for (;;) {
      const ownTokens = after === null ? [] : this.#ownTokens(view);
      const tokens = [after, ...ownTokens.map(([, text]) => text)].filter(Boolean).join(",");
      const leftMs = Math.min(Math.max(0, deadlineMs - steady()), WAIT_MS_MAX);
      const pathWithTokens = tokens ? withQuery(path, { after: tokens, wait: `${Math.floor(leftMs)}ms` }) : path;
      try {
        return await this.get(pathWithTokens, { signal, timeoutMs: leftMs + RESPONSE_MS });
      } catch (error) {
        const isLate = error.code === "HR-SERVE-LATE" && steady() < deadlineMs;
        if (!isLate && !(ownTokens.length && UNRELATED_CODES.includes(error.code) && (await this.#exclude(view, path, ownTokens)))) throw error;
      }
    }
  }

  #ownTokens(view) {
    return [...this.#tokens]
      .map(([topic, tokensByPartition]) => [topic, [...new Set(tokensByPartition.values())].join(",")])
      .filter(([topic, text]) => !this.#unrelated.has(JSON.stringify([view, topic, text])));
  }

  /** Exclude the writes to topics that the view does not derive from. Return true if any was excluded. */
  async #exclude(view, path, ownTokens) {
    let isExcluded = false;
    for (const [topic, after] of ownTokens) {
      try {
        await this.get(withQuery(path.split("?")[0], { after, wait: "0ms" }));
      } catch (error) {
        if (!UNRELATED_CODES.includes(error.code)) continue;
        // Dropping the entries is safe, because they are detected again when needed.
        if (this.#unrelated.size > 1_000) this.#unrelated.clear();
        this.#unrelated.add(JSON.stringify([view, topic, after]));
        isExcluded = true;
      }
    }
    return isExcluded;
  }

  /** Make later reads wait for this write. */
  noteWritten({ topic, records, token }) {
    const tokensByPartition = this.#tokens.get(topic) ?? new Map();
    for (const { partition } of records) tokensByPartition.set(partition, token);
    this.#tokens.set(topic, tokensByPartition);
  }

  /** Send a write once. The caller can safely repeat it, because it has a request id. */
  async send(topic, body, request, signal) {
    const written = await this.json(`/v1/topics/${encodeURIComponent(topic)}/records`, {
      method: "POST",
      headers: { "Content-Type": "application/json", "Idempotency-Key": request },
      body,
      signal,
    });
    // A response from another server does not prove that the write happened.
    const hasPartition = (record) => Number.isInteger(record?.partition);
    if (typeof written?.token !== "string" || written.topic !== topic || !Array.isArray(written.records) || !written.records.every(hasPartition))
      throw new HeadraceError("the response is not from a Headrace server");
    this.noteWritten(written);
    return { ...written, request };
  }

  toJSON() {
    return { base: this.#base };
  }
}

function withQuery(path, query) {
  const entries = Object.entries(query).filter(([, value]) => value !== undefined && value !== null && value !== false);
  if (!entries.length) return path;
  return `${path}${path.includes("?") ? "&" : "?"}${new URLSearchParams(entries.map(([name, value]) => [name, String(value)]))}`;
}

/** Return the link to the next page. Reject a link to the same page, because it would loop forever. */
const nextPage = (page, next) => (next && next === page ? unfit("the server's link to the next page leads to the same page") : next);

const keyText = (key) => (typeof key === "string" ? key : stringify(key));
const optionalKeyText = (key) => (key === undefined || key === null ? undefined : keyText(key));

function queryOf({ filter, sort, prefix, from, to, match, limit } = {}) {
  return { filter, sort, prefix: optionalKeyText(prefix), from: optionalKeyText(from), to: optionalKeyText(to), match, limit };
}

class View {
  constructor(headrace, name) {
    this.headrace = headrace;
    this.name = name;
    this.path = `/v1/views/${encodeURIComponent(name)}`;
  }

  describe(options) {
    return this.headrace.get(this.path, options);
  }

  /** Return the row, or null if it does not exist. A composite key is an object of its columns. */
  async get(key, options) {
    return (await this.getWithPosition(key, options)).row;
  }

  async getWithPosition(key, options) {
    const text = keyText(key);
    if (["", ".", ".."].includes(text)) {
      // A browser would resolve these keys as path segments, so read the row with a filter.
      const column = (await this.describe()).key[0].replaceAll("`", "``");
      const { rows, position } = await this.page({ ...options, filter: `\`${column}\` = ${JSON.stringify(text)}`, limit: 1 });
      return { row: rows[0] ?? null, position };
    }
    try {
      return await this.headrace.read(this.name, `${this.path}/rows/${encodeURIComponent(text)}`, options);
    } catch (error) {
      if (error.status !== 404 || !error.position) throw error;
      return { row: null, position: error.position };
    }
  }

  page(query = {}, next = null) {
    const path = next ?? withQuery(`${this.path}/rows`, { ...queryOf(query), same: query.same });
    return this.headrace.read(this.name, path, query);
  }

  /** Yield all rows, loaded page by page. */
  async *rows(query = {}) {
    for (let next = null, page; next || !page; ) {
      page = await this.page(query, next);
      yield* page.rows;
      next = nextPage(next, page.next);
    }
  }

  /** Return all rows at one position. Start again if the view changes between two pages. */
  async all(query = {}) {
    for (let attempt = 1; ; attempt++) {
      const rows = [];
      try {
        for (let next = null, page; next || !page; next = nextPage(next, page.next)) {
          page = await this.page({ limit: 1_000, ...query, same: true }, next);
          rows.push(...page.rows);
          if (!page.next) return { rows, position: page.position };
        }
      } catch (error) {
        if (error.code !== "HR-SERVE-MOVED" || attempt === ATTEMPTS_MAX) throw error;
      }
    }
  }

  /** Yield all rows, or the changes after the cursor. Then yield every further step, without losing or repeating one. */
  changes({ filter, sort, prefix, from, to, match, limit, ...options } = {}) {
    const query = queryOf({ filter, sort, prefix, from, to, match, limit });
    return changes(this.headrace, (cursor) => withQuery(`${this.path}/changes`, { ...query, cursor }), options);
  }
}

class Topic {
  constructor(headrace, name) {
    this.headrace = headrace;
    this.name = name;
  }

  /** Write one value, or several in one transaction. Retry until a response arrives; the server applies the write once. */
  async write(values, { request = newRequest(), signal } = {}) {
    return this.#send(upserts(values), request, signal);
  }

  /** Delete rows of a table. ``keys`` are objects of the key columns. */
  async delete(keys, { request = newRequest(), signal } = {}) {
    return this.#send(deletions(keys), request, signal);
  }

  async #send(body, request, signal) {
    const deadlineMs = steady() + this.headrace.patienceMs;
    let isUncertain = false;
    for (const backoff = new Backoff(); ; ) {
      try {
        return await this.headrace.send(this.name, body, request, signal);
      } catch (error) {
        const ms = backoff.next(error?.retryAfterMs);
        // If an earlier attempt had no response, it can have succeeded, even if the server refuses this attempt.
        if (!error?.retriable && !signal?.aborted && !isUncertain) throw error;
        isUncertain = true;
        if (signal?.aborted || !error?.retriable || steady() + ms > deadlineMs)
          throw new HeadraceError("it is unknown whether the write happened", {
            code: "HR-BROWSER-OUTCOME", hint: `repeat the write with the request id ${request}: the server applies it only once`, cause: error,
          });
        await pause(ms, signal);
      }
    }
  }
}

/** Encode the body of a write request. */
export const upserts = (values) => stringify({ records: (Array.isArray(values) ? values : [values]).map((value) => ({ value })) });
export const deletions = (keys) => stringify({ records: (Array.isArray(keys) ? keys : [keys]).map((key) => ({ key, value: null })) });
