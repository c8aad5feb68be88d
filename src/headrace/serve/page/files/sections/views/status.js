// Polls the status of all views while the section is open, and has texts about it.

import { exactly } from "/page/parts/numbers.js";
import { useEffect, useState } from "/page/vendor/ui.js";

const EVERY_MS = 2_000;
const OFFSETS_SHOWN = 4;

/** Return {status, problem}. The last status remains while the server does not respond. */
export function useViewStatus(api, everyMs = EVERY_MS) {
  const [state, setState] = useState({ status: null, problem: null });
  useEffect(() => poll(everyMs, async (signal) => {
    try {
      setState({ status: await api.get("/v1/standings", {}, { signal }), problem: null });
    } catch (problem) {
      if (!signal.aborted) setState((last) => ({ status: last.status, problem }));
    }
  }), [api, everyMs]);
  return state;
}

/** Call `load` repeatedly, one call at a time, not while the page is hidden. Return a function that stops the polling. */
export function poll(everyMs, load) {
  const controller = new AbortController();
  let timer;
  const tick = async () => {
    if (!document.hidden) await load(controller.signal);
    if (!controller.signal.aborted) timer = setTimeout(tick, everyMs);
  };
  tick();
  return () => (controller.abort(), clearTimeout(timer));
}

/** Return "batch 14 of generation 1", or offsets if no flow writes the topic. For many partitions, return the sum of the offsets. */
export function positionText(position, offsetsMax = OFFSETS_SHOWN) {
  if (!position) return "no position yet";
  if (position.generation) return `batch ${position.batch} of generation ${position.generation}`;
  const offsets = Object.values(position.offsets);
  if (offsets.length > offsetsMax) return `${exactly(offsets.reduce((sum, offset) => sum + offset, 0))} in ${offsets.length} partitions`;
  return `offset${offsets.length === 1 ? "" : "s"} ${offsets.map(exactly).join(", ")}`;
}

const STORES = { sqlite: "SQLite", postgres: "PostgreSQL", redis: "Redis", search: "full-text index", delta: "Delta", onread: "on read" };
export const storeText = (store) => STORES[store] ?? store;

export const VERDICTS = {
  proven: { state: "good", short: "proven", text: "Proven: the served rows equal the rows derived from the log." },
  different: { state: "bad", short: "NOT AS DERIVED", text: "NOT AS DERIVED: the served rows differ from the rows derived from the log." },
  unprovable: { state: "warn", short: "unprovable in part", text: "Unprovable in part: the log has deleted some of the input." },
  outdated: { state: "warn", short: "outdated", text: "Outdated: this result is of other rows than those that are served now." },
};
