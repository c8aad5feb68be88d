// Where the views stand, asked again and again while somebody looks.

import { exactly } from "/page/parts/numbers.js";
import { useEffect, useState } from "/page/vendor/ui.js";

const EVERY_MS = 2_000;
const OFFSETS_SHOWN = 4;

/** {told, problem}: what was told last, also while the server does not answer. */
export function useStandings(api, everyMs = EVERY_MS) {
  const [found, setFound] = useState({ told: null, problem: null });
  useEffect(() => repeated(everyMs, async (signal) => {
    try {
      setFound({ told: await api.get("/v1/standings", {}, { signal }), problem: null });
    } catch (problem) {
      if (!signal.aborted) setFound((last) => ({ told: last.told, problem }));
    }
  }), [api, everyMs]);
  return found;
}

/** Does it now and then, one at a time, not while the page is hidden; returns what ends it. */
export function repeated(everyMs, act) {
  const over = new AbortController();
  let timer;
  const turn = async () => {
    if (!document.hidden) await act(over.signal);
    if (!over.signal.aborted) timer = setTimeout(turn, everyMs);
  };
  turn();
  return () => (over.abort(), clearTimeout(timer));
}

/** "batch 14 of generation 1", or the offsets of a topic that no flow writes; of many partitions, their sum. */
export function placeText(position, most = OFFSETS_SHOWN) {
  if (!position) return "nowhere yet";
  if (position.generation) return `batch ${position.batch} of generation ${position.generation}`;
  const offsets = Object.values(position.offsets);
  if (offsets.length > most) return `${exactly(offsets.reduce((all, one) => all + one, 0))} in ${offsets.length} partitions`;
  return `offset${offsets.length === 1 ? "" : "s"} ${offsets.map(exactly).join(", ")}`;
}

const STORES = { sqlite: "SQLite", postgres: "PostgreSQL", redis: "Redis", search: "full-text index", delta: "Delta", onread: "on read" };
export const storeText = (store) => STORES[store] ?? store;

export const VERDICTS = {
  proven: { state: "good", short: "proven", text: "Proven: what is served is what follows from the log." },
  different: { state: "bad", short: "NOT AS DERIVED", text: "NOT AS DERIVED: what is served is not what follows from the log." },
  unprovable: { state: "warn", short: "unprovable in part", text: "Unprovable in part: the log no longer has all that this was derived from." },
};
