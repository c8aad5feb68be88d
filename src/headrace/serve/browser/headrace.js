// A server of Headrace, from a page: rows, changes as they come, writes that count once. No build, no dependency.
// Types are in headrace.d.ts, copies that work offline in offline.js.

import { changes } from "./changes.js";
import { Backoff, HeadraceError, newRequest, parse, pause, refusal, steady, stringify, textOf, unfit } from "./exchange.js";

export { HeadraceError, newRequest, parse, stringify };

const ANSWER_MS = 35_000;
const WAIT_MS_MAX = 25_000;
const TRIES = 5;
const NO_MATTER = ["HR-SERVE-AFTER", "HR-SERVE-AFTER-OUTDATED"];

export class Headrace {
  #base;
  #token;
  #here;
  #tokens = new Map(); // topic -> partition -> the newest token that tells of it
  #noMatter = new Set();

  constructor(url = globalThis.location?.origin, { token, waitMs = 10_000, patienceMs = 30_000, plainText = false } = {}) {
    const found = new URL(url);
    if (!["http:", "https:"].includes(found.protocol)) unfit("the address must be one of http or https");
    if (found.username || found.password || found.search || found.hash) unfit("an address has no user, query or fragment");
    const here = found.hostname === "localhost" || found.hostname === "[::1]" || found.hostname.startsWith("127.");
    if (token && found.protocol === "http:" && !here && !plainText) unfit("a token would travel as it is: use https");
    this.#base = found.origin + found.pathname.replace(/\/+$/, "");
    this.#token = token;
    this.#here = here;
    this.waitMs = waitMs;
    this.patienceMs = patienceMs;
  }

  get base() {
    return this.#base;
  }

  /** False if the browser knows that there is no network on which the server could be. */
  get mayReach() {
    return this.#here || globalThis.navigator?.onLine !== false;
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

  /** An answer of the server, as the browser has it. The token goes into a header, to this server, and nowhere else. */
  async fetch(path, { method = "GET", headers = {}, body, signal } = {}) {
    if (!path.startsWith("/v1/")) unfit("a path of the server begins with /v1/");
    const token = typeof this.#token === "function" ? await this.#token() : this.#token;
    if (token) headers = { ...headers, Authorization: `Bearer ${token}` };
    let answer;
    try {
      answer = await fetch(this.#base + path, {
        method, headers, body, signal,
        credentials: "omit", redirect: "error", referrerPolicy: "no-referrer", cache: "no-store",
      });
    } catch (cause) {
      throw new HeadraceError("no answer came", { code: "HR-BROWSER-UNREACHABLE", hint: "is the network there?", cause });
    }
    if (answer.ok) return answer;
    throw await refusal(answer);
  }

  /** JSON of it. */
  async json(path, { timeoutMs = ANSWER_MS, signal, ...more } = {}) {
    const over = AbortSignal.timeout(timeoutMs);
    try {
      const answer = await this.fetch(path, { ...more, signal: signal ? AbortSignal.any([over, signal]) : over });
      return parse(await textOf(answer));
    } catch (cause) {
      if (signal?.aborted) throw signal.reason;
      if (cause instanceof HeadraceError) throw cause;
      throw new HeadraceError("the answer is none of a Headrace server, or half of one", { cause });
    }
  }

  /** What may be asked twice is, until there is an answer or no patience left. */
  async get(path, { signal, ...more } = {}) {
    const until = steady() + this.patienceMs;
    for (const backoff = new Backoff(); ; ) {
      try {
        return await this.json(path, { signal, ...more });
      } catch (error) {
        const ms = backoff.next(error?.retryAfterMs);
        if (!error?.retriable || error.status === 504 || signal?.aborted || steady() + ms > until) throw error;
        await pause(ms, signal);
      }
    }
  }

