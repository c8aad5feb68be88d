// A copy of a view, or of a query of it, in IndexedDB. It moves by whole steps: its rows and its cursor change in one
// transaction, so that what is read is always what the view was at one position.

import { keyOf } from "./changes.js";
import { given, problemOf } from "./database.js";
import { Backoff, HeadraceError, pause } from "./exchange.js";

const BLOCKED_MS = 30_000;

export class Copy extends EventTarget {
  #offline;
  #now = new AbortController();
  #leads = false;

  constructor(offline, name, view, query) {
    super();
    Object.assign(this, { name, view, query, state: "offline", error: null, position: null, key: null });
    this.#offline = offline;
  }

  get range() {
    return IDBKeyRange.bound([this.name], [this.name, []]);
  }

  /** The row, or undefined. A key of several columns is an object of them. */
  async get(key) {
    const { rows, copies } = this.#offline.begin(["rows", "copies"]);
    const kept = await given(copies.get(this.name));
    if (!kept?.key) return undefined;
    const asked = kept.key.length === 1 && (key === null || typeof key !== "object") ? { [kept.key[0]]: key } : key;
    return given(rows.get([this.name, keyOf(kept.key, asked)]));
  }

  /** All rows, and the position that they are of; null where nothing has come yet. */
  async all() {
    const { rows, copies } = this.#offline.begin(["rows", "copies"]);
    const [found, kept] = await Promise.all([given(rows.getAll(this.range)), given(copies.get(this.name))]);
    return { rows: found, position: kept?.position ?? null };
  }

  async changed() {
    const kept = await this.#kept();
    Object.assign(this, { position: kept?.position ?? null, key: kept?.key ?? null });
    this.dispatchEvent(new Event("change"));
  }

  #kept() {
    return given(this.#offline.begin(["copies"]).copies.get(this.name));
  }

  stands(state, error) {
    Object.assign(this, { state, error });
    this.dispatchEvent(new Event("state"));
  }

  /** For a tab that has just come. */
  asked() {
    if (this.#leads) this.#offline.tell({ copy: this.name, state: this.state, error: this.error });
  }

  retry() {
    this.#now.abort();
    this.#now = new AbortController();
  }

  #tell(state, error) {
    if (state !== this.state || error) this.#offline.tell({ copy: this.name, state, error: problemOf(error) });
  }

  async run(over) {
    const { headrace } = this.#offline;
    this.#leads = true;
    for (const backoff = new Backoff(); !over.aborted; ) {
      const now = this.#now.signal;
      const stream = new AbortController();
      let waitMs = null;
      try {
        const cursor = (await this.#kept())?.cursor ?? null;
        const onstate = (state, error) => this.#tell(state, error);
        const signal = AbortSignal.any([over, stream.signal]);
        const asked = { ...this.query, cursor, onstate, signal, now: () => this.#now.signal };
        let before = cursor;
        for await (const change of headrace.view(this.view).changes(asked)) {
          if (over.aborted || !(await this.#apply(change, before))) break;
          before = change.cursor;
          backoff.reset();
          this.#offline.tell({ copy: this.name });
        }
      } catch (error) {
        if (over.aborted) return;
        // What failed may be mended meanwhile: a token, a view, room on the disk.
        waitMs = BLOCKED_MS;
        if (error.code === "HR-SERVE-CURSOR" && (await this.#forgetCursor())) waitMs = 0;
        else this.#tell("failed", error);
      } finally {
        stream.abort();
      }
      await pause(waitMs ?? backoff.next(), AbortSignal.any([over, now]));
    }
  }

  /** One that no server reads any more; rows stay until others come. False if there was none. */
  async #forgetCursor() {
    const { copies, done } = this.#offline.begin(["copies"], "readwrite");
    const kept = await given(copies.get(this.name));
    if (kept?.cursor) copies.put({ ...kept, cursor: null });
    await done;
    return Boolean(kept?.cursor);
  }

  /** False if another tab has moved the copy on. */
  async #apply(change, before) {
    const { rowsMax } = this.#offline.limits;
    if (change.rows.length > rowsMax) throw tooLarge(rowsMax);
    const { rows, copies, done, give } = this.#offline.begin(["rows", "copies"], "readwrite");
    done.catch(() => {});
    const kept = await given(copies.get(this.name));
    if (!change.whole && (kept?.cursor ?? null) !== before) {
      give();
      return false;
    }
    if (change.whole) rows.delete(this.range);
    for (const row of change.rows) rows.put(row, [this.name, keyOf(change.key, row)]);
    for (const gone of change.gone) rows.delete([this.name, keyOf(change.key, gone)]);
    // Counted only when there may be too many.
    let atMost = (change.whole ? 0 : (kept?.atMost ?? Infinity)) + change.rows.length;
    if (atMost > rowsMax) atMost = await given(rows.count(this.range));
    if (atMost > rowsMax) {
      give();
      throw tooLarge(rowsMax);
    }
    copies.put({ name: this.name, key: change.key, cursor: change.cursor, position: change.position, atMost });
    await done;
    return true;
  }
}

function tooLarge(rowsMax) {
  const hint = "ask for fewer with a filter, or raise rowsMax";
  return new HeadraceError(`the copy would have more than ${rowsMax} rows`, { code: "HR-BROWSER-COPY-SIZE", hint });
}
