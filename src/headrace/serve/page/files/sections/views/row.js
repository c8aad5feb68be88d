// One row with all its columns, as it is now.

import { stringify } from "/client/headrace.js";
import { Copy, Panel, ProblemBox } from "/page/parts/box.js";
import { html, useEffect, useState } from "/page/vendor/ui.js";
import { placeText, repeated } from "./standings.js";
import { kindText, quotedName, textOf } from "./values.js";

const EVERY_MS = 2_000;
/** A browser takes these in a path for steps. */
const STEPS = ["", ".", ".."];

async function look(api, told, key, signal) {
  const path = `/v1/views/${encodeURIComponent(told.view)}/rows`;
  if (!STEPS.includes(key)) return api.get(`${path}/${encodeURIComponent(key)}`, {}, { signal, exact: true });
  const filter = `${quotedName(told.key[0])} = ${JSON.stringify(key)}`;
  const { rows, position } = await api.get(path, { filter, limit: 1 }, { signal, exact: true });
  if (rows.length) return { row: rows[0], position };
  throw { status: 404 };
}

export function Row({ told, rowKey, api, onClose }) {
  const [found, setFound] = useState({ row: null, position: null, problem: null, gone: false });
  useEffect(() => {
    setFound({ row: null, position: null, problem: null, gone: false });
    return repeated(EVERY_MS, async (signal) => {
      try {
        setFound({ ...(await look(api, told, rowKey, signal)), problem: null, gone: false });
      } catch (problem) {
        if (signal.aborted) return;
        if (problem.status === 404) setFound({ row: null, position: null, problem: null, gone: true });
        else setFound((last) => ({ ...last, problem }));
      }
    });
  }, [told.view, told.answered_by, rowKey]);
  useEffect(() => {
    const close = (event) => event.key === "Escape" && !event.defaultPrevented && onClose();
    addEventListener("keydown", close);
    return () => removeEventListener("keydown", close);
  }, [onClose]);
  const { row } = found;
  return html`
    <aside class="view-row" aria-label=${`row ${rowKey}`} data-test="row">
      <${Panel} title="Row" aside=${html`
        ${row ? html`<${Copy} text=${stringify(row)} label="Copy as JSON" />` : ""}
        <button type="button" class="view-link" onClick=${onClose} data-test="close-row">Close</button>`}>
        <p class="view-row-key"><code>${rowKey}</code></p>
        ${found.problem ? html`<${ProblemBox} problem=${found.problem} />` : ""}
        ${found.gone ? html`<p class="view-lead">No row has this key: it was deleted, or never there.</p>` : ""}
        ${row
          ? html`
              <dl class="view-row-values">
                ${told.columns.map((one) => html`
                  <div key=${one.name}>
                    <dt>${one.name}${one.key ? html` <small class="view-key-mark">key</small>` : ""}<small>${kindText(one.kind)}</small></dt>
                    <dd class=${row[one.name] === null ? "value-null" : ""} data-column=${one.name}>${pretty(row[one.name])}</dd>
                  </div>`)}
              </dl>
              <p class="view-note">As of ${placeText(found.position)}.</p>`
          : !found.gone && !found.problem ? html`<p class="view-note">Asking…</p>` : ""}
      <//>
    </aside>`;
}

function pretty(value) {
  if (value === null || value === undefined) return "null";
  if (typeof value !== "object") return textOf(value);
  return html`<pre>${JSON.stringify(value, (_, one) => (typeof one === "bigint" ? String(one) : one), 2)}</pre>`;
}
