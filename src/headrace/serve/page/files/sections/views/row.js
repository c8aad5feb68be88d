// Shows one row with all its columns, and loads it again every two seconds.

import { stringify } from "/client/headrace.js";
import { Copy, Panel, ProblemBox } from "/page/parts/box.js";
import { html, useEffect, useState } from "/page/vendor/ui.js";
import { positionText, poll } from "./status.js";
import { kindText, quotedName, textOf } from "./values.js";

const EVERY_MS = 2_000;
/** A browser would resolve these keys as path segments, so their rows are read with a filter. */
const DOT_SEGMENTS = ["", ".", ".."];

async function fetchRow(api, schema, key, signal) {
  const path = `/v1/views/${encodeURIComponent(schema.view)}/rows`;
  if (!DOT_SEGMENTS.includes(key)) return api.get(`${path}/${encodeURIComponent(key)}`, {}, { signal, exact: true });
  const filter = `${quotedName(schema.key[0])} = ${JSON.stringify(key)}`;
  const { rows, position } = await api.get(path, { filter, limit: 1 }, { signal, exact: true });
  if (rows.length) return { row: rows[0], position };
  throw { status: 404 };
}

export function Row({ schema, rowKey, api, onClose }) {
  const [result, setResult] = useState({ row: null, position: null, problem: null, deleted: false });
  useEffect(() => {
    setResult({ row: null, position: null, problem: null, deleted: false });
    return poll(EVERY_MS, async (signal) => {
      try {
        setResult({ ...(await fetchRow(api, schema, rowKey, signal)), problem: null, deleted: false });
      } catch (problem) {
        if (signal.aborted) return;
        if (problem.status === 404) setResult({ row: null, position: null, problem: null, deleted: true });
        else setResult((last) => ({ ...last, problem }));
      }
    });
  }, [schema.view, schema.answered_by, rowKey]);
  useEffect(() => {
    const close = (event) => event.key === "Escape" && !event.defaultPrevented && onClose();
    addEventListener("keydown", close);
    return () => removeEventListener("keydown", close);
  }, [onClose]);
  const { row } = result;
  return html`
    <aside class="view-row" aria-label=${`row ${rowKey}`} data-test="row">
      <${Panel} title="Row" aside=${html`
        ${row ? html`<${Copy} text=${stringify(row)} label="Copy as JSON" />` : ""}
        <button type="button" class="view-link" onClick=${onClose} data-test="close-row">Close</button>`}>
        <p class="view-row-key"><code>${rowKey}</code></p>
        ${result.problem ? html`<${ProblemBox} problem=${result.problem} />` : ""}
        ${result.deleted ? html`<p class="view-lead">No row has this key: it was deleted or never existed.</p>` : ""}
        ${row
          ? html`
              <dl class="view-row-values">
                ${schema.columns.map((column) => html`
                  <div key=${column.name}>
                    <dt>${column.name}${column.key ? html` <small class="view-key-mark">key</small>` : ""}<small>${kindText(column.kind)}</small></dt>
                    <dd class=${row[column.name] === null ? "value-null" : ""} data-column=${column.name}>${pretty(row[column.name])}</dd>
                  </div>`)}
              </dl>
              <p class="view-note">As of ${positionText(result.position)}.</p>`
          : !result.deleted && !result.problem ? html`<p class="view-note">Loading the row…</p>` : ""}
      <//>
    </aside>`;
}

function pretty(value) {
  if (value === null || value === undefined) return "null";
  if (typeof value !== "object") return textOf(value);
  return html`<pre>${JSON.stringify(value, (_, field) => (typeof field === "bigint" ? String(field) : field), 2)}</pre>`;
}
