// Stores writes in IndexedDB until the network is available, and sends them one at a time, in order. Each write keeps its
// first request id, so the server applies it once, however often it is sent.

import { resultOf, problemOf } from "./database.js";
import { Backoff, HeadraceError, newRequest, pause } from "./exchange.js";
import { deletions, upserts } from "./headrace.js";

const BLOCKED_MS = 30_000;
const POLL_MS = 5_000;
const RETRY_MS_MAX = 6 * 24 * 3_600_000; // The server remembers request ids for a week.
const SKEW_MS = 24 * 3_600_000;

export class Outbox extends EventTarget {
  #offline;
  #writeController = new AbortController();
  #retryController = new AbortController();
  #isLeader = false;

  constructor(offline, { writesMax = 1_000, bytesMax = 5_000_000, bodyBytesMax = 1_000_000 } = {}) {
    super();
    this.#offline = offline;
    Object.assign(this, { writesMax, bytesMax, bodyBytesMax, state: "idle", error: null });
  }

  /** Store a write. It is sent when the network is available. */
  write(topic, values, request) {
    return this.#add(topic, upserts(values), request);
  }

  delete(topic, keys, request) {
    return this.#add(topic, deletions(keys), request);
  }

  async #add(topic, body, request = newRequest()) {
    const bytes = new TextEncoder().encode(body).length;
    if (bytes > this.bodyBytesMax) throw full(`the write has ${bytes} bytes (limit ${this.bodyBytesMax})`);
    const { outbox, sums, done, abort } = this.#offline.begin(["outbox", "sums"], "readwrite");
    done.catch(() => {});
    const sum = (await resultOf(sums.get("outbox"))) ?? { writes: 0, bytes: 0 };
    if (sum.writes + 1 > this.writesMax || sum.bytes + bytes > this.bytesMax) {
      abort();
      throw full(`the outbox is full: ${sum.writes} writes with ${sum.bytes} bytes are waiting`);
    }
    let seq;
    try {
      sums.put({ writes: sum.writes + 1, bytes: sum.bytes + bytes }, "outbox");
      seq = await resultOf(outbox.add({ request, topic, body, bytes, added: Date.now(), tried: null }));
      await done;
    } catch (error) {
      throw error?.name === "QuotaExceededError" ? full("the storage quota of the browser is exceeded") : error;
    }
    this.#offline.publish({ outbox: true });
    return { seq, request };
  }

  /** Return the writes that are not sent yet, oldest first. */
  async pending() {
    return resultOf(this.#offline.begin(["outbox"]).outbox.getAll());
  }

  /** Return the writes that the server refused, with the reason. They remain stored until ``discard``. */
  async refused() {
    return resultOf(this.#offline.begin(["refused"]).refused.getAll());
  }

  async discard(seq) {
    const { refused, done } = this.#offline.begin(["refused"], "readwrite");
    refused.delete(seq);
    await done;
    this.#offline.publish({ outbox: true });
  }

  /** Resolve when all writes are sent or refused. */
  async drained() {
    const { signal } = this.#offline;
    while ((await this.pending()).length)
      await new Promise((resolve) => {
        this.addEventListener("change", resolve, { once: true });
        signal.addEventListener("abort", resolve, { once: true });
      });
  }

  changed() {
    this.#writeController.abort();
    this.#writeController = new AbortController();
    this.dispatchEvent(new Event("change"));
  }

  setState(state, error) {
    Object.assign(this, { state, error });
    this.dispatchEvent(new Event("state"));
  }

  /** Send the state to a tab that was just opened. */
  announce() {
    if (this.#isLeader) this.#offline.publish({ outbox: true, state: this.state, error: this.error });
  }

  /** Retry immediately, in the tab that does the work. Call it after a new token, for example. */
  retry() {
    this.#offline.retry();
  }

  retryNow() {
    this.#retryController.abort();
    this.#retryController = new AbortController();
  }

  #publish(state, error) {
    if (state !== this.state || error) this.#offline.publish({ outbox: true, state, error: problemOf(error) });
  }

  async run(stopSignal) {
    const backoff = new Backoff();
    this.#isLeader = true;
    while (!stopSignal.aborted) {
      const [writeSignal, retrySignal] = [this.#writeController.signal, this.#retryController.signal];
      const first = await this.#first();
      if (!first) {
        this.#publish("idle");
        await pause(POLL_MS, AbortSignal.any([stopSignal, writeSignal]));
        continue;
      }
      if (!this.#offline.headrace.mayReach && !first.tried) {
        // Wait instead of sending: after a failed attempt, it would be unknown whether the write happened.
        this.#publish("waiting");
        await pause(POLL_MS, AbortSignal.any([stopSignal, retrySignal]));
        continue;
      }
      this.#publish("sending");
      try {
        await this.#send(first);
        backoff.reset();
      } catch (error) {
        if (stopSignal.aborted) return;
        const isLoginError = [401, 403].includes(error?.status);
        if (error instanceof HeadraceError && !error.retriable && !isLoginError) {
          await this.#refuse(first, error);
          continue;
        }
        this.#publish(isLoginError ? "blocked" : "waiting", error);
        await pause(isLoginError ? BLOCKED_MS : backoff.next(error?.retryAfterMs), AbortSignal.any([stopSignal, retrySignal]));
      }
    }
  }

  async #first() {
    const { outbox } = this.#offline.begin(["outbox"]);
    return (await resultOf(outbox.openCursor()))?.value;
  }

  async #send(entry) {
    const { headrace, signal } = this.#offline;
    const agoMs = entry.tried ? Date.now() - entry.tried : 0;
    // If the clock was set back, the age of the first attempt is unknown.
    if (agoMs > RETRY_MS_MAX || agoMs < -SKEW_MS)
      throw new HeadraceError("the write was first sent too long ago: the server may have forgotten its request id", {
        code: "HR-BROWSER-UNFIT", hint: "check whether the rows are stored; then discard the write, or repeat it",
      });
    if (!entry.tried) {
      // Store the time before sending, because the page can be closed at any time.
      const { outbox, done } = this.#offline.begin(["outbox"], "readwrite");
      outbox.put({ ...entry, tried: Date.now() });
      await done;
    }
    const written = await headrace.send(entry.topic, entry.body, entry.request, signal);
    const { done, written: tokens, ...stores } = this.#offline.begin(["outbox", "sums", "written"], "readwrite");
    for (const { partition } of written.records) tokens.put(written.token, [written.topic, partition]);
    await this.#remove(stores, entry);
    await done;
    this.#offline.publish({ outbox: true, written: { topic: written.topic, records: written.records, token: written.token } });
    this.dispatchEvent(new CustomEvent("sent", { detail: written }));
  }

  async #refuse(entry, error) {
    const { refused, done, ...stores } = this.#offline.begin(["outbox", "sums", "refused"], "readwrite");
    const problem = problemOf(error);
    if (await this.#remove(stores, entry)) refused.put({ ...entry, problem });
    await done;
    this.#offline.publish({ outbox: true });
    this.dispatchEvent(new CustomEvent("refused", { detail: { ...entry, problem } }));
  }

  /** Remove a write from the queue. Return false if another tab has already removed it. */
  async #remove({ outbox, sums }, entry) {
    if (!(await resultOf(outbox.get(entry.seq)))) return false;
    outbox.delete(entry.seq);
    const sum = await resultOf(sums.get("outbox"));
    sums.put({ writes: sum.writes - 1, bytes: sum.bytes - entry.bytes }, "outbox");
    return true;
  }
}

function full(message) {
  return new HeadraceError(message, { code: "HR-BROWSER-QUEUE-FULL", hint: "wait for the network, or write less" });
}
