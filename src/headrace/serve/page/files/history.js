// The last 15 minutes of a node's numbers. They are loaded once, then extended with the live numbers.

import { useEffect, useMemo, useRef, useState } from "/page/vendor/ui.js";

const SAMPLES_MAX = 900;
/** After a longer gap (hidden page or lost connection), the history is loaded again. */
const GAP_MS = 5_000;

function sampleOf(fields, now, node) {
  return fields.map((name) => {
    if (name === "at_ms") return now.at_ms;
    const value = name.startsWith("lag_") ? node.lag?.[name.slice(4)] : node[name];
    return value ?? null;
  });
}

/** Return `{points(field, convert), problem, has(field)}`. `points` returns [[ms, convert(value)], …]. */
export function useHistory(api, id, now) {
  const [cached, setCached] = useState(null);
  const [problem, setProblem] = useState(null);
  const [since, setSince] = useState(0);
  const last = useRef(0);
  useEffect(() => {
    const controller = new AbortController();
    setCached((before) => (before?.id === id ? before : null));
    setProblem(null);
    const receive = ({ fields, samples }) => setCached({ id, fields: fields[0] === "at_ms" ? fields : ["at_ms", ...fields], samples });
    api.get("/v1/app/history", { node: id }, { signal: controller.signal }).then(receive, (error) => !controller.signal.aborted && setProblem(error));
    return () => controller.abort();
  }, [id, since]);
  useEffect(() => {
    const wasAway = last.current > 0 && now?.at_ms - last.current > GAP_MS;
    const mayRetry = problem && !(problem.status >= 400 && problem.status < 500) && now?.at_ms - since > GAP_MS;
    if (wasAway || mayRetry) setSince(now.at_ms);
    if (now) last.current = now.at_ms;
    const node = now?.nodes?.[id];
    if (!node) return;
    setCached((before) => {
      if (before?.id !== id || (before.samples.at(-1)?.[0] ?? 0) >= now.at_ms) return before;
      return { ...before, samples: [...before.samples.slice(1 - SAMPLES_MAX), sampleOf(before.fields, now, node)] };
    });
  }, [now, id]);
  return useMemo(() => {
    const points = (field, convert = (value) => value) => {
      const at = cached?.id === id ? cached.fields.indexOf(field) : -1;
      return at < 0 ? [] : cached.samples.map((row) => [row[0], row[at] === null ? null : convert(row[at], row[0])]);
    };
    return { points, problem, has: (field) => cached?.id === id && cached.fields.includes(field) };
  }, [cached, problem, id]);
}
