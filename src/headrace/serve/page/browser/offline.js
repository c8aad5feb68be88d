// Stores copies of views for offline reads, and writes that wait for the network, in IndexedDB. All tabs share them. One
// tab does the work and notifies the others. Tokens are never stored.

import { Copy } from "./copy.js";
import { completionOf, resultOf, openDatabase } from "./database.js";
import { HeadraceError, pause } from "./exchange.js";
import { Outbox } from "./outbox.js";

const FAULT_MS = 5_000;

export class Offline extends EventTarget {
  #database;
  #channel;
  #closeController = new AbortController();
  #copies = new Map();

  /** ``name`` separates the users of one browser, because they can have access to different rows. */
  static async open(headrace, { name = "default", ...limits } = {}) {
    const databaseName = `headrace ${headrace.base} ${name}`;
    const database = await openDatabase(databaseName);
    const store = database.transaction("written").objectStore("written");
    const [keys, tokens] = await Promise.all([resultOf(store.getAllKeys()), resultOf(store.getAll())]);
    keys.forEach(([topic, partition], at) => headrace.noteWritten({ topic, records: [{ partition }], token: tokens[at] }));
    return new Offline(headrace, databaseName, database, limits);
  }

  constructor(headrace, name, database, limits) {
    super();
    this.headrace = headrace;
    this.name = name;
    this.#database = database;
    database.onversionchange = () => this.close();
    database.onclose = () => this.#fault(new HeadraceError("the browser closed the database of this page"), this.close());
    this.#channel = new BroadcastChannel(name);
    this.#channel.onmessage = ({ data }) => this.#receive(data);
    this.outbox = new Outbox(this, limits);
    this.limits = { rowsMax: 100_000, ...limits };
    this.#runInOneTab("outbox", (stopSignal) => this.outbox.run(stopSignal), this.signal);
    this.#channel.postMessage({ ask: true, outbox: true });
  }

  get signal() {
    return this.#closeController.signal;
  }

  /** Begin a transaction. Return its stores by name, `done` and `abort`. */
  begin(stores, mode = "readonly") {
    if (this.signal.aborted) throw new HeadraceError("the client is closed", { code: "HR-BROWSER-CLOSED", hint: "call Offline.open again" });
    const transaction = this.#database.transaction(stores, mode, { durability: mode === "readwrite" ? "strict" : "default" });
    return { done: completionOf(transaction), abort: () => transaction.abort(), ...Object.fromEntries(stores.map((store) => [store, transaction.objectStore(store)])) };
  }

  /** Run ``work`` in one tab at a time. Without the Locks API, every tab runs it, and transactions resolve conflicts. */
  async #runInOneTab(lockName, work, stopSignal) {
    while (!stopSignal.aborted) {
      try {
        if (!navigator.locks) await work(stopSignal);
        else await navigator.locks.request(`${this.name} ${lockName}`, { signal: stopSignal }, () => work(stopSignal));
      } catch (error) {
        if (stopSignal.aborted) return;
        this.#fault(error);
        await pause(FAULT_MS, stopSignal);
      }
    }
  }

  #fault(error) {
    this.dispatchEvent(new CustomEvent("fault", { detail: error }));
  }

  /** Send a message to this tab and all others. */
  publish(message) {
    if (this.signal.aborted) return;
    this.#channel.postMessage(message);
    this.#receive(message);
  }

  #receive({ copy, outbox, written, state, error, ask, retry }) {
    if (written) this.headrace.noteWritten(written);
    if (retry) {
      this.outbox.retryNow();
      for (const [entry] of this.#copies.values()) entry.retry();
      return;
    }
    const receiver = outbox ? this.outbox : this.#copies.get(copy)?.[0];
    if (ask) receiver?.announce();
    else if (state) receiver?.setState(state, error);
    else Promise.resolve(receiver?.changed()).catch((cause) => this.signal.aborted || this.#fault(cause));
  }

  /** Return a copy of a view or query. The copy immediately has the rows of the last visit. */
  async copy(view, query = {}) {
    const name = nameOf(view, query);
    const existing = this.#copies.get(name);
    if (existing) return existing[0];
    const created = new Copy(this, name, view, query);
    const stopController = new AbortController();
    this.#copies.set(name, [created, stopController]);
    await created.changed();
    this.#runInOneTab(name, (signal) => created.run(signal), AbortSignal.any([this.signal, stopController.signal]));
    this.#channel.postMessage({ ask: true, copy: name });
    return created;
  }

  /** Delete the copy and its rows. Other tabs that use the copy should drop it, too. */
  async drop(view, query = {}) {
    const name = nameOf(view, query);
    this.#copies.get(name)?.[1].abort();
    this.#copies.delete(name);
    const { rows, copies, done } = this.begin(["rows", "copies"], "readwrite");
    rows.delete(new Copy(this, name, view, query).range);
    copies.delete(name);
    await done;
  }

  /** Retry immediately, in the tab that does the work. Call it after a new token, for example. */
  retry() {
    this.publish({ retry: true });
  }

  close() {
    this.#closeController.abort();
    this.#channel.close();
    this.#database.close();
  }

  /** Delete all data, including unsent writes. Call it at logout. */
  async erase() {
    this.close();
    await resultOf(indexedDB.deleteDatabase(this.name));
  }
}

const nameOf = (view, { filter, prefix, from, to, sort, match, limit }) =>
  JSON.stringify([view, { filter, prefix, from, to, sort, match, limit }]);
