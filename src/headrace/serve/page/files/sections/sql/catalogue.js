// The views and columns that a statement can use, with buttons that insert their names.

import { ProblemBox } from "/page/parts/box.js";
import { exactly } from "/page/parts/numbers.js";
import { html, useState } from "/page/vendor/ui.js";
import { storeText } from "../views/status.js";
import { kindText } from "../views/values.js";
import { quoted } from "./names.js";

export function Catalogue({ views, api, onInsert }) {
  return html`
    <nav class="sql-catalogue" aria-label="Views and columns">
      <h2>Views</h2>
      ${views.map((view) => html`<${Entry} key=${view.view} view=${view} api=${api} onInsert=${onInsert} />`)}
    </nav>`;
}

function Entry({ view, api, onInsert }) {
  const [columns, setColumns] = useState(null);
  const [problem, setProblem] = useState(null);
  const onRead = view.store === "onread";
  const opened = async (event) => {
    if (!event.currentTarget.open || columns) return;
    try {
      setColumns((await api.get(`/v1/views/${encodeURIComponent(view.view)}`)).columns);
      setProblem(null);
    } catch (error) {
      setProblem(error);
    }
  };
  return html`
    <details class="sql-entry" onToggle=${opened} data-view=${view.view}>
      <summary><span class="sql-entry-name">${view.view}</span> <small>${onRead ? "not in SQL" : view.rows === null ? storeText(view.store) : `${exactly(view.rows)} rows`}</small></summary>
      ${onRead ? html`<p class="sql-note">This view is computed on each read. SQL can read only views with a store.</p>` : html`
        <button type="button" class="sql-name" onClick=${() => onInsert(quoted(view.view))}>${quoted(view.view)} <small>the view</small></button>`}
      ${problem ? html`<${ProblemBox} problem=${problem} />` : ""}
      ${(onRead ? [] : columns ?? []).map((column) => html`
        <button type="button" key=${column.name} class="sql-name" onClick=${() => onInsert(quoted(column.name))} data-column=${column.name}>
          ${column.key ? html`<b title="part of the key">${column.name}</b>` : column.name} <small>${kindText(column.kind)}</small>
        </button>`)}
      ${columns && columns.length === 0 ? html`<p class="sql-note">No rows yet.</p>` : ""}
    </details>`;
}
