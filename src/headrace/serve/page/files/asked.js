// What the server is asked for again and again while it is looked at.

import { useCallback, useEffect, useRef, useState } from "/page/vendor/ui.js";

/** [what was told, what went wrong, ask now]; nothing is asked for while `path` is null. */
export function useAsked(api, path, every_ms) {
  const [told, setTold] = useState(null);
  const [problem, setProblem] = useState(null);
  const again = useRef(() => {});
  useEffect(() => {
    if (path === null) return undefined;
    const asked = new AbortController();
    let timer;
    const ask = async () => {
      clearTimeout(timer);
      try {
        setTold(await api.get(path, {}, { signal: asked.signal }));
        setProblem(null);
      } catch (error) {
        if (asked.signal.aborted) return;
        setProblem(error);
        if (error.status === 404 || error.status === 403) return;
      }
      timer = setTimeout(ask, every_ms);
    };
    again.current = ask;
    ask();
    return () => {
      asked.abort();
      clearTimeout(timer);
    };
  }, [path]);
  return [told, problem, useCallback(() => again.current(), [])];
}

const AGAIN_MS = 3_000;

/** [what was told, what went wrong]: asked for once, and again only while there is no answer. */
export function useOnce(api, path, params = {}) {
  const [told, setTold] = useState(null);
  const [problem, setProblem] = useState(null);
  useEffect(() => {
    const asked = new AbortController();
    let timer;
    const ask = async () => {
      try {
        setTold(await api.get(path, params, { signal: asked.signal }));
        setProblem(null);
      } catch (error) {
        if (asked.signal.aborted) return;
        setProblem(error);
        if (!(error.status >= 400 && error.status < 500)) timer = setTimeout(ask, AGAIN_MS);
      }
    };
    ask();
    return () => {
      asked.abort();
      clearTimeout(timer);
    };
  }, [path, JSON.stringify(params)]);
  return [told, problem];
}
