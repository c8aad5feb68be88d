// Copies of views that are there without the network, and writes that wait for it: in IndexedDB, shared by all tabs, of
// which one does the work and tells the others. Tokens are never stored.

import { Copy } from "./copy.js";
import { ended, given, opened } from "./database.js";
import { HeadraceError, pause } from "./exchange.js";
import { Outbox } from "./outbox.js";

const FAULT_MS = 5_000;

export class Offline extends EventTarget {
  #database;
  #channel;
  #over = new AbortController();
  #copies = new Map();

  /** ``name`` is of one person on this machine: what one may see, another may not. */
  static async open(headrace, { name = "default", ...limits } = {}) {
    const full = `headrace ${headrace.base} ${name}`;
    const database = await opened(full);
    const store = database.transaction("written").objectStore("written");
    const [places, tokens] = await Promise.all([given(store.getAllKeys()), given(store.getAll())]);
    places.forEach(([topic, partition], at) => headrace.noteWritten({ topic, records: [{ partition }], token: tokens[at] }));
    return new Offline(headrace, full, database, limits);
  }

  constructor(headrace, name, database, limits) {
    super();
    this.headrace = headrace;
    this.name = name;
    this.#database = database;
    database.onversionchange = () => this.close();
    database.onclose = () => this.#fault(new HeadraceError("the browser has closed what was kept for this page"), this.close());
    this.#channel = new BroadcastChannel(name);
    this.#channel.onmessage = ({ data }) => this.#heard(data);
    this.outbox = new Outbox(this, limits);
    this.limits = { rowsMax: 100_000, ...limits };
    this.#alone("outbox", (over) => this.outbox.run(over), this.signal);
    this.#channel.postMessage({ ask: true, outbox: true });
  }

  get signal() {
    return this.#over.signal;
  }

  /** A transaction, and its stores by name. */
  begin(stores, mode = "readonly") {
    if (this.signal.aborted) throw new HeadraceError("it is closed", { code: "HR-BROWSER-CLOSED", hint: "open it again" });
    const transaction = this.#database.transaction(stores, mode, { durability: mode === "readwrite" ? "strict" : "default" });
    return { done: ended(transaction), give: () => transaction.abort(), ...Object.fromEntries(stores.map((one) => [one, transaction.objectStore(one)])) };
  }

  /** One tab at a time does it, for all; where there are no locks, every tab does, and the transactions tell. */
  async #alone(what, work, over) {
    while (!over.aborted) {
      try {
        if (!navigator.locks) await work(over);
        else await navigator.locks.request(`${this.name} ${what}`, { signal: over }, () => work(over));
      } catch (error) {
        if (over.aborted) return;
        this.#fault(error);
        await pause(FAULT_MS, over);
      }
    }
  }

  #fault(error) {
    this.dispatchEvent(new CustomEvent("fault", { detail: error }));
  }

  /** Tells this tab and the others. */
  tell(message) {
    if (this.signal.aborted) return;
    this.#channel.postMessage(message);
    this.#heard(message);
  }

  #heard({ copy, outbox, written, state, error, ask, retry }) {
    if (written) this.headrace.noteWritten(written);
    if (retry) {
      this.outbox.again();
      for (const [one] of this.#copies.values()) one.retry();
      return;
    }
    const whose = outbox ? this.outbox : this.#copies.get(copy)?.[0];
    if (ask) whose?.asked();
    else if (state) whose?.stands(state, error);
    else Promise.resolve(whose?.changed()).catch((cause) => this.signal.aborted || this.#fault(cause));
  }

  /** A copy of a view, or of a query of it. It is there at once, as it was left. */
  async copy(view, query = {}) {
    const name = nameOf(view, query);
    const known = this.#copies.get(name);
    if (known) return known[0];
    const found = new Copy(this, name, view, query);
    const over = new AbortController();
    this.#copies.set(name, [found, over]);
    await found.changed();
    this.#alone(name, (signal) => found.run(signal), AbortSignal.any([this.signal, over.signal]));
    this.#channel.postMessage({ ask: true, copy: name });
    return found;
  }

  /** The copy is not needed any more: its rows are deleted. Other tabs that use it should drop it as well. */
  async drop(view, query = {}) {
    const name = nameOf(view, query);
    this.#copies.get(name)?.[1].abort();
    this.#copies.delete(name);
    const { rows, copies, done } = this.begin(["rows", "copies"], "readwrite");
    rows.delete(new Copy(this, name, view, query).range);
    copies.delete(name);
    await done;
  }

  /** Tries again at once what waits, in whatever tab does the work: after another token was given, for example. */
  retry() {
    this.tell({ retry: true });
  }

  close() {
    this.#over.abort();
    this.#channel.close();
    this.#database.close();
  }

  /** Everything that is kept here, also writes that were not sent: for whoever logs out. */
  async erase() {
    this.close();
    await given(indexedDB.deleteDatabase(this.name));
  }
}

const nameOf = (view, { filter, prefix, from, to, sort, match, limit }) =>
  JSON.stringify([view, { filter, prefix, from, to, sort, match, limit }]);