  /** A question to a view: it shows all that was written here before, and ``after``; null to wait for nothing. */
  async read(view, path, { after = "", waitMs = this.waitMs, signal } = {}) {
    const until = steady() + waitMs;
    for (;;) {
      const own = after === null ? [] : this.#own(view);
      const tokens = [after, ...own.map(([, text]) => text)].filter(Boolean).join(",");
      const leftMs = Math.min(Math.max(0, until - steady()), WAIT_MS_MAX);
      const asked = tokens ? withQuery(path, { after: tokens, wait: `${Math.floor(leftMs)}ms` }) : path;
      try {
        return await this.get(asked, { signal, timeoutMs: leftMs + ANSWER_MS });
      } catch (error) {
        const late = error.code === "HR-SERVE-LATE" && steady() < until;
        if (!late && !(own.length && NO_MATTER.includes(error.code) && (await this.#excepted(view, path, own)))) throw error;
      }
    }
  }

  #own(view) {
    return [...this.#tokens]
      .map(([topic, known]) => [topic, [...new Set(known.values())].join(",")])
      .filter(([topic, text]) => !this.#noMatter.has(JSON.stringify([view, topic, text])));
  }

  /** Finds out which writes the view has nothing to do with. */
  async #excepted(view, path, own) {
    let found = false;
    for (const [topic, after] of own) {
      try {
        await this.get(withQuery(path.split("?")[0], { after, wait: "0ms" }));
      } catch (error) {
        if (!NO_MATTER.includes(error.code)) continue;
        // They are found out again.
        if (this.#noMatter.size > 1_000) this.#noMatter.clear();
        this.#noMatter.add(JSON.stringify([view, topic, after]));
        found = true;
      }
    }
    return found;
  }

  /** Takes note of what was written. */
  noteWritten({ topic, records, token }) {
    const known = this.#tokens.get(topic) ?? new Map();
    for (const { partition } of records) known.set(partition, token);
    this.#tokens.set(topic, known);
  }

  /** Once, with an id: the caller may send it again. */
  async send(topic, body, request, signal) {
    const written = await this.json(`/v1/topics/${encodeURIComponent(topic)}/records`, {
      method: "POST",
      headers: { "Content-Type": "application/json", "Idempotency-Key": request },
      body,
      signal,
    });
    // What is no answer of ours says nothing about what was written.
    const isPlace = (one) => Number.isInteger(one?.partition);
    if (typeof written?.token !== "string" || written.topic !== topic || !Array.isArray(written.records) || !written.records.every(isPlace))
      throw new HeadraceError("the answer is none of a Headrace server");
    this.noteWritten(written);
    return { ...written, request };
  }

  toJSON() {
    return { base: this.#base };
  }
}

function withQuery(path, query) {
  const told = Object.entries(query).filter(([, value]) => value !== undefined && value !== null && value !== false);
  if (!told.length) return path;
  return `${path}${path.includes("?") ? "&" : "?"}${new URLSearchParams(told.map(([name, value]) => [name, String(value)]))}`;
}

/** The link to the next page; one to the same page would lead nowhere for ever. */
const following = (page, next) => (next && next === page ? unfit("the server's link leads to the same page again") : next);

const keyText = (key) => (typeof key === "string" ? key : stringify(key));
const keyOrNone = (key) => (key === undefined || key === null ? undefined : keyText(key));

function questionOf({ filter, sort, prefix, from, to, match, limit } = {}) {
  return { filter, sort, prefix: keyOrNone(prefix), from: keyOrNone(from), to: keyOrNone(to), match, limit };
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

  /** The row, or null. A key of several columns is an object of them. */
  async get(key, options) {
    return (await this.look(key, options)).row;
  }

  async look(key, options) {
    const text = keyText(key);
    if (["", ".", ".."].includes(text)) {
      // A browser takes these in a path for steps.
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

  page(question = {}, next = null) {
    const path = next ?? withQuery(`${this.path}/rows`, { ...questionOf(question), same: question.same });
    return this.headrace.read(this.name, path, question);
  }

  /** One after the other, a page at a time. */
  async *rows(question = {}) {
    for (let next = null, page; next || !page; ) {
      page = await this.page(question, next);
      yield* page.rows;
      next = following(next, page.next);
    }
  }

  /** All of one position; begun again where the view moves on between two pages. */
  async all(question = {}) {
    for (let tries = 1; ; tries++) {
      const rows = [];
      try {
        for (let next = null, page; next || !page; next = following(next, page.next)) {
          page = await this.page({ limit: 1_000, ...question, same: true }, next);
          rows.push(...page.rows);
          if (!page.next) return { rows, position: page.position };
        }
      } catch (error) {
        if (error.code !== "HR-SERVE-MOVED" || tries === TRIES) throw error;
      }
    }
  }

  /** All rows, or what came behind the cursor; then every step, for ever: no gap, no repeat. */
  changes({ filter, sort, prefix, from, to, match, limit, ...options } = {}) {
    const query = questionOf({ filter, sort, prefix, from, to, match, limit });
    return changes(this.headrace, (cursor) => withQuery(`${this.path}/changes`, { ...query, cursor }), options);
  }
}

class Topic {
  constructor(headrace, name) {
    this.headrace = headrace;
    this.name = name;
  }

  /** One value or several, all or none; sent until an answer comes, and counted once. */
  async write(values, { request = newRequest(), signal } = {}) {
    return this.#send(upserts(values), request, signal);
  }

  /** Rows of a table, by objects of their key. */
  async delete(keys, { request = newRequest(), signal } = {}) {
    return this.#send(deletions(keys), request, signal);
  }

  async #send(body, request, signal) {
    const until = steady() + this.headrace.patienceMs;
    let doubt = false;
    for (const backoff = new Backoff(); ; ) {
      try {
        return await this.headrace.send(this.name, body, request, signal);
      } catch (error) {
        const ms = backoff.next(error?.retryAfterMs);
        // What refuses it now says nothing of what became of it before.
        if (!error?.retriable && !signal?.aborted && !doubt) throw error;
        doubt = true;
        if (signal?.aborted || !error?.retriable || steady() + ms > until)
          throw new HeadraceError("whether it was written is not known", {
            code: "HR-BROWSER-OUTCOME", hint: `write the same again with the request ${request}`, cause: error,
          });
        await pause(ms, signal);
      }
    }
  }
}

/** Bodies of requests that write. */
export const upserts = (values) => stringify({ records: (Array.isArray(values) ? values : [values]).map((value) => ({ value })) });
export const deletions = (keys) => stringify({ records: (Array.isArray(keys) ? keys : [keys]).map((key) => ({ key, value: null })) });
