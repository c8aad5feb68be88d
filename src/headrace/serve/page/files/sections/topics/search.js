// Runs a search, and returns its matches, progress, end or problem.

import { useCallback, useEffect, useRef, useState } from "/page/vendor/ui.js";
import { Problem } from "/page/api.js";

const DRAWN_EVERY_MS = 100;
const NOTHING = { records: [], progress: null, end: null, problem: null, running: false };

export function useSearch(api, topic) {
  const [state, setState] = useState(NOTHING);
  const running = useRef(null);

  const run = useCallback(async (body, earlier = []) => {
    running.current?.abort();
    const controller = (running.current = new AbortController());
    const result = { ...NOTHING, records: earlier, running: true };
    // Limit how often the page is drawn, because records arrive much faster.
    let drawn = 0;
    const draw = (last = false) => {
      const now = performance.now();
      if (controller.signal.aborted || (!last && now - drawn < DRAWN_EVERY_MS)) return;
      drawn = now;
      setState({ ...result });
    };
    setState({ ...result });
    let pendingRecords = [];
    try {
      await api.lines(`/v1/log/topics/${encodeURIComponent(topic)}/search`, body, (line) => {
        if (line.record) pendingRecords.push(line.record);
        else if (line.progress) result.progress = line.progress;
        else if (line.end) result.end = result.progress = line.end;
        else if (line.problem) result.problem = new Problem({ ...line.problem, hint: line.problem.next });
        if (!line.record || pendingRecords.length >= 500) {
          result.records = pendingRecords.length > 0 ? [...result.records, ...pendingRecords] : result.records;
          pendingRecords = [];
          draw();
        }
      }, controller.signal);
    } catch (error) {
      if (!controller.signal.aborted) result.problem = error;
    }
    if (controller.signal.aborted) return;
    result.records = [...result.records, ...pendingRecords];
    result.running = false;
    draw(true);
  }, [topic]);

  const stop = useCallback(() => {
    running.current?.abort();
    setState((earlier) => ({ ...earlier, running: false }));
  }, []);
  useEffect(() => () => running.current?.abort(), []);
  return [state, run, stop];
}
