// Hooks that load documents from the server: repeatedly while a section is open, or once.

import { useCallback, useEffect, useRef, useState } from "/page/vendor/ui.js";

/** Return [data, problem, reload]. A null `path` stops the polling. */
export function usePolled(api, path, every_ms) {
  const [data, setData] = useState(null);
  const [problem, setProblem] = useState(null);
  const reload = useRef(() => {});
  useEffect(() => {
    if (path === null) return undefined;
    const controller = new AbortController();
    let timer;
    const load = async () => {
      clearTimeout(timer);
      try {
        setData(await api.get(path, {}, { signal: controller.signal }));
        setProblem(null);
      } catch (error) {
        if (controller.signal.aborted) return;
        setProblem(error);
        if (error.status === 404 || error.status === 403) return;
      }
      timer = setTimeout(load, every_ms);
    };
    reload.current = load;
    load();
    return () => {
      controller.abort();
      clearTimeout(timer);
    };
  }, [path]);
  return [data, problem, useCallback(() => reload.current(), [])];
}

const RETRY_MS = 3_000;

/** Return [data, problem]. Load once. Retry only if the server does not respond or has an internal error. */
export function useFetched(api, path, params = {}) {
  const [data, setData] = useState(null);
  const [problem, setProblem] = useState(null);
  useEffect(() => {
    const controller = new AbortController();
    let timer;
    const load = async () => {
      try {
        setData(await api.get(path, params, { signal: controller.signal }));
        setProblem(null);
      } catch (error) {
        if (controller.signal.aborted) return;
        setProblem(error);
        if (!(error.status >= 400 && error.status < 500)) timer = setTimeout(load, RETRY_MS);
      }
    };
    load();
    return () => {
      controller.abort();
      clearTimeout(timer);
    };
  }, [path, JSON.stringify(params)]);
  return [data, problem];
}
