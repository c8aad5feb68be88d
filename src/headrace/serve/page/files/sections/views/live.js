// The rows of a view, or of a query of it, as they change: every step of the log, none lost and none twice.

import { Headrace } from "/client/headrace.js";
import { token } from "/page/api.js";
import { useEffect, useRef, useState } from "/page/vendor/ui.js";
import { inOrder, keyText } from "./values.js";

export const LIVE_ROWS_MAX = 10_000;
const NOTHING = { rows: null, position: null, state: "connecting", problem: null, steps: 0, changed: 0, gone: 0, at: 0 };

/** What is live of ``asked`` ({filter, prefix, from, to}); ``told`` is the view with its columns, null for nothing. */
export function useLive(told, asked, sort) {
  const [live, setLive] = useState(NOTHING);
  const order = useRef(null);
  order.current = told && inOrder(sort, told.columns, told.key);
  const sorting = useRef(() => {});
  const question = JSON.stringify(asked);
  useEffect(() => {
    if (!told) return undefined;
    const over = new AbortController();
    const kept = new Map();
    const counted = { steps: 0, changed: 0, gone: 0, at: 0 };
    const draw = (position) => setLive((last) => ({
      ...last, ...counted, state: "live", problem: null, position: position ?? last.position,
      rows: [...kept.values()].sort(order.current),
    }));
    sorting.current = () => kept.size && draw(null);
    const onstate = (state) => setLive((last) => ({ ...last, state }));
    const follow = async () => {
      const remote = new Headrace(location.origin, { token: () => token.get(), plainText: true });
      const options = { ...JSON.parse(question), signal: over.signal, onstate, rowsMax: LIVE_ROWS_MAX };
      for await (const change of remote.view(told.view).changes(options)) {
        if (change.whole) kept.clear();
        for (const row of change.rows) kept.set(keyText(change.key, row), row);
        for (const row of change.gone) counted.gone += kept.delete(keyText(change.key, row)) ? 1 : 0;
        if (kept.size > LIVE_ROWS_MAX) throw { code: "HR-PAGE-LIVE", detail: `there are more than ${LIVE_ROWS_MAX} rows by now`, hint: "narrow the search" };
        if (!change.whole) {
          counted.steps += 1;
          counted.changed += change.rows.length;
          if (change.rows.length + change.gone.length) counted.at = Date.now();
        }
        draw(change.position);
      }
    };
    setLive(NOTHING);
    follow().catch((error) => {
      if (over.signal.aborted) return;
      const { code = "", status = 0, hint = "", detail = error.message } = error;
      setLive((last) => ({ ...last, state: "ended", problem: { code, status, hint, detail, title: "Not live" } }));
    });
    return () => over.abort();
  }, [told?.view, told?.answered_by, question]);
  useEffect(() => sorting.current(), [sort]);
  return told ? live : null;
}
