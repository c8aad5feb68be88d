// A copy of a view or query in IndexedDB. Each step changes rows and cursor in one transaction, so a read always sees the
// view at one position.

import { keyOf } from "./changes.js";
import { resultOf, problemOf } from "./database.js";
import { Backoff, HeadraceError, pause } from "./exchange.js";

const BLOCKED_MS = 30_000;

export class Copy extends EventTarget {
  #offline;
  #retryController = new AbortController();
  #isLeader = false;

  constructor(offline, name, view, query) {
    super();
    Object.assign(this, { name, view, query, state: "offline", error: null, position: null, key: null });
    this.#offline = offline;
  }

  get range() {
    return IDBKeyRange.bound([this.name], [this.name, []]);
  }

  /** Return the row, or undefined if it does not exist. A composite key is an object of its columns. */
  async get(key) {
    const { rows, copies } = this.#offline.begin(["rows", "copies"]);
    const saved = await resultOf(copies.get(this.name));
    if (!saved?.key) return undefined;
    const fullKey = saved.key.length === 1 && (key === null || typeof key !== "object") ? { [saved.key[0]]: key } : key;
    return resultOf(rows.get([this.name, keyOf(saved.key, fullKey)]));
  }

  /** Return all rows and their position. The position is null before the first step. */
  async all() {
    const { rows, copies } = this.#offline.begin(["rows", "copies"]);
    const [allRows, saved] = await Promise.all([resultOf(rows.getAll(this.range)), resultOf(copies.get(this.name))]);
    return { rows: allRows, position: saved?.position ?? null };
  }

  async changed() {
    const saved = await this.#load();
    Object.assign(this, { position: saved?.position ?? null, key: saved?.key ?? null });
    this.dispatchEvent(new Event("change"));
  }

  #load() {
    return resultOf(this.#offline.begin(["copies"]).copies.get(this.name));
  }

  setState(state, error) {
    Object.assign(this, { state, error });
    this.dispatchEvent(new Event("state"));
  }

  /** Send the state to a tab that was just opened. */
  announce() {
    if (this.#isLeader) this.#offline.publish({ copy: this.name, state: this.state, error: this.error });
  }

  retry() {
    this.#retryController.abort();
    this.#retryController = new AbortController();
  }

  #publish(state, error) {
    if (state !== this.state || error) this.#offline.publish({ copy: this.name, state, error: problemOf(error) });
  }

  async run(stopSignal) {
    const { headrace } = this.#offline;
    this.#isLeader = true;
    for (const backoff = new Backoff(); !stopSignal.aborted; ) {
      const retrySignal = this.#retryController.signal;
      const stream = new AbortController();
      let waitMs = null;
      try {
        const cursor = (await this.#load())?.cursor ?? null;
        const onstate = (state, error) => this.#publish(state, error);
        const signal = AbortSignal.any([stopSignal, stream.signal]);
        const options = { ...this.query, cursor, onstate, signal, retrySignal: () => this.#retryController.signal };
        let previousCursor = cursor;
        for await (const change of headrace.view(this.view).changes(options)) {
          if (stopSignal.aborted || !(await this.#apply(change, previousCursor))) break;
          previousCursor = change.cursor;
          backoff.reset();
          this.#offline.publish({ copy: this.name });
        }
      } catch (error) {
        if (stopSignal.aborted) return;
        // Retry later, because the cause can be fixed meanwhile: the token, the view, or the disk space.
        waitMs = BLOCKED_MS;
        if (error.code === "HR-SERVE-CURSOR" && (await this.#forgetCursor())) waitMs = 0;
        else this.#publish("failed", error);
      } finally {
        stream.abort();
      }
      await pause(waitMs ?? backoff.next(), AbortSignal.any([stopSignal, retrySignal]));
    }
  }

  /** Drop a cursor that the server no longer accepts. The rows remain until the next snapshot. Return false if no cursor is stored. */
  async #forgetCursor() {
    const { copies, done } = this.#offline.begin(["copies"], "readwrite");
    const saved = await resultOf(copies.get(this.name));
    if (saved?.cursor) copies.put({ ...saved, cursor: null });
    await done;
    return Boolean(saved?.cursor);
  }

  /** Apply a step. Return false if another tab has changed the copy meanwhile. */
  async #apply(change, previousCursor) {
    const { rowsMax } = this.#offline.limits;
    if (change.rows.length > rowsMax) throw tooLarge(rowsMax);
    const { rows, copies, done, abort } = this.#offline.begin(["rows", "copies"], "readwrite");
    done.catch(() => {});
    const saved = await resultOf(copies.get(this.name));
    if (!change.whole && (saved?.cursor ?? null) !== previousCursor) {
      abort();
      return false;
    }
    if (change.whole) rows.delete(this.range);
    for (const row of change.rows) rows.put(row, [this.name, keyOf(change.key, row)]);
    for (const gone of change.gone) rows.delete([this.name, keyOf(change.key, gone)]);
    // Count the rows only if they might exceed the limit.
    let atMost = (change.whole ? 0 : (saved?.atMost ?? Infinity)) + change.rows.length;
    if (atMost > rowsMax) atMost = await resultOf(rows.count(this.range));
    if (atMost > rowsMax) {
      abort();
      throw tooLarge(rowsMax);
    }
    copies.put({ name: this.name, key: change.key, cursor: change.cursor, position: change.position, atMost });
    await done;
    return true;
  }
}

function tooLarge(rowsMax) {
  const hint = "select fewer rows with a filter, or raise rowsMax";
  return new HeadraceError(`the copy would have more than ${rowsMax} rows`, { code: "HR-BROWSER-COPY-SIZE", hint });
}
