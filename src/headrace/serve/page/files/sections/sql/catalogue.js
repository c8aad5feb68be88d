// The views that a statement may name, and their columns: to be looked at, and put into the statement.

import { ProblemBox } from "/page/parts/box.js";
import { exactly } from "/page/parts/numbers.js";
import { html, useState } from "/page/vendor/ui.js";
import { storeText } from "../views/standings.js";
import { kindText } from "../views/values.js";
import { quoted } from "./names.js";

export function Catalogue({ views, api, onInsert }) {
  return html`
    <nav class="sql-catalogue" aria-label="Views and columns">
      <h2>Views</h2>
      ${views.map((one) => html`<${Entry} key=${one.view} view=${one} api=${api} onInsert=${onInsert} />`)}
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
    } catch (trouble) {
      setProblem(trouble);
    }
  };
  return html`
    <details class="sql-entry" onToggle=${opened} data-view=${view.view}>
      <summary><span class="sql-entry-name">${view.view}</span> <small>${onRead ? "not in SQL" : view.rows === null ? storeText(view.store) : `${exactly(view.rows)} rows`}</small></summary>
      ${onRead ? html`<p class="sql-note">It is computed on read, and SQL is answered from stores.</p>` : html`
        <button type="button" class="sql-name" onClick=${() => onInsert(quoted(view.view))}>${quoted(view.view)} <small>the view</small></button>`}
      ${problem ? html`<${ProblemBox} problem=${problem} />` : ""}
      ${(onRead ? [] : columns ?? []).map((one) => html`
        <button type="button" key=${one.name} class="sql-name" onClick=${() => onInsert(quoted(one.name))} data-column=${one.name}>
          ${one.key ? html`<b title="of the key">${one.name}</b>` : one.name} <small>${kindText(one.kind)}</small>
        </button>`)}
      ${columns && columns.length === 0 ? html`<p class="sql-note">It has nothing to read yet.</p>` : ""}
    </details>`;
}
