// The numbers of now, as the server tells them once a second: by a stream, or by asking where no stream comes through.

import { api, isAsking, Problem } from "./api.js";

const EVERY_MS = 1_000;
const FIRST_S_MAX = 5;
const SILENT_S_MAX = 20;
const ASKED_MS_MAX = 15_000;
const SILENT = "HR-PAGE-SILENT";
const PAUSE_MS = 250;
const PAUSE_MS_MAX = 10_000;

const pause = (ms, signal) =>
  new Promise((resolve) => {
    const timer = setTimeout(resolve, ms);
    signal.addEventListener("abort", () => (clearTimeout(timer), resolve()), { once: true });
  });

/** Tells `onNow` each document, and `onState` {connected, problem, retry_ms}. Rests while nobody looks. Returns what ends it. */
export function followNow(onNow, onState) {
  let looking = null;
  const look = () => {
    if (document.hidden) looking?.abort();
    else if (looking === null || looking.signal.aborted) {
      looking = new AbortController();
      follow(looking.signal, onNow, onState);
    }
  };
  document.addEventListener("visibilitychange", look);
  look();
  return () => {
    document.removeEventListener("visibilitychange", look);
    looking?.abort();
  };
}

async function follow(signal, onNow, onState) {
  let streams = true;
  let failures = 0;
  const heard = (document) => {
    failures = 0;
    onState({ connected: true, problem: null });
    onNow(document);
  };
  while (!signal.aborted) {
    try {
      if (streams) streams = await streamed(signal, heard);
      else {
        heard(await api.get("/v1/app/now", {}, { signal: AbortSignal.any([signal, AbortSignal.timeout(ASKED_MS_MAX)]) }));
        await pause(EVERY_MS * 2, signal);
      }
    } catch (problem) {
      if (signal.aborted) return;
      failures += 1;
      // A new stream would begin with the document that is known. Who asks is told why there is no other.
      if (problem.code === SILENT) streams = false;
      const retry_ms = Math.min(PAUSE_MS_MAX, 500 * 2 ** Math.min(failures, 8));
      onState({ connected: false, problem, retry_ms });
      await pause(retry_ms, signal);
    }
  }
}

/** Whether a stream comes through: something in between may keep it until its end, which never comes. */
async function streamed(signal, heard) {
  const stream = new AbortController();
  const end = () => stream.abort();
  signal.addEventListener("abort", end, { once: true });
  let first = false;
  let waited_s = 0;
  const late = setInterval(() => {
    if (!isAsking() && ++waited_s >= (first ? SILENT_S_MAX : FIRST_S_MAX)) end();
  }, 1_000);
  try {
    await api.events("/v1/app/now/stream", { every_ms: EVERY_MS }, (document) => {
      first = true;
      waited_s = 0;
      heard(document);
    }, stream.signal);
    await pause(PAUSE_MS, signal);
    return true;
  } catch (problem) {
    if (problem.name !== "AbortError" || signal.aborted) throw problem;
    if (first) throw new Problem({ code: SILENT, title: "Silence", detail: `the server has told nothing for ${SILENT_S_MAX} s` });
    return false;
  } finally {
    clearInterval(late);
    signal.removeEventListener("abort", end);
  }
}
