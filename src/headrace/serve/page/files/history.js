// The last quarter of an hour of a part: asked for once, and then gone on with by what is told now.

import { useEffect, useMemo, useRef, useState } from "/page/vendor/ui.js";

const SAMPLES_MAX = 900;
/** After a longer time without numbers, when nobody looked or nobody answered, what was between is asked for. */
const GAP_MS = 5_000;

function sampleOf(fields, now, node) {
  return fields.map((name) => {
    if (name === "at_ms") return now.at_ms;
    const value = name.startsWith("lag_") ? node.lag?.[name.slice(4)] : node[name];
    return value ?? null;
  });
}

/** `{points(field), problem}`; points are [[ms, value], …], by a function of the value where one is given. */
export function useHistory(api, id, now) {
  const [kept, setKept] = useState(null);
  const [problem, setProblem] = useState(null);
  const [since, setSince] = useState(0);
  const last = useRef(0);
  useEffect(() => {
    const asked = new AbortController();
    setKept((before) => (before?.id === id ? before : null));
    setProblem(null);
    const told = ({ fields, samples }) => setKept({ id, fields: fields[0] === "at_ms" ? fields : ["at_ms", ...fields], samples });
    api.get("/v1/app/history", { node: id }, { signal: asked.signal }).then(told, (error) => !asked.signal.aborted && setProblem(error));
    return () => asked.abort();
  }, [id, since]);
  useEffect(() => {
    const wasAway = last.current > 0 && now?.at_ms - last.current > GAP_MS;
    const mayWork = problem && !(problem.status >= 400 && problem.status < 500) && now?.at_ms - since > GAP_MS;
    if (wasAway || mayWork) setSince(now.at_ms);
    if (now) last.current = now.at_ms;
    const node = now?.nodes?.[id];
    if (!node) return;
    setKept((before) => {
      if (before?.id !== id || (before.samples.at(-1)?.[0] ?? 0) >= now.at_ms) return before;
      return { ...before, samples: [...before.samples.slice(1 - SAMPLES_MAX), sampleOf(before.fields, now, node)] };
    });
  }, [now, id]);
  return useMemo(() => {
    const points = (field, change = (value) => value) => {
      const at = kept?.id === id ? kept.fields.indexOf(field) : -1;
      return at < 0 ? [] : kept.samples.map((row) => [row[0], row[at] === null ? null : change(row[at], row[0])]);
    };
    return { points, problem, has: (field) => kept?.id === id && kept.fields.includes(field) };
  }, [kept, problem, id]);
}
