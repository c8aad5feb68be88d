// Writes that wait for the network, in IndexedDB. Each has its request id before it is sent for the first time, and keeps
// it: however often it is sent, it counts once. They go one at a time, in the order in which they came.

import { given, problemOf } from "./database.js";
import { Backoff, HeadraceError, newRequest, pause } from "./exchange.js";
import { deletions, upserts } from "./headrace.js";

const BLOCKED_MS = 30_000;
const LOOK_MS = 5_000;
const DOUBT_MS = 6 * 24 * 3_600_000; // A server remembers requests for a week.
const SKEW_MS = 24 * 3_600_000;

export class Outbox extends EventTarget {
  #offline;
  #added = new AbortController();
  #now = new AbortController();
  #leads = false;

  constructor(offline, { writesMax = 1_000, bytesMax = 5_000_000, bodyBytesMax = 1_000_000 } = {}) {
    super();
    this.#offline = offline;
    Object.assign(this, { writesMax, bytesMax, bodyBytesMax, state: "idle", error: null });
  }

  /** Kept when this returns, and sent when the network is there. */
  write(topic, values, request) {
    return this.#add(topic, upserts(values), request);
  }

  delete(topic, keys, request) {
    return this.#add(topic, deletions(keys), request);
  }

  async #add(topic, body, request = newRequest()) {
    const bytes = new TextEncoder().encode(body).length;
    if (bytes > this.bodyBytesMax) throw full(`a write of ${bytes} bytes, where ${this.bodyBytesMax} are allowed`);
    const { outbox, sums, done, give } = this.#offline.begin(["outbox", "sums"], "readwrite");
    done.catch(() => {});
    const sum = (await given(sums.get("outbox"))) ?? { writes: 0, bytes: 0 };
    if (sum.writes + 1 > this.writesMax || sum.bytes + bytes > this.bytesMax) {
      give();
      throw full(`${sum.writes} writes of ${sum.bytes} bytes wait already`);
    }
    let seq;
    try {
      sums.put({ writes: sum.writes + 1, bytes: sum.bytes + bytes }, "outbox");
      seq = await given(outbox.add({ request, topic, body, bytes, added: Date.now(), tried: null }));
      await done;
    } catch (error) {
      throw error?.name === "QuotaExceededError" ? full("the browser keeps no more for this page") : error;
    }
    this.#offline.tell({ outbox: true });
    return { seq, request };
  }

  /** Those that wait, the oldest first. */
  async pending() {
    return given(this.#offline.begin(["outbox"]).outbox.getAll());
  }

  /** Those that will not be sent, each with the reason; kept until somebody decides. */
  async refused() {
    return given(this.#offline.begin(["refused"]).refused.getAll());
  }

  async discard(seq) {
    const { refused, done } = this.#offline.begin(["refused"], "readwrite");
    refused.delete(seq);
    await done;
    this.#offline.tell({ outbox: true });
  }

  /** When nothing waits any more. */
  async drained() {
    const { signal } = this.#offline;
    while ((await this.pending()).length)
      await new Promise((resolve) => {
        this.addEventListener("change", resolve, { once: true });
        signal.addEventListener("abort", resolve, { once: true });
      });
  }

  changed() {
    this.#added.abort();
    this.#added = new AbortController();
    this.dispatchEvent(new Event("change"));
  }

  stands(state, error) {
    Object.assign(this, { state, error });
    this.dispatchEvent(new Event("state"));
  }

  /** For a tab that has just come. */
  asked() {
    if (this.#leads) this.#offline.tell({ outbox: true, state: this.state, error: this.error });
  }

  /** Tries at once, in whatever tab does the work: after another token was given, for example. */
  retry() {
    this.#offline.retry();
  }

  again() {
    this.#now.abort();
    this.#now = new AbortController();
  }

  #tell(state, error) {
    if (state !== this.state || error) this.#offline.tell({ outbox: true, state, error: problemOf(error) });
  }

  async run(over) {
    const backoff = new Backoff();
    this.#leads = true;
    while (!over.aborted) {
      const [added, now] = [this.#added.signal, this.#now.signal];
      const first = await this.#first();
      if (!first) {
        this.#tell("idle");
        await pause(LOOK_MS, AbortSignal.any([over, added]));
        continue;
      }
      if (!this.#offline.headrace.mayReach && !first.tried) {
        // Not tried is known; tried in vain would be a doubt later.
        this.#tell("waiting");
        await pause(LOOK_MS, AbortSignal.any([over, now]));
        continue;
      }
      this.#tell("sending");
      try {
        await this.#send(first);
        backoff.reset();
      } catch (error) {
        if (over.aborted) return;
        const login = [401, 403].includes(error?.status);
        if (error instanceof HeadraceError && !error.retriable && !login) {
          await this.#refuse(first, error);
          continue;
        }
        this.#tell(login ? "blocked" : "waiting", error);
        await pause(login ? BLOCKED_MS : backoff.next(error?.retryAfterMs), AbortSignal.any([over, now]));
      }
    }
  }

  async #first() {
    const { outbox } = this.#offline.begin(["outbox"]);
    return (await given(outbox.openCursor()))?.value;
  }

  async #send(entry) {
    const { headrace, signal } = this.#offline;
    const agoMs = entry.tried ? Date.now() - entry.tried : 0;
    // A clock that was set back says nothing of how long ago it was.
    if (agoMs > DOUBT_MS || agoMs < -SKEW_MS)
      throw new HeadraceError("it was sent before, too long ago for the server to know", {
        code: "HR-BROWSER-UNFIT", hint: "look whether it is there; then discard it, or write it anew",
      });
    if (!entry.tried) {
      // Noted before it is sent: afterwards nobody may be there to do so.
      const { outbox, done } = this.#offline.begin(["outbox"], "readwrite");
      outbox.put({ ...entry, tried: Date.now() });
      await done;
    }
    const written = await headrace.send(entry.topic, entry.body, entry.request, signal);
    const { done, written: tokens, ...stores } = this.#offline.begin(["outbox", "sums", "written"], "readwrite");
    for (const { partition } of written.records) tokens.put(written.token, [written.topic, partition]);
    await this.#take(stores, entry);
    await done;
    this.#offline.tell({ outbox: true, written: { topic: written.topic, records: written.records, token: written.token } });
    this.dispatchEvent(new CustomEvent("sent", { detail: written }));
  }

  async #refuse(entry, error) {
    const { refused, done, ...stores } = this.#offline.begin(["outbox", "sums", "refused"], "readwrite");
    const problem = problemOf(error);
    if (await this.#take(stores, entry)) refused.put({ ...entry, problem });
    await done;
    this.#offline.tell({ outbox: true });
    this.dispatchEvent(new CustomEvent("refused", { detail: { ...entry, problem } }));
  }

  /** Out of the queue; false if another tab has done so. */
  async #take({ outbox, sums }, entry) {
    if (!(await given(outbox.get(entry.seq)))) return false;
    outbox.delete(entry.seq);
    const sum = await given(sums.get("outbox"));
    sums.put({ writes: sum.writes - 1, bytes: sum.bytes - entry.bytes }, "outbox");
    return true;
  }
}

function full(message) {
  return new HeadraceError(message, { code: "HR-BROWSER-QUEUE-FULL", hint: "wait until the network is back, or write less" });
}
