// A search under way: what was found, how far it is, and what came of it.

import { useCallback, useEffect, useRef, useState } from "/page/vendor/ui.js";
import { Problem } from "/page/api.js";

const DRAWN_EVERY_MS = 100;
const NOTHING = { records: [], progress: null, end: null, problem: null, running: false };

export function useSearch(api, topic) {
  const [state, setState] = useState(NOTHING);
  const under = useRef(null);

  const run = useCallback(async (body, before = []) => {
    under.current?.abort();
    const asked = (under.current = new AbortController());
    const found = { ...NOTHING, records: before, running: true };
    // Records come faster than they can be drawn.
    let drawn = 0;
    const draw = (last = false) => {
      const now = performance.now();
      if (asked.signal.aborted || (!last && now - drawn < DRAWN_EVERY_MS)) return;
      drawn = now;
      setState({ ...found });
    };
    setState({ ...found });
    let fresh = [];
    try {
      await api.lines(`/v1/log/topics/${encodeURIComponent(topic)}/search`, body, (line) => {
        if (line.record) fresh.push(line.record);
        else if (line.progress) found.progress = line.progress;
        else if (line.end) found.end = found.progress = line.end;
        else if (line.problem) found.problem = new Problem({ ...line.problem, hint: line.problem.next });
        if (!line.record || fresh.length >= 500) {
          found.records = fresh.length > 0 ? [...found.records, ...fresh] : found.records;
          fresh = [];
          draw();
        }
      }, asked.signal);
    } catch (error) {
      if (!asked.signal.aborted) found.problem = error;
    }
    if (asked.signal.aborted) return;
    found.records = [...found.records, ...fresh];
    found.running = false;
    draw(true);
  }, [topic]);

  const stop = useCallback(() => {
    under.current?.abort();
    setState((before) => ({ ...before, running: false }));
  }, []);
  useEffect(() => () => under.current?.abort(), []);
  return [state, run, stop];
}
