// Loads the live state of the app once a second: from an event stream, or by polling if a proxy delays streams.

import { api, isPromptingForToken, Problem } from "./api.js";

const EVERY_MS = 1_000;
const FIRST_S_MAX = 5;
const SILENT_S_MAX = 20;
const POLL_MS_MAX = 15_000;
const SILENT = "HR-PAGE-SILENT";
const PAUSE_MS = 250;
const PAUSE_MS_MAX = 10_000;

const pause = (ms, signal) =>
  new Promise((resolve) => {
    const timer = setTimeout(resolve, ms);
    signal.addEventListener("abort", () => (clearTimeout(timer), resolve()), { once: true });
  });

/** Call `onNow` with each document, and `onState` with {connected, problem, retry_ms}. Pause while the page is hidden. Return a function that stops the updates. */
export function followNow(onNow, onState) {
  let session = null;
  const update = () => {
    if (document.hidden) session?.abort();
    else if (session === null || session.signal.aborted) {
      session = new AbortController();
      follow(session.signal, onNow, onState);
    }
  };
  document.addEventListener("visibilitychange", update);
  update();
  return () => {
    document.removeEventListener("visibilitychange", update);
    session?.abort();
  };
}

async function follow(signal, onNow, onState) {
  let useStream = true;
  let failures = 0;
  const receive = (document) => {
    failures = 0;
    onState({ connected: true, problem: null });
    onNow(document);
  };
  while (!signal.aborted) {
    try {
      if (useStream) useStream = await readStream(signal, receive);
      else {
        receive(await api.get("/v1/app/now", {}, { signal: AbortSignal.any([signal, AbortSignal.timeout(POLL_MS_MAX)]) }));
        await pause(EVERY_MS * 2, signal);
      }
    } catch (problem) {
      if (signal.aborted) return;
      failures += 1;
      // A new stream would only repeat the last document. A poll returns the reason why no new document arrives.
      if (problem.code === SILENT) useStream = false;
      const retry_ms = Math.min(PAUSE_MS_MAX, 500 * 2 ** Math.min(failures, 8));
      onState({ connected: false, problem, retry_ms });
      await pause(retry_ms, signal);
    }
  }
}

/** Return false if no event arrives. The cause can be a proxy that buffers the stream until its end, which never comes. */
async function readStream(signal, receive) {
  const stream = new AbortController();
  const end = () => stream.abort();
  signal.addEventListener("abort", end, { once: true });
  let hasDocument = false;
  let waited_s = 0;
  const watchdog = setInterval(() => {
    if (!isPromptingForToken() && ++waited_s >= (hasDocument ? SILENT_S_MAX : FIRST_S_MAX)) end();
  }, 1_000);
  try {
    await api.events("/v1/app/now/stream", { every_ms: EVERY_MS }, (document) => {
      hasDocument = true;
      waited_s = 0;
      receive(document);
    }, stream.signal);
    await pause(PAUSE_MS, signal);
    return true;
  } catch (problem) {
    if (problem.name !== "AbortError" || signal.aborted) throw problem;
    if (hasDocument) throw new Problem({ code: SILENT, title: "No data", detail: `the server sent nothing for ${SILENT_S_MAX} s` });
    return false;
  } finally {
    clearInterval(watchdog);
    signal.removeEventListener("abort", end);
  }
}
