// The live rows of a view or query, from a subscription.

import { Headrace } from "/client/headrace.js";
import { token } from "/page/api.js";
import { useEffect, useRef, useState } from "/page/vendor/ui.js";
import { rowOrder, keyText } from "./values.js";

export const LIVE_ROWS_MAX = 10_000;
const NOTHING = { rows: null, position: null, state: "connecting", problem: null, steps: 0, changed: 0, gone: 0, at: 0 };

/** Return the live rows of ``query`` ({filter, prefix, from, to}). ``schema`` is the view with its columns, or null to stop. */
export function useLive(schema, query, sort) {
  const [live, setLive] = useState(NOTHING);
  const order = useRef(null);
  order.current = schema && rowOrder(sort, schema.columns, schema.key);
  const resort = useRef(() => {});
  const queryKey = JSON.stringify(query);
  useEffect(() => {
    if (!schema) return undefined;
    const controller = new AbortController();
    const rowsByKey = new Map();
    const counters = { steps: 0, changed: 0, gone: 0, at: 0 };
    const draw = (position) => setLive((last) => ({
      ...last, ...counters, state: "live", problem: null, position: position ?? last.position,
      rows: [...rowsByKey.values()].sort(order.current),
    }));
    resort.current = () => rowsByKey.size && draw(null);
    const onstate = (state) => setLive((last) => ({ ...last, state }));
    const follow = async () => {
      const remote = new Headrace(location.origin, { token: () => token.get(), plainText: true });
      const options = { ...JSON.parse(queryKey), signal: controller.signal, onstate, rowsMax: LIVE_ROWS_MAX };
      for await (const change of remote.view(schema.view).changes(options)) {
        if (change.whole) rowsByKey.clear();
        for (const row of change.rows) rowsByKey.set(keyText(change.key, row), row);
        for (const row of change.gone) counters.gone += rowsByKey.delete(keyText(change.key, row)) ? 1 : 0;
        if (rowsByKey.size > LIVE_ROWS_MAX) throw { code: "HR-PAGE-LIVE", detail: `the query now has more than ${LIVE_ROWS_MAX} rows`, hint: "narrow the search" };
        if (!change.whole) {
          counters.steps += 1;
          counters.changed += change.rows.length;
          if (change.rows.length + change.gone.length) counters.at = Date.now();
        }
        draw(change.position);
      }
    };
    setLive(NOTHING);
    follow().catch((error) => {
      if (controller.signal.aborted) return;
      const { code = "", status = 0, hint = "", detail = error.message } = error;
      setLive((last) => ({ ...last, state: "ended", problem: { code, status, hint, detail, title: "Not live" } }));
    });
    return () => controller.abort();
  }, [schema?.view, schema?.answered_by, queryKey]);
  useEffect(() => resort.current(), [sort]);
  return schema ? live : null;
}
